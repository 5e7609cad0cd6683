"""Scores arranged by their place in a table of methods and test sites: which measures stand in which table, and which
hospitals figures show where there are too many to read: the lowest, the highest, and those between.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from evaluation.choice import interval_sign, primary_measure
from evaluation.classes import KINDS, class_measure_name
from evaluation.metrics import FURTHER
from evaluation.numbers import AGREEMENT, CORRELATION
from evaluation.overlap import DICE, HD95
from evaluation.rows import AT_ONE, FLOORS, PRIVATE, GapRow, PairRow, ScoreRow, group_by
from evaluation.wording import READABLE


def rows_by_column(rows: Sequence[ScoreRow]) -> dict[tuple[str, str, str], ScoreRow]:
    """(measure, method, column) -> row; a column is a test site, or "/" and a protocol over sites."""
    return {(r.measure, r.method, column_name(r)): r for r in rows}


@dataclass(frozen=True)
class ColumnPatients:
    """The test patients of a column, over all methods that have a score there: each number is given as the smallest and
    the largest over methods. masks: the scores are of masks. assessable: at least one score is.
    """

    patients: tuple[int, int]
    positives: tuple[int, int]
    negatives: tuple[int, int]
    positive_patients: tuple[int, int]
    masks: bool
    assessable: bool


def column_patients(rows: Sequence[ScoreRow]) -> dict[tuple[str, str], ColumnPatients]:
    """(measure, column) -> its test patients, whichever methods were scored there."""
    groups = group_by(rows, lambda row: (row.measure, column_name(row)))
    numbers = ("patients", "positives", "negatives", "positive_patients")
    return {
        key: ColumnPatients(
            **{name: find_range(getattr(row, name) for row in group) for name in numbers},
            masks=any(row.defined is not None for row in group),
            assessable=any(row.assessable for row in group),
        )
        for key, group in groups.items()
    }


def find_range(values: Iterable[int]) -> tuple[int, int]:
    """The least and the most."""
    numbers = list(values)
    return min(numbers), max(numbers)


def weak_columns(rows: Sequence[ScoreRow]) -> set[str]:
    """Columns of the grid in which no score is assessable."""
    columns = {column_name(row) for row in rows}
    return columns - {column_name(row) for row in rows if row.assessable}


def count_decided_gains(rows: Sequence[ScoreRow], measure: str) -> dict[str, tuple[int, int, int]]:
    """Method -> number of hospitals with a gain whose interval lies above 0, below 0, and of all with a gain."""
    gain_rows = (r for r in rows if r.protocol == PRIVATE and r.measure == measure and math.isfinite(r.gain))
    decided = dict[str, tuple[int, int, int]]()
    for method, gained in group_by(gain_rows, lambda row: row.method).items():
        signs = [interval_sign(*row.widest_gain) for row in gained]
        decided[method] = signs.count(1), signs.count(-1), len(signs)
    return decided


def column_name(row: ScoreRow | GapRow | PairRow) -> str:
    """The column of a row in a table: a test site, or "/" and a protocol over sites."""
    return row.sites[0] if row.protocol in AT_ONE else f"/{row.protocol}"


def pairs_by_column(rows: Sequence[PairRow]) -> dict[str, dict[tuple[str, str], PairRow]]:
    """Column -> (method, other) -> the method's gain over the other, of both ways round; the mean over hospitals
    first.
    """
    columns: dict[str, dict[tuple[str, str], PairRow]] = {}
    for row in sorted(rows, key=lambda row: (row.protocol in AT_ONE, row.sites)):
        turned = replace(row, method=row.other, other=row.method, gain=-row.gain, low=-row.high, high=-row.low)
        columns.setdefault(column_name(row), {}).update({(row.method, row.other): row, (row.other, row.method): turned})
    return columns


def weak_rows(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """One row per site whose scores are not assessable. Rows with patients without a value are left out: their cell
    says so.
    """
    # A guess that is the same for every image has no correlation.
    known = (row for row in rows if row.measure != CORRELATION or math.isfinite(row.value))
    poor = (row for row in known if row.protocol == PRIVATE and not row.assessable)
    weak = {row.sites[0]: row for row in poor if row.defined is None or row.defined >= row.positive_patients}
    return [weak[site] for site in sorted(weak)]


def list_leading_measures(rows: Sequence[ScoreRow], structures: Sequence[str], parts: Sequence[str]) -> list[str]:
    """The measures of the first table: for several structures those over all of them; for labels not the further
    ones, nor those of single classes or cuts.
    """
    each = {f"{name} {structure}" for name in (DICE.name, HD95.name) for structure in structures}
    each |= {measure.name for measure in FURTHER} | {*AGREEMENT}
    return [name for name in list_whole_measures(rows, parts) if name not in each]


def list_whole_measures(rows: Sequence[ScoreRow], parts: Sequence[str]) -> list[str]:
    """All measures but those of single classes or cuts, which have tables of their own."""
    return list(dict.fromkeys(row.measure for row in select_whole_rows(rows, parts)))


def select_whole_rows(rows: Sequence[ScoreRow], parts: Sequence[str]) -> list[ScoreRow]:
    """All rows but those of single classes or cuts."""
    of_one = {class_measure_name(kind, name) for kind in KINDS for name in parts}
    return [row for row in rows if row.measure not in of_one]


def list_further_measures(rows: Sequence[ScoreRow]) -> list[str]:
    """The measures of the second table."""
    further = {measure.name for measure in FURTHER} | {*AGREEMENT}
    return [name for name in dict.fromkeys(row.measure for row in rows) if name in further]


SHOWN = 9
"""Hospitals that figures show where there are more than `READABLE`."""


def rank_hospitals(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """All hospitals with scores of their own, from the lowest to the highest mean over methods of the measure that
    compares models; first those without a value, then those that are not assessable. Baselines that see no image are
    left out of the mean: they show how many patients are positive, not how well a hospital is served.
    """
    rows_by_site = group_by(_private_rows(rows), lambda row: row.sites[0])

    def place(site: str) -> tuple[int, float, str]:
        valued_rows = [row for row in rows_by_site[site] if math.isfinite(row.value) and row.method not in FLOORS]
        sure = [row for row in valued_rows if row.assessable]
        if not valued_rows:
            return 0, 0.0, site
        return (2 if sure else 1), statistics.fmean(row.value for row in sure or valued_rows), site

    return tuple(sorted(rows_by_site, key=place))


def select_figure_sites(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """The hospitals that figures show, from the lowest to the highest: all where they can be read, or else `SHOWN` at
    equal distances in rank, with the lowest and the highest that have a value.
    """
    order = rank_hospitals(rows)
    if len(order) <= READABLE:
        return order
    valued = {row.sites[0] for row in _private_rows(rows) if math.isfinite(row.value) and row.method not in FLOORS}
    candidates = [site for site in order if site in valued] or list(order)
    steps = min(SHOWN, len(candidates))
    return tuple(dict.fromkeys(candidates[round(i * (len(candidates) - 1) / max(1, steps - 1))] for i in range(steps)))


def _private_rows(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Scores of one hospital each, by the measure that compares models."""
    measure = primary_measure(rows)
    return [row for row in rows if row.protocol == PRIVATE and row.measure == measure]


def describe_figure_choice(rows: Sequence[ScoreRow]) -> str:
    """A sentence on how many hospitals a figure shows, and which; empty if it shows all."""
    order, shown = rank_hospitals(rows), select_figure_sites(rows)
    if len(shown) == len(order):
        return ""
    return (
        f" {len(shown)} of {len(order)} hospitals with scores, at equal steps from the lowest to the highest "
        f"{primary_measure(rows)} (mean over methods, without baselines): {', '.join(shown)}. The tables have all."
    )
