"""The numbers of a study: one row per score of a run, and the summary of a case's seeds.

A value of a case is the mean over its seeds with the standard deviation (divisor n - 1). Every seed is one training,
and if patients are resampled one set of patients, so the deviation says how far a single run may mislead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType

import numpy as np

from evaluation.csv_text import csv_text
from evaluation.intervals import t_interval
from evaluation.oracle_gap import Share
from evaluation.rows import AT_ONE, PRIVATE, to_json

COVERED = 0.95
EVERY = "every hospital"
"""Mean of the private scores of all hospitals, also of those that are not assessable: what papers average."""


@dataclass(frozen=True)
class StudyRow:
    """One score of one run. Fields as in `rows.ScoreRow`; NaN where there is no value."""

    case: str
    seed: int
    method: str
    measure: str
    protocol: str
    sites: tuple[str, ...]
    value: float
    low: float
    high: float
    assessable: bool
    patients: int
    positive_patients: int
    gain: float = math.nan
    gain_low: float = math.nan
    gain_high: float = math.nan

    @property
    def column(self) -> str:
        """Its place in a table: a test site, or "/" and a protocol over sites."""
        return self.sites[0] if self.protocol in AT_ONE else f"/{self.protocol}"


@dataclass(frozen=True)
class Spread:
    """Mean over n seeds, standard deviation with divisor n - 1 (NaN for one seed), the values, how many are > 0."""

    mean: float
    std: float
    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """How many seeds have a value."""
        return len(self.values)

    @property
    def half(self) -> float:
        """Half of Student's 95 % interval of the mean over seeds; NaN for one seed."""
        if self.n < 2:
            return math.nan
        estimate = t_interval(self.values, level=COVERED)
        return (estimate.high - estimate.low) / 2

    @property
    def better(self) -> int:
        """How many are above 0."""
        return sum(value > 0 for value in self.values)


@dataclass(frozen=True)
class Cell:
    """One method in one column of a case's table. assessable: the number of seeds with an assessable score.

    patients, positives: fewest and most over seeds.
    """

    value: Spread
    gain: Spread
    assessable: int
    patients: tuple[int, int]
    positives: tuple[int, int]


def compute_spread(values: Iterable[float]) -> Spread:
    """Mean and sample standard deviation of the finite values."""
    finite_values = tuple(value for value in values if math.isfinite(value))
    mean = float(np.mean(finite_values)) if finite_values else math.nan
    return Spread(mean, float(np.std(finite_values, ddof=1)) if len(finite_values) > 1 else math.nan, finite_values)


Key = tuple[str, str, str, str]
"""(case, method, measure, column)."""
NO_SHARES: Mapping[Key, Share] = MappingProxyType({})


def add_mean_rows(rows: Sequence[StudyRow]) -> list[StudyRow]:
    """The rows, and for each run, method and measure the mean over every hospital (`EVERY`)."""
    rows_by_run: dict[tuple[str, int, str, str], list[StudyRow]] = {}
    for row in rows:
        if row.protocol == PRIVATE:
            rows_by_run.setdefault((row.case, row.seed, row.method, row.measure), []).append(row)
    return [*rows, *(_mean_row(each) for each in rows_by_run.values() if len(each) > 1)]


def _mean_row(rows: Sequence[StudyRow]) -> StudyRow:
    """The mean of one run's private scores over all hospitals, as a row."""
    return replace(
        rows[0],
        protocol=EVERY,
        sites=tuple(row.sites[0] for row in rows),
        value=float(np.mean([row.value for row in rows])),
        gain=float(np.mean([row.gain for row in rows])),
        low=math.nan,
        high=math.nan,
        gain_low=math.nan,
        gain_high=math.nan,
        assessable=all(row.assessable for row in rows),
        patients=sum(row.patients for row in rows),
        positive_patients=sum(row.positive_patients for row in rows),
    )


def build_cells(rows: Sequence[StudyRow]) -> dict[Key, Cell]:
    """Every score and gain over the seeds of its case."""
    rows_by_key: dict[Key, list[StudyRow]] = {}
    for row in add_mean_rows(rows):
        rows_by_key.setdefault((row.case, row.method, row.measure, row.column), []).append(row)
    return {key: _build_cell(key_rows) for key, key_rows in rows_by_key.items()}


def _build_cell(rows: Sequence[StudyRow]) -> Cell:
    """The rows of all seeds of one place, as a cell."""
    patients, positive = [row.patients for row in rows], [row.positive_patients for row in rows]
    return Cell(
        compute_spread(row.value for row in rows),
        compute_spread(row.gain for row in rows),
        sum(row.assessable for row in rows),
        (min(patients), max(patients)),
        (min(positive), max(positive)),
    )


def deviation_range(seeds: int) -> tuple[float, float]:
    """The range of multiples of a printed deviation that contains the true one with 95 % confidence, for normal values.

    The interval of a normal sample's standard deviation by the chi-squared distribution. (NaN, NaN) for one seed.
    """
    from scipy import stats  # slow to import

    if seeds < 2:
        return math.nan, math.nan
    edges = stats.chi2.ppf([(1 + COVERED) / 2, (1 - COVERED) / 2], seeds - 1)
    low, high = np.sqrt((seeds - 1) / edges)
    return float(low), float(high)


SUMMARY = (
    "case", "method", "measure", "column", "seeds", "mean", "std", "half_95", "gain", "gain_std", "assessable_seeds",
    "share", "share_low", "share_high",
)  # fmt: skip


def summary_csv(rows: Sequence[StudyRow], shares: Mapping[Key, Share] = NO_SHARES) -> str:
    """One line per case, method, measure and column: over seeds the mean, the deviation (n - 1), half of Student's 95 %
    interval, the mean gain with its deviation, and the share of the oracle gap; undefined values are empty.
    """
    lines: list[list[object]] = []
    for (case, method, measure, column), cell in build_cells(rows).items():
        value, gain = cell.value, cell.gain
        numbers = [value.n, value.mean, value.std, value.half, gain.mean, gain.std, cell.assessable]
        numbers += shares.get((case, method, measure, column), (math.nan,) * 3)
        entries = ["" if number != number else number for number in numbers]
        lines.append([case, method, measure, column.lstrip("/"), *entries])
    return csv_text(SUMMARY, lines)


def table_csv(rows: Sequence[StudyRow]) -> str:
    """One line per row, a header, comma-separated (RFC 4180); undefined values are empty."""
    names = [field.name for field in fields(StudyRow)]
    records = (asdict(r) | {"sites": " ".join(r.sites), "assessable": str(r.assessable).lower()} for r in rows)
    return csv_text(names, (["" if v != v else v for v in (values[name] for name in names)] for values in records))


def table_json(rows: Sequence[StudyRow]) -> str:
    """The same rows as strict JSON; a number that is not finite is null."""
    return to_json(rows)
