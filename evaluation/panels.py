"""Shared by all figures: line styles, marks, keys, and a grid of panels, one for each hospital or feature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from evaluation.drawing import COLOURS, DASHES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Lines = TypeVar("Lines")

WIDTH = 10.6  # inches; the page's width
PANEL = 2.45  # inches; a side of a small multiple
CHARACTER = 0.075  # inches; a letter of a name
KEY = 0.66  # inches; of an entry of a key, without its name
ROW = 0.17  # inches; the row of a method
LINES = 8  # that are still distinguishable in one panel


def line_style(place: int) -> dict[str, Any]:
    """Colour and dash of the line at a place of the key."""
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def mark_style(place: int) -> dict[str, Any]:
    """Colour and shape of the mark at a place of the key."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]}


def panels_size(count: int, names: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches: square panels with title and axis label, and the rows of the key of names below."""
    columns = _column_count(count)
    width = 5.4 if count == 1 else min(WIDTH, 0.5 + PANEL * columns)
    keys = math.ceil(max(1, len(names)) / _entries_per_row(width, names))
    return width, (PANEL + 0.45) * math.ceil(max(1, count) / columns) + 0.22 * keys


def make_panels(figure: Figure, shown: Mapping[str, Lines], *, share_y: bool) -> list[tuple[Axes, tuple[str, Lines]]]:
    """Axes and (name, lines) of each panel; unused places of the grid are hidden."""
    columns = _column_count(len(shown))
    grid = figure.subplots(math.ceil(max(1, len(shown)) / columns), columns, squeeze=False, sharey=share_y)
    cells = list(grid.ravel())
    for axes in cells[len(shown) :]:
        axes.set_visible(False)
    return list(zip(cells, shown.items(), strict=False))


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


def make_row_panels(figure: Figure, groups: Sequence[str], methods: Sequence[str]) -> list[Axes]:
    """A panel for each group with a row for each method, the first one at the top; each has its own scale."""
    from matplotlib.ticker import MaxNLocator  # slow to import

    columns = _panels_per_row(groups, methods)
    cells = figure.subplots(math.ceil(len(groups) / columns), columns, squeeze=False, sharey=True).ravel()
    for axes in cells[len(groups) :]:
        axes.set_visible(False)
    for place, (axes, group) in enumerate(zip(cells, groups, strict=False)):
        axes.set_yticks(range(len(methods)), methods)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0, labelleft=place % columns == 0)
        axes.tick_params(axis="x", labelsize=8)
        axes.spines["left"].set_visible(False)
        axes.grid()
        axes.set_title(group)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
    return list(cells[: len(groups)])


def row_panels_size(groups: Sequence[str], methods: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches of the panels of `make_row_panels`."""
    down = math.ceil(max(1, len(groups)) / _panels_per_row(groups, methods))
    return WIDTH, 0.3 + down * (0.6 + ROW * max(1, len(methods)))


def draw_legend(figure: Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """A key below the figure, in as many columns as fit."""
    from matplotlib.lines import Line2D  # slow to import

    handles = [Line2D([], [], **look) for look in looks.values()]
    if handles:
        columns = min(len(handles), _entries_per_row(figure.get_figwidth(), list(looks)))
        figure.legend(handles, list(looks), loc="outside lower center", ncols=columns, handlelength=2.6)


def _column_count(count: int) -> int:
    """At most four panels side by side."""
    return max(1, min(4, count))


def _entries_per_row(width: float, names: Sequence[str]) -> int:
    """How many entries of a key fit side by side."""
    return max(1, int(width / (KEY + CHARACTER * max(map(len, names), default=0))))


def _panels_per_row(groups: Sequence[str], methods: Sequence[str]) -> int:
    """How many panels of `make_row_panels` fit next to the names of the methods."""
    fit = int((WIDTH - 0.2 - CHARACTER * max(map(len, methods), default=0)) / 1.35)
    return max(1, min(len(groups), fit))
