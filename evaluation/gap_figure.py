"""Shares of the oracle gap: a panel for each hospital and mean, a row for each line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluation.drawing import COLOURS, INK, Picture, belong_to, point_at
from evaluation.panels import draw_row_panels
from evaluation.rows import PRIVATE, GapRow
from evaluation.wording import format_hundredths, format_signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = (-1.0, 2.0)
"""Shares farther out are cut off: where the gap is small, an interval may reach far."""


def draw_gap_shares(rows: Sequence[GapRow]) -> Picture | None:
    """Shares with their intervals, between untranslated images (0) and the oracle (1); None where no share is known."""
    known = [row for row in rows if math.isfinite(row.share)]
    if not known:
        return None
    methods = list(dict.fromkeys(row.method for row in known))
    groups = list(dict.fromkeys(_panel_title(row) for row in known))

    def draw(axes: Axes, group: str) -> None:
        for place in (0, 1):
            axes.axvline(place, color=INK, linewidth=0.9, linestyle=(0, (4, 2)) if place else "-")
        for row in known:
            if _panel_title(row) != group:
                continue
            y = methods.index(row.method)
            low, high = np.clip((row.share_low, row.share_high), *SHOWN)
            belong_to(axes.hlines(y, low, high, color=COLOURS[0], linewidth=1.6), row.method)
            (mark,) = axes.plot(row.share, y, "o", color=COLOURS[0], markersize=6)
            point_at(mark, row.method, [f"{group}, {_describe_share(row)}"])
        low, high = axes.get_xlim()
        axes.set_xlim(max(SHOWN[0], min(low, -0.1)), min(SHOWN[1], max(high, 1.1)))

    alt = f"Share of the oracle gap in {known[0].measure}. " + "; ".join(
        f"{_panel_title(row)}, {_describe_share(row)}" for row in known
    )
    caption = (
        "Line at 0: as good as untranslated images; dashed line at 1: as good as the oracle. Bars are 95 % intervals "
        f"over patients; they are cut off at {SHOWN[0]:g} and {SHOWN[1]:g}."
    )
    label = f"share of the oracle gap in {known[0].measure}"
    return Picture(
        "Share of the oracle gap", caption, draw_row_panels(groups, methods, draw, alt=f"{alt}.", label=label)
    )


def _panel_title(row: GapRow) -> str:
    """The hospital, or the kind of mean."""
    return row.sites[0] if row.protocol == PRIVATE else row.protocol


def _describe_share(row: GapRow) -> str:
    """A line's share and gain in words."""
    share = (
        f"{format_hundredths(row.share)} ({format_hundredths(row.share_low)} to {format_hundredths(row.share_high)})"
    )
    gain = f"{format_signed(row.gain)} ({format_signed(row.gain_low)} to {format_signed(row.gain_high)})"
    return f"{row.method}: {share} of the gap between {row.untranslated} and {row.oracle}; gain {gain}"
