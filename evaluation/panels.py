"""Shared by all figures: line styles, marks, keys, and a grid of panels, one for each hospital or feature."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from evaluation.drawing import COLOURS, DASHES, MARKERS, belong_to, render_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lines = TypeVar("Lines")

WIDTH = 10.6  # inches; the page's width
PANEL = 2.5  # inches; a side of a small multiple
CHARACTER = 0.075  # inches; a letter of a name
SCALE, GAP, WIDEST = 2.1, 0.2, 4.6  # inches; the least width of a scale, between panels, the most of a panel with rows
ROW = 0.17  # inches; the row of a method
LINES = 8  # that are still distinguishable in one panel

SHAPES = {
    "o": "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
    "s": "M-3-3h6v6h-6z",
    "^": "M0-4L4 3h-8z",
    "D": "M0-4L4 0L0 4L-4 0z",
    "v": "M0 4L4-3h-8z",
    "P": "M-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "X": "M-4-2L-2-4L0-2L2-4L4-2L2 0L4 2L2 4L0 2L-2 4L-4 2L-2 0z",
}
"""The marks of `MARKERS` as paths about 0."""


def line_style(place: int) -> dict[str, Any]:
    """Colour and dash of the line at a place of the key."""
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def mark_style(place: int) -> dict[str, Any]:
    """Colour and shape of the mark at a place of the key."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]}


def draw_panels(
    shown: Mapping[str, Lines],
    draw: Callable[[Axes, str, Lines], None],
    *,
    alt: str,
    labels: tuple[str, str] = ("", ""),
    looks: Mapping[str, Mapping[str, Any]] | None = None,
    size: tuple[float, float] = (PANEL, PANEL),
    share_y: bool = False,
) -> str:
    """A panel for each (title, lines), and the key.

    draw: fills the axes of a panel. alt: names all of them. labels: of x and y. looks: name -> style, for the key.
    size: of a panel in inches.
    """

    def fill(axes: Axes, title: str, lines: Lines) -> None:
        draw(axes, title, lines)
        axes.set_xlabel(textwrap.fill(labels[0], int(size[0] / CHARACTER)))
        axes.set_ylabel(textwrap.fill(labels[1], int(size[1] / CHARACTER)))

    draws = {title: partial(fill, title=title, lines=lines) for title, lines in shown.items()}
    return render_panels(size, alt, draws, share_y=share_y) + write_key(looks or {})


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
    draw: Callable[[Axes, str], None],
    *,
    alt: str,
    label: str,
) -> str:
    """A panel for each group with a row for each method, the first one at the top; each has its own scale.

    draw: fills the axes of a group. label: of x.
    """
    from matplotlib.ticker import MaxNLocator  # slow to import

    size = row_panel_size(groups, methods)

    def fill(axes: Axes, group: str) -> None:
        axes.set_yticks(range(len(methods)), methods)
        for name, text in zip(methods, axes.get_yticklabels(), strict=True):
            belong_to(text, name)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines["left"].set_visible(False)
        axes.grid()
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
        draw(axes, group)
        axes.set_xlabel(textwrap.fill(label, int(size[0] / CHARACTER)))

    return render_panels(size, alt, {group: partial(fill, group=group) for group in groups})


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
    mark = f'<path d="{SHAPES[look["marker"]]}" transform="translate(15 6)"/>' if "marker" in look else ""
    return f'<svg aria-hidden="true" width="30" height="12" stroke="{colour}" fill="{colour}">{line}{mark}</svg>'
