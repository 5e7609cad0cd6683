"""Which measures stand in which table of a page."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.classes import KINDS, class_measure_name
from evaluation.metrics import FURTHER
from evaluation.numbers import AGREEMENT
from evaluation.overlap import DICE, HD95
from evaluation.rows import ScoreRow


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
