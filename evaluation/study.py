"""A study: the same methods in several cases, each run with several seeds; where they gain and where they lose.

A value of a case is the mean over its seeds with the standard deviation (divisor n - 1). Every seed is one training,
and if patients are resampled one set of patients, so the deviation says how far a single run may mislead. What
harmonization is worth over the seeds: shares of the oracle gap, and gains at hospitals outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from evaluation.csv_text import csv_text
from evaluation.grid import find_range
from evaluation.intervals import ENDS, t_interval
from evaluation.metrics import AUC, BALANCED_ACCURACY
from evaluation.oracle_gap import Compared, Share, share_of_gap
from evaluation.records import Command
from evaluation.rows import AT_ONE, OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN, PUBLIC, group_by, to_json

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
        estimate = t_interval(self.values)
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
    own_rows = (row for row in rows if row.protocol == PRIVATE)
    by_run = group_by(own_rows, lambda row: (row.case, row.seed, row.method, row.measure))
    return [*rows, *(_mean_row(each) for each in by_run.values() if len(each) > 1)]


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
    by_key = group_by(add_mean_rows(rows), lambda row: (row.case, row.method, row.measure, row.column))
    return {
        key: Cell(
            compute_spread(row.value for row in seeds),
            compute_spread(row.gain for row in seeds),
            sum(row.assessable for row in seeds),
            find_range(row.patients for row in seeds),
            find_range(row.positive_patients for row in seeds),
        )
        for key, seeds in by_key.items()
    }


def deviation_range(seeds: int) -> tuple[float, float]:
    """The range of multiples of a printed deviation that contains the true one with 95 % confidence, for normal values.

    The interval of a normal sample's standard deviation by the chi-squared distribution. (NaN, NaN) for one seed.
    """
    from scipy import stats  # slow to import

    if seeds < 2:
        return math.nan, math.nan
    edges = stats.chi2.ppf(ENDS[::-1], seeds - 1)
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


MEASURES = (AUC.name, BALANCED_ACCURACY.name)
"""The default measures of a page; the table has all."""
POOLED, MEAN, ALL = f"/{OVERALL}", f"/{PRIVATE_MEAN}", f"/{EVERY}"


@dataclass(frozen=True)
class StudyRun:
    """One run. page: its page, relative to the study's; empty = not done, and `state` says why. target: the hospital
    whose images were imitated. unused: translations that a hospital did not use, with the reasons.
    """

    run: str
    seed: int
    state: str
    page: str = ""
    target: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyCase:
    """One case. share: of the patients in training. sites, methods: of its runs. compared: lines whose share of the
    oracle gap can be computed.
    """

    name: str
    what: str
    share: float
    sites: tuple[str, ...]
    methods: tuple[str, ...]
    reference: str
    runs: tuple[StudyRun, ...]
    compared: tuple[Compared, ...] = ()


@dataclass(frozen=True)
class StudyPage:
    """The page. varies: what differs between seeds, in a sentence. settings: the study's YAML as plain text. measures:
    those on the page. masks: whether methods segment, so that no patient is positive or negative.
    """

    title: str
    name: str
    date: str
    base: str
    what: str
    varies: str
    cases: tuple[StudyCase, ...]
    rows: tuple[StudyRow, ...]
    commands: tuple[Command, ...]
    settings: str
    measures: tuple[str, ...] = MEASURES
    masks: bool = False


@dataclass(frozen=True)
class Balance:
    """Where a method gains in a case, and where it loses. sites: hospitals whose mean over seeds is a gain, of all that
    have one. times: the same for pairs of hospital and seed. worst: the hospital that gains least, and its gain.
    """

    case: str
    method: str
    pooled: Spread
    sites: tuple[int, int]
    times: tuple[int, int]
    worst: str
    least: Spread


def compute_balances(cases: Sequence[StudyCase], cell_by_key: Mapping[Key, Cell], measure: str) -> list[Balance]:
    """For every case and method the hospitals that gain over the reference and those that lose."""
    result = []
    for case in cases:
        for method in (name for name in case.methods if name != case.reference):
            cells = {site: cell_by_key.get((case.name, method, measure, site)) for site in case.sites}
            gains = {site: cell.gain for site, cell in cells.items() if cell and cell.gain.n}
            if not gains:
                continue
            worst = min(gains, key=lambda site: gains[site].mean)
            pooled = cell_by_key.get((case.name, method, measure, POOLED))
            sites = (sum(gain.mean > 0 for gain in gains.values()), len(gains))
            times = (sum(gain.better for gain in gains.values()), sum(gain.n for gain in gains.values()))
            overall = pooled.gain if pooled else compute_spread(())
            result.append(Balance(case.name, method, overall, sites, times, worst, gains[worst]))
    return result


def compute_gap_shares(page: StudyPage) -> dict[Key, Share]:
    """The share of the oracle gap that each line of each case closes, over its seeds."""
    return {key: worth.share for key, worth in compute_page_worths(page).items()}


def compute_page_worths(page: StudyPage) -> Worths:
    """The worth of each compared line of the page's cases."""
    return compute_worths(page.rows, {case.name: case.compared for case in page.cases})


