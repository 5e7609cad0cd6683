"""Which hospitals figures show where there are too many to read: the lowest, the highest, and those between."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from evaluation.choice import primary_measure
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.wording import READABLE

SHOWN = 9
"""Hospitals that figures show where there are more than `READABLE`."""


def rank_hospitals(rows: Sequence[ScoreRow]) -> tuple[str, ...]:
    """All hospitals with scores of their own, from the lowest to the highest mean over methods of the measure that
    compares models; first those without a value, then those that are not assessable. Baselines that see no image are
    left out of the mean: they show how many patients are positive, not how well a hospital is served.
    """
    rows_by_site: dict[str, list[ScoreRow]] = {row.sites[0]: [] for row in _private_rows(rows)}
    for row in _private_rows(rows):
        if row.method not in FLOORS:
            rows_by_site[row.sites[0]].append(row)

    def place(site: str) -> tuple[int, float, str]:
        valued_rows = [row for row in rows_by_site[site] if math.isfinite(row.value)]
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
