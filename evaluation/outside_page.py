"""The page of a hospital outside the federation, which stays there: its scores by line, and how it came to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.adaptation import AdaptedLine
from evaluation.drawing import Picture
from evaluation.overlap import HD95
from evaluation.rendering import rendered
from evaluation.report import SitePage, told_of
from evaluation.rows import PRIVATE, ScoreRow


@dataclass(frozen=True)
class Beyond:
    """What such a page has beside a hospital's page. field: as in `RunPage`. pictures: of the lines' masks."""

    lines: tuple[AdaptedLine, ...]
    field: str = ""
    outlines: tuple[Picture, ...] = ()


def outside_page(page: SitePage, beyond: Beyond) -> str:
    """For that hospital's disk only. page: with scores by line, of all of its patients, and one split."""
    return rendered("outside.html", **{**told_of(page), "foreign": True}, beyond=beyond, best=best(page.scores))


def best(rows: Sequence[ScoreRow]) -> tuple[ScoreRow, ...]:
    """The lines of the first measure with the best value, several where they are equal; none where there is no value.

    Raises:
        ValueError: that measure is better where it is lower, and another should come first.
    """
    own = [row for row in rows if row.protocol == PRIVATE and math.isfinite(row.value)]
    first = [row for row in own if row.measure == rows[0].measure] if rows else []
    if any(row.measure.startswith(HD95.name) for row in first):
        raise ValueError(f"the first measure is {first[0].measure}, which is better where it is lower; put Dice first")
    return tuple(row for row in first if row.value == max(one.value for one in first))
