"""Shared by all figures: line styles, marks, keys, and panels side by side, one for each hospital or feature."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from evaluation.axes import SMALL, Axis, Label, Panel, Shape, name_method, settle_axes, write_mark, write_panel
from evaluation.drawing import COLOURS, DASHES, MARKERS

Lines = TypeVar("Lines")

WIDTH = 10.6  # inches; the page's width
PANEL = 2.5  # inches; a side of a small multiple
CHARACTER = 0.075  # inches; a letter of a name
SCALE, GAP, WIDEST = 2.1, 0.2, 4.6  # inches; the least width of a scale, between panels, the most of a panel with rows
ROW = 0.17  # inches; the row of a method
DASHED, DOTTED, FINE = (0, (4, 2)), (0, (2, 2)), (0, (1, 1.65))
SHARES = Axis(low=-0.02, high=1.02, ticks=(0, 0.5, 1))
"""Of shares, from 0 to 1."""
LINES = 8  # that are still distinguishable in one panel


def line_style(place: int) -> dict[str, Any]:
    """Colour and dash of the line at a place of the key."""
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def mark_style(place: int) -> dict[str, Any]:
    """Colour and shape of the mark at a place of the key."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]}


def draw_upright(x: float, linestyle: Any = "-") -> Shape:
    """A line from the lower to the upper end of a panel."""
    return Shape(x=(x, x), y=(0, 1), across="y", linewidth=0.9, linestyle=linestyle)


def draw_level(y: float, linestyle: Any = "-") -> Shape:
    """A line from the left to the right end of a panel."""
    return Shape(x=(0, 1), y=(y, y), across="x", linewidth=0.9, linestyle=linestyle)


def draw_diagonal(top: float = 1.0) -> Shape:
    """The line on which both axes have the same value, up to the top."""
    return Shape(x=(0, top), y=(0, top), linewidth=0.7, alpha=0.4, linestyle=DOTTED)


def draw_span(ends: tuple[float, float], y: float, **look: Any) -> Shape:
    """A line from one end to the other at a height."""
    return Shape(x=ends, y=(y, y), **look)


def draw_bars(x: Sequence[float], lows: Sequence[float], highs: Sequence[float], **look: Any) -> Shape:
    """Upright lines from low to high, (n,) each."""
    places = [each for at in x for each in (at, at, math.nan)]
    ends = [each for low, high in zip(lows, highs, strict=True) for each in (low, high, math.nan)]
    return Shape(x=places, y=ends, **look)


def draw_panels(
    shown: Mapping[str, Lines],
    draw: Callable[[str, Lines], Panel],
    *,
    alt: str,
    labels: tuple[str, str] = ("", ""),
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    size: tuple[float, float] = (PANEL, PANEL),
    share_y: bool = False,
) -> str:
    """A panel for each (title, lines), and the key.

    draw: what a panel shows. alt: names all of them. labels: of x and y. looks: name -> style, for the key. size: of a
    panel in inches. share_y: one scale of y for all.
    """
    wrapped = [textwrap.fill(label, int(side / CHARACTER)) for label, side in zip(labels, size, strict=True)]
    panels = {title: draw(title, lines) for title, lines in shown.items()}
    panels = {
        title: replace(panel, x=replace(panel.x, label=wrapped[0]), y=replace(panel.y, label=wrapped[1]))
        for title, panel in panels.items()
    }
    if share_y and panels:
        scales = [settle_axes(panel, size).y for panel in panels.values()]
        low, high = min(scale.low or 0.0 for scale in scales), max(scale.high or 0.0 for scale in scales)
        panels = {title: replace(panel, y=replace(panel.y, low=low, high=high)) for title, panel in panels.items()}
    return write_panels(panels, size, alt) + write_key(looks or {})


