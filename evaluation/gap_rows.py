"""What harmonization is worth in a run: of each line the share of the oracle gap that it closes, over patients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from evaluation.metrics import Measure
from evaluation.oracle_gap import share_in_copies
from evaluation.protocols import STANDARD, Limits, Score, Table, compute_gain, own_model_table
from evaluation.rows import GapRow
from evaluation.scoring import compute_scores, select_common_sites


class Compared(NamedTuple):
    """Lines of one method and network. untranslated: the line that learns from images as they were read. oracle: the
    line that learns from the same patients on one scanner; nothing else differs. others: lines that differ in images,
    start, work or calibration.
    """

    untranslated: str
    oracle: str
    others: tuple[str, ...]


def gap_rows(
    tables: Mapping[str, Table], compared: Sequence[Compared], measure: Measure, limits: Limits = STANDARD
) -> tuple[GapRow, ...]:
    """Every line's share of the oracle gap, by every protocol but the public one. There is no share at hospitals that
    did not score all three: the line, its untranslated line and the oracle.
    """
    return tuple(
        row
        for comparison in compared
        if comparison.untranslated in tables and comparison.oracle in tables
        for label in comparison.others
        if label in tables
        for row in _line_gap_rows(label, comparison, tables, measure, limits)
    )


def _line_gap_rows(
    label: str, comparison: Compared, tables: Mapping[str, Table], measure: Measure, limits: Limits
) -> Iterator[GapRow]:
    """The gap rows of one line, one for each protocol and set of hospitals."""
    common_tables = select_common_sites(
        [own_model_table(tables[name]) for name in (label, comparison.untranslated, comparison.oracle)]
    )
    if not common_tables[0]:
        return
    ours, raw, best = (dict(_scores_by_key(table, measure, limits)) for table in common_tables)
    for key, score in ours.items():
        gained, gap = (
            compute_gain(score, raw[key], measure, limits=limits),
            compute_gain(best[key], raw[key], measure, limits=limits),
        )
        share, why = share_in_copies(gained.copies, gap.copies, limits.level)
        yield GapRow(
            label,
            comparison.untranslated,
            comparison.oracle,
            key[0],
            score.sites,
            measure.name,
            gap.estimate.value,
            gap.estimate.low,
            gap.estimate.high,
            gained.estimate.value,
            gained.estimate.low,
            gained.estimate.high,
            *share,
            why,
        )


def _scores_by_key(
    table: Table, measure: Measure, limits: Limits
) -> Iterator[tuple[tuple[str, tuple[str, ...]], Score]]:
    """Scores of hospitals' own models on their own patients."""
    private_table = {pair: evidence for pair, evidence in table.items() if pair[0] == pair[1]}
    return (
        ((protocol, score.sites), score) for protocol, score in compute_scores(private_table, measure, limits=limits)
    )
