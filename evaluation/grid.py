"""Scores arranged by their place in a table of methods and test sites."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.choice import direction
from evaluation.rows import AT_ONE, PRIVATE, GapRow, ScoreRow


def by_column(rows: Sequence[ScoreRow]) -> dict[tuple[str, str, str], ScoreRow]:
    """(measure, method, column) -> row; a column is a test site, or "/" and a protocol over sites."""
    return {(r.measure, r.method, column_of(r)): r for r in rows}


@dataclass(frozen=True)
class Held:
    """The test patients of a column, over all methods that have a score there: each the least and the most of them.
    masks: it is a score of masks. assessable: one of the scores is.
    """

    patients: tuple[int, int]
    positives: tuple[int, int]
    negatives: tuple[int, int]
    positive_patients: tuple[int, int]
    masks: bool
    assessable: bool


def held(rows: Sequence[ScoreRow]) -> dict[tuple[str, str], Held]:
    """(measure, column) -> its test patients, whichever methods were scored there."""
    found: dict[tuple[str, str], list[ScoreRow]] = {}
    for row in rows:
        found.setdefault((row.measure, column_of(row)), []).append(row)
    return {
        key: Held(
            _ends([row.patients for row in own]),
            _ends([row.positives for row in own]),
            _ends([row.negatives for row in own]),
            _ends([row.positive_patients for row in own]),
            any(row.defined is not None for row in own),
            any(row.assessable for row in own),
        )
        for key, own in found.items()
    }


def _ends(values: Sequence[int]) -> tuple[int, int]:
    return min(values), max(values)


def weak_columns(rows: Sequence[ScoreRow]) -> set[str]:
    """Columns of the grid in which no score is assessable."""
    columns = {column_of(row) for row in rows}
    return columns - {column_of(row) for row in rows if row.assessable}


def decided(rows: Sequence[ScoreRow], measure: str) -> dict[str, tuple[int, int, int]]:
    """Method -> number of hospitals with a gain whose interval lies above 0, below 0, and of all with a gain."""
    gains: dict[str, list[int]] = {}
    for row in rows:
        if row.protocol == PRIVATE and row.measure == measure and math.isfinite(row.gain):
            gains.setdefault(row.method, []).append(direction(row.gain_low, row.gain_high))
    return {m: (found.count(1), found.count(-1), len(found)) for m, found in gains.items()}


def column_of(row: ScoreRow | GapRow) -> str:
    """Its place in a table: a test site, or "/" and a protocol over sites."""
    return row.sites[0] if row.protocol in AT_ONE else f"/{row.protocol}"


def weak_rows(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """One row per site whose scores are not assessable, without those that lack values, whose cell says so."""
    poor = (row for row in rows if row.protocol == PRIVATE and not row.assessable)
    weak = {row.sites[0]: row for row in poor if row.defined is None or row.defined >= row.positive_patients}
    return [weak[site] for site in sorted(weak)]
