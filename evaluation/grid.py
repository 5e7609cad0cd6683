"""Scores arranged by their place in a table of methods and test sites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evaluation.choice import interval_sign
from evaluation.numbers import CORRELATION
from evaluation.rows import AT_ONE, PRIVATE, GapRow, PairRow, ScoreRow


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
    groups: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in rows:
        groups.setdefault((row.measure, column_name(row)), []).append(row)
    return {
        key: ColumnPatients(
            _min_and_max([row.patients for row in group]),
            _min_and_max([row.positives for row in group]),
            _min_and_max([row.negatives for row in group]),
            _min_and_max([row.positive_patients for row in group]),
            any(row.defined is not None for row in group),
            any(row.assessable for row in group),
        )
        for key, group in groups.items()
    }


def _min_and_max(values: Sequence[int]) -> tuple[int, int]:
    """The smallest and the largest value."""
    return min(values), max(values)


def weak_columns(rows: Sequence[ScoreRow]) -> set[str]:
    """Columns of the grid in which no score is assessable."""
    columns = {column_name(row) for row in rows}
    return columns - {column_name(row) for row in rows if row.assessable}


def count_decided_gains(rows: Sequence[ScoreRow], measure: str) -> dict[str, tuple[int, int, int]]:
    """Method -> number of hospitals with a gain whose interval lies above 0, below 0, and of all with a gain."""
    gains: dict[str, list[int]] = {}
    for row in rows:
        if row.protocol == PRIVATE and row.measure == measure and math.isfinite(row.gain):
            gains.setdefault(row.method, []).append(interval_sign(*row.widest_gain))
    return {m: (signs.count(1), signs.count(-1), len(signs)) for m, signs in gains.items()}


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
