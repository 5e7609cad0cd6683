"""Which hospitals figures show where there are too many to read: the lowest, the highest, and those between."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from evaluation.choice import primary
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.wording import READABLE

SHOWN = 9
"""Hospitals that figures show where there are more than `READABLE`."""


def ranked(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """All hospitals with scores of their own, from the lowest to the highest mean over methods of the measure that
    compares models; first those without a value, then those that are not assessable. Baselines that see no image have
    no part in the mean: they tell how many patients are positive, not how well a hospital is served.
    """
    own: dict[str, list[ScoreRow]] = {row.sites[0]: [] for row in _own(rows)}
    for row in _own(rows):
        if row.method not in FLOORS:
            own[row.sites[0]].append(row)

    def place(site: str) -> tuple[int, float, str]:
        found = [row for row in own[site] if math.isfinite(row.value)]
        sure = [row for row in found if row.assessable]
        if not found:
            return 0, 0.0, site
        return (2 if sure else 1), statistics.fmean(row.value for row in sure or found), site

    return tuple(sorted(own, key=place))


def in_figures(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """The hospitals that figures show, from the lowest to the highest: all where they can be read, or else `SHOWN` at
    equal distances in rank, with the lowest and the highest that have a value.
    """
    order = ranked(rows)
    if len(order) <= READABLE:
        return order
    valued = {row.sites[0] for row in _own(rows) if math.isfinite(row.value) and row.method not in FLOORS}
    kept = [site for site in order if site in valued] or list(order)
    steps = min(SHOWN, len(kept))
    return tuple(dict.fromkeys(kept[round(i * (len(kept) - 1) / max(1, steps - 1))] for i in range(steps)))


def _own(rows: Sequence[ScoreRow]) -> list[ScoreRow]:
    """Scores of one hospital each, by the measure that compares models."""
    measure = primary(rows)
    return [row for row in rows if row.protocol == PRIVATE and row.measure == measure]


def beyond_figures(rows: Sequence[ScoreRow]) -> str:
    """What a figure of some hospitals says of the others; empty where all are shown."""
    order, some = ranked(rows), in_figures(rows)
    if len(some) == len(order):
        return ""
    return (
        f" {len(some)} of {len(order)} hospitals with scores, at equal steps from the lowest to the highest "
        f"{primary(rows)} (mean over methods, without baselines): {', '.join(some)}. The tables have all."
    )