def list_compared_lines(case: StudyCase, worth: Worths, measures: Sequence[str]) -> dict[str, list[str]]:
    """Measure -> lines of a case that are compared with an oracle."""
    lines = [line for comparison in case.compared for line in comparison.others]
    known_pairs = {(key[1], key[2]) for key in worth if key[0] == case.name}
    lines_by_measure = {measure: [line for line in lines if (line, measure) in known_pairs] for measure in measures}
    return {measure: measure_lines for measure, measure_lines in lines_by_measure.items() if measure_lines}


def find_weak_columns(cases: Sequence[StudyCase], cell_by_key: Mapping[Key, Cell]) -> set[tuple[str, str, str]]:
    """(case, measure, column) in which no score of any method is assessable with any seed."""
    shown = {case.name for case in cases}
    known = group_by(cell_by_key, lambda key: (key[0], key[2], key[3]))
    return {
        column
        for column, keys in known.items()
        if column[0] in shown and not any(cell_by_key[key].assessable for key in keys)
    }


class ColumnRange(NamedTuple):
    """Test patients, and positives among them, of a column: fewest and most over seeds and methods."""

    patients: tuple[int, int]
    positives: tuple[int, int]


def compute_column_ranges(cell_by_key: Mapping[Key, Cell]) -> dict[tuple[str, str, str], ColumnRange]:
    """(case, measure, column) -> its test patients, whichever methods were scored there."""
    cells = {
        column: [cell_by_key[key] for key in keys]
        for column, keys in group_by(cell_by_key, lambda key: (key[0], key[2], key[3])).items()
    }
    return {
        column: ColumnRange(
            find_range(number for cell in each for number in cell.patients),
            find_range(number for cell in each for number in cell.positives),
        )
        for column, each in cells.items()
    }


FOREIGN_PROTOCOLS = (PUBLIC, OUTSIDE, OUTSIDE_MEAN)


@dataclass(frozen=True)
class Worth:
    """A line in one column of a case's table, over the seeds in which it, its untranslated line and the oracle have a
    value. share: NaN where the gap's own interval holds 0, or where the oracle is worse, or with one seed.
    """

    untranslated: str
    oracle: str
    gap: Spread
    gain: Spread
    share: Share


Worths: TypeAlias = Mapping[Key, Worth]
"""(case, method, measure, column) -> its worth."""


def compute_worths(rows: Sequence[StudyRow], compared: Mapping[str, Sequence[Compared]]) -> dict[Key, Worth]:
    """The worth of every compared line of the cases. compared: case -> lines that are compared with an oracle."""
    values: dict[Key, dict[int, float]] = {}
    for row in add_mean_rows(rows):
        if row.protocol not in FOREIGN_PROTOCOLS and math.isfinite(row.value):
            values.setdefault((row.case, row.method, row.measure, row.column), {})[row.seed] = row.value
    worths = {
        key: _compute_worth(key, comparison, values)
        for case, comparisons in compared.items()
        for comparison in comparisons
        for key in values
        if key[0] == case and key[1] in comparison.others
    }
    return {key: worth for key, worth in worths.items() if worth is not None}


def _compute_worth(key: Key, comparison: Compared, values: Mapping[Key, Mapping[int, float]]) -> Worth | None:
    """The worth of one line in one column, over the seeds that all three lines have; None without such seeds."""
    case, method, measure, column = key
    untranslated, best = comparison.untranslated, comparison.oracle
    three = [values.get((case, name, measure, column), {}) for name in (method, untranslated, best)]
    seeds = sorted(set.intersection(*map(set, three)))
    if not seeds:
        return None
    line, raw, oracle = ([each[seed] for seed in seeds] for each in three)
    gap, gain = (compute_spread(a - b for a, b in zip(ours, raw, strict=True)) for ours in (oracle, line))
    share = share_of_gap(line, raw, oracle)
    is_known = share is not None and math.isfinite(share.low) and math.isfinite(share.high) and gap.mean > 0
    return Worth(untranslated, best, gap, gain, share if share and is_known else Share(math.nan, math.nan, math.nan))


def outside_gains(rows: Sequence[StudyRow]) -> dict[tuple[str, str], dict[str, dict[str, Spread]]]:
    """(case, measure) -> line of `route` -> column (an external hospital, or their mean) -> its gain over the untreated
    line. Only lines with a gain are listed; the untreated line has 0 everywhere and is left out.
    """
    outside = (r for r in rows if r.protocol in (OUTSIDE, OUTSIDE_MEAN) and math.isfinite(r.gain))
    gains: dict[tuple[str, str], dict[str, dict[str, Spread]]] = {}
    for (case, measure, line), gained in group_by(outside, lambda r: (r.case, r.measure, r.method)).items():
        lines = gains.setdefault((case, measure), {})
        if any(row.gain for row in gained):
            columns = group_by(gained, lambda row: row.column).items()
            lines[line] = {column: compute_spread(row.gain for row in each) for column, each in columns}
    return gains
