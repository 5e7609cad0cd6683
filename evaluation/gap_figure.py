"""Shares of the oracle gap: a panel for each hospital and mean, a row for each line."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evaluation.axes import Label, Shape, find_limits
from evaluation.drawing import COLOURS, Picture
from evaluation.panels import DASHED, draw_row_panels, draw_span, draw_upright
from evaluation.rows import PRIVATE, GapRow
from evaluation.wording import format_hundredths, format_signed

SHOWN = (-1.0, 2.0)
"""Shares farther out are cut off: where the gap is small, an interval may reach far."""


def draw_gap_shares(rows: Sequence[GapRow]) -> Picture | None:
    """Shares with their intervals, between untranslated images (0) and the oracle (1); None where no share is known."""
    known = [row for row in rows if math.isfinite(row.share)]
    if not known:
        return None
    methods = list(dict.fromkeys(row.method for row in known))
    groups = list(dict.fromkeys(_panel_title(row) for row in known))

    by_group = {group: [row for row in known if _panel_title(row) == group] for group in groups}

    def draw(group: str) -> list[Shape | Label]:
        shapes: list[Shape | Label] = [draw_upright(0), draw_upright(1, DASHED)]
        for row in by_group[group]:
            y, look = methods.index(row.method), {"color": COLOURS[0], "method": row.method}
            shapes.append(draw_span(_cut_interval(row), y, linewidth=1.6, **look))
            texts = [f"{group}, {_describe_share(row)}"]
            shapes.append(Shape(x=row.share, y=y, marker="o", texts=texts, color=COLOURS[0], method=row.method))
        return shapes

    alt = f"Share of the oracle gap in {known[0].measure}. " + "; ".join(
        f"{_panel_title(row)}, {_describe_share(row)}" for row in known
    )
    caption = (
        "Line at 0: as good as untranslated images; dashed line at 1: as good as the oracle. Bars are 95 % intervals "
        f"over patients; they are cut off at {SHOWN[0]:g} and {SHOWN[1]:g}."
    )
    label = f"share of the oracle gap in {known[0].measure}"
    ends = {group: _find_ends(group_rows) for group, group_rows in by_group.items()}
    drawing = draw_row_panels(groups, methods, draw, alt=f"{alt}.", label=label, ends=ends)
    return Picture("Share of the oracle gap", caption, drawing)


def _cut_interval(row: GapRow) -> tuple[float, float]:
    """The interval of a share, without what lies farther out than `SHOWN`."""
    low, high = np.clip((row.share_low, row.share_high), *SHOWN)
    return float(low), float(high)


def _find_ends(rows: Sequence[GapRow]) -> tuple[float, float]:
    """The ends of a panel's scale: 0 and 1 are on it, and nothing farther out than `SHOWN`."""
    low, high = find_limits([(0, 1, row.share, *_cut_interval(row)) for row in rows])
    return max(SHOWN[0], min(low, -0.1)), min(SHOWN[1], max(high, 1.1))


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
