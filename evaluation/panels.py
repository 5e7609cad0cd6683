"""What the figures share: how a line, a mark and a key look, and a grid of panels, one for each hospital or feature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evaluation.drawing import COLOURS, DASHES, MARKERS

Lines = TypeVar("Lines")

WIDTH = 10.6  # inches; the page's width
PANEL = 2.45  # inches; a side of a small multiple
ROOM = 1.3  # inches; an entry of a key


def line(place: int) -> dict[str, Any]:
    """Colour and dash of the line at a place of the key."""
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash, "linewidth": 1.5}


def mark(place: int) -> dict[str, Any]:
    """Colour and shape of the mark at a place of the key."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]}


def wide(count: int, methods: int) -> tuple[float, float]:
    """Width and height in inches: square panels with title and axis label, and the rows of the key below."""
    columns = _columns(count)
    width = 5.4 if count == 1 else min(WIDTH, 0.5 + PANEL * columns)
    keys = math.ceil(max(1, methods) / max(1, int(width / ROOM)))
    return width, (PANEL + 0.45) * math.ceil(max(1, count) / columns) + 0.22 * keys


def panels(figure: Figure, shown: Mapping[str, Lines], *, share_y: bool) -> list[tuple[Axes, tuple[str, Lines]]]:
    """Axes and (name, lines) of each panel; places of the grid that stay empty are hidden."""
    columns = _columns(len(shown))
    grid = figure.subplots(math.ceil(max(1, len(shown)) / columns), columns, squeeze=False, sharey=share_y)
    cells = list(grid.ravel())
    for axes in cells[len(shown) :]:
        axes.set_visible(False)
    return list(zip(cells, shown.items(), strict=False))


def legend(figure: Figure, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """A key below the figure, in as many columns as there is room for."""
    handles = [Line2D([], [], **look) for look in looks.values()]
    if handles:
        columns = max(1, min(len(handles), int(figure.get_figwidth() / ROOM)))
        figure.legend(handles, list(looks), loc="outside lower center", ncols=columns, handlelength=2.6)


def _columns(count: int) -> int:
    return max(1, min(4, count))
