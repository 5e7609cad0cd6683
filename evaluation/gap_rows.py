"""What harmonization is worth in a run: of each line the share of the oracle gap that it closes, over patients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from evaluation.metrics import Measure
from evaluation.oracle_gap import share_in_copies
from evaluation.protocols import STANDARD, Limits, Score, Table, gain, home
from evaluation.rows import GapRow
from evaluation.scoring import common_sites, scores


class Compared(NamedTuple):
    """Lines of one method and network. untranslated: it learns from images as they were read. oracle: from the same
    patients on one scanner, and nothing else differs. others: they differ in images, start, work or calibration.
    """

    untranslated: str
    oracle: str
    others: tuple[str, ...]


def gap_rows(
    tables: Mapping[str, Table], compared: Sequence[Compared], measure: Measure, limits: Limits = STANDARD
) -> tuple[GapRow, ...]:
    """Every line's share of the oracle gap, by every protocol but the public one. At hospitals that did not score all
    three of a line, its untranslated one and the oracle, there is no share.
    """
    return tuple(
        row
        for one in compared
        if one.untranslated in tables and one.oracle in tables
        for label in one.others
        if label in tables
        for row in _rows(label, one, tables, measure, limits)
    )


def _rows(label: str, one: Compared, tables: Mapping[str, Table], measure: Measure, limits: Limits) -> Iterator[GapRow]:
    kept = common_sites([home(tables[name]) for name in (label, one.untranslated, one.oracle)])
    if not kept[0]:
        return
    ours, raw, best = (dict(_by_key(table, measure, limits)) for table in kept)
    for key, score in ours.items():
        gained, gap = gain(score, raw[key], measure, limits=limits), gain(best[key], raw[key], measure, limits=limits)
        share, why = share_in_copies(gained.copies, gap.copies, limits.level)
        yield GapRow(
            label,
            one.untranslated,
            one.oracle,
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


def _by_key(table: Table, measure: Measure, limits: Limits) -> Iterator[tuple[tuple[str, tuple[str, ...]], Score]]:
    """Scores of hospitals' own models on their own patients."""
    own = {pair: found for pair, found in table.items() if pair[0] == pair[1]}
    return (((protocol, score.sites), score) for protocol, score in scores(own, measure, limits=limits))