def write_panels(panels: Mapping[str, Panel], size: tuple[float, float], alt: str) -> str:
    """A small SVG for each panel, by title, of (width, height) inches: as many side by side as the page has room for.
    They are one picture, named `alt`.
    """
    drawings = (write_panel(panel, size, f"{alt}{place}") for place, panel in enumerate(panels.values()))
    cells = "".join(
        f'<div class="panel"{name_method(panel.method)}>{f"<p>{html.escape(title)}</p>" if title else ""}'
        f'<svg aria-hidden="true" {drawing}</svg></div>'
        for (title, panel), drawing in zip(panels.items(), drawings, strict=True)
    )
    return f'<div class="panels" role="img" aria-label="{html.escape(alt, quote=True)}">{cells}</div>'


def split_names(names: Sequence[str], always: str | None = None) -> list[tuple[str, list[str]]]:
    """Groups of names, each small enough for one picture, with `always` in each of them; sizes differ by at most 1.

    Returns: a suffix for the title (empty if there is only one group), and its names. Names of a group are consecutive,
    so that no two have the same colour.
    """
    if len(names) <= LINES:
        return [("", list(names))] if names else []
    first, other_names = [name for name in names if name == always], [name for name in names if name != always]
    count = math.ceil(len(other_names) / (LINES - 1))
    ends = [round(len(other_names) * i / count) for i in range(count + 1)]
    return [
        (f", part {i} of {count}", first + other_names[low:high]) for i, (low, high) in enumerate(pairwise(ends), 1)
    ]


def draw_row_panels(
    groups: Sequence[str],
    methods: Sequence[str],
    draw: Callable[[str], Sequence[Shape | Label]],
    *,
    alt: str,
    label: str,
    ends: Mapping[str, tuple[float, float]] | None = None,
    has_method_panels: bool = False,
) -> str:
    """A panel for each group with a row for each method, the first one at the top; each has its own scale.

    draw: what a group shows; the row of a method is at its number. label: of x. ends: of x, by group; without them
    those of what is drawn. has_method_panels: the groups are methods, and rows are of something else.
    """
    size = row_panel_size(groups, methods)
    ticks, bottom, of_methods = range(len(methods)), len(methods) - 0.4, not has_method_panels
    rows = Axis(low=bottom, high=-0.6, ticks=ticks, names=methods, line=False, grid=True, methods=of_methods)
    x = Axis(label=textwrap.fill(label, int(size[0] / CHARACTER)), most=3, grid=True, size=SMALL)
    panels = {}
    for group in groups:
        low, high = (None, None) if ends is None else ends[group]
        panel = Panel(shapes=draw(group), x=replace(x, low=low, high=high), y=rows)
        panels[group] = replace(panel, method=group) if has_method_panels else panel
    return write_panels(panels, size, alt)


def row_panel_size(groups: Sequence[str], methods: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches of a panel of `draw_row_panels`: as many fill a row of the page as fit."""
    least = CHARACTER * max(map(len, methods), default=0) + SCALE
    columns = max(1, min(len(groups), int(WIDTH / least)))
    return min(WIDTH, max(least, min(WIDEST, WIDTH / columns - GAP))), 0.65 + ROW * max(1, len(methods))


def write_key(looks: Mapping[str, Mapping[str, Any]]) -> str:
    """The names of lines and marks with a sample of each, as a list; nothing for no names."""
    entries = "".join(
        f'<li data-key="{html.escape(name, quote=True)}">{_draw_sample(look)}{html.escape(name)}</li>'
        for name, look in looks.items()
    )
    return f'<ul class="key-list">{entries}</ul>' if entries else ""


def _draw_sample(look: Mapping[str, Any]) -> str:
    """A line and a mark as they are in the figure."""
    colour, dash = look["color"], look.get("linestyle")
    dashes = "" if dash in (None, "-") else " ".join(f"{1.5 * part:g}" for part in dash[1])
    line = f'<path d="M0 6H30" fill="none" stroke-width="1.8" stroke-dasharray="{dashes}"/>' if dash else ""
    mark = f'<path d="{write_mark(look["marker"])}" transform="translate(15 6)"/>' if "marker" in look else ""
    return f'<svg aria-hidden="true" width="30" height="12" stroke="{colour}" fill="{colour}">{line}{mark}</svg>'
