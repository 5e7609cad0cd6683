"""Heat maps: the cross-site matrix, the coordinator's matrices between sites, a site's notes about others by round, how
routing mixes models.

Values are printed in their cells if they fit; the alternative text has them all.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import numpy as np

from evaluation.axes import FONT, Axis, Colours, Image, Label, Panel, Shape, write_panel
from evaluation.drawing import INK, Picture, png_uri
from evaluation.histograms import Floats
from evaluation.panels import CHARACTER, WIDTH
from evaluation.wording import format_number

CELL, ROW = (0.85, 0.45)  # inches; a cell where there is room
LOW_ROW = 0.25  # inches; for many rows, as layers of a network
FITS = 0.5  # inches; the width of a cell that can hold a number
PALE = 0.05  # least half-width of the colour scale, so that small changes look small
TICKS = 20  # labels along an axis
WIDE = 5.8  # inches; wider figures are scrolled on a telephone
RAMP = 64  # colours of the bar
BLANK = (255, 255, 255, 0)  # where there is no value


def draw_cross_site(models: Sequence[str], tests: Sequence[str], values: Floats, measure: str, method: str) -> Picture:
    """Heat map of `protocols.score_matrix`: the model of each site (rows) on the patients of each site (columns)."""
    parts = _list_values([f"{model} on {test}" for model in models for test in tests], values.ravel())
    alt = f"{measure} of {method}: " + "; ".join(parts) + "."
    low, high = (0.5, 1.0) if np.isnan(values).all() or np.nanmin(values) >= 0.5 else (float(np.nanmin(values)), 1.0)

    drawing = _draw_cells(models, tests, values, (low, high), (measure, "tested on the patients of", "model of"), alt)
    caption = "The diagonal is private testing; a column shows which hospitals' models suit these patients."
    return Picture(f"Cross-site generalization: {method}", caption, drawing, method)


def draw_site_matrix(sites: Sequence[str], values: Floats, name: str, method: str) -> Picture:
    """A matrix (K, K) of the coordinator after the last round: what each site (row) takes from each site (column)."""
    parts = _list_values([f"{site} from {other}" for site in sites for other in sites], values.ravel())
    alt = f"{name} of {method} between hospitals: " + "; ".join(parts) + "."

    drawing = _draw_cells(sites, sites, values, _colour_limits(values), (name, "takes from", "hospital"), alt)
    caption = (
        "How much each hospital (row) takes from each (column), as the coordinator knows it after the last round. "
        "Notes that hospitals do not send, as APPLE's relationships, are on their own pages only."
    )
    return Picture(f"{method}: {name} between hospitals", caption, drawing, method)


def draw_round_matrix(sites: Sequence[str], rounds: Sequence[int], values: Floats, name: str, method: str) -> Picture:
    """A site's notes about each site (row) in each round (column); NaN = no note."""
    first, last = _list_values(sites, values[:, 0]), _list_values(sites, values[:, -1])
    alt = f"{name} of {method} by hospital and round. Round {rounds[0]}: {', '.join(first)}. "
    alt += f"Round {rounds[-1]}: {', '.join(last)}."

    columns = [str(round_) for round_ in rounds]
    drawing = _draw_cells(sites, columns, values, _colour_limits(values), (name, "round", ""), alt)
    caption = f"{name} that this hospital gives each hospital, itself among them, after each round."
    return Picture(f"{method}: {name} by round", caption, drawing, method)


def draw_mixture(layers: Sequence[str], experts: Sequence[str], values: Floats, spread: Floats, label: str) -> Picture:
    """Mean coefficient of each model (column) in each layer (row) of a routed network, and its standard deviation over
    images: both (L, K + 1).
    """
    means, models = _list_values(experts, values.mean(axis=0)), _list_values(experts, values[0])
    start = 1 / len(experts)
    alt = f"Coefficients of {label}, mean over layers: {', '.join(means)}. In {layers[0]}: {', '.join(models)}."
    reach = max(PALE, float(np.abs(values - start).max()))

    limits, labels = (start - reach, start + reach), ("coefficient", "model of", "layer")
    drawing = _draw_cells(layers, experts, values, limits, labels, alt, colours="PuOr_r", height=LOW_ROW)
    caption = (
        f"Coefficient of each model in each layer's kernel, mean over this hospital's images. White is "
        f"1/{len(experts)}, the start; coefficients are between 0 and 1 and need not sum to 1. Between images "
        f"they have a standard deviation of at most {float(spread.max()):.2g}."
    )
    return Picture(f"{label}: how models are mixed", caption, drawing, label)


def _list_values(names: Sequence[str], values: Floats) -> list[str]:
    """Values (n,) in words, each behind its name."""
    return [f"{name} {format_number(float(value))}" for name, value in zip(names, values, strict=True)]


def _draw_cells(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Floats,
    limits: tuple[float, float],
    labels: tuple[str, str, str],
    alt: str,
    *,
    colours: str = "",
    height: float = ROW,
) -> str:
    """An SVG named `alt` of cells with their values, names of rows and columns, and the bar of colours. labels: of the
    bar, below and at the left. Other colours if values are below 0, or as named. height: of a row in inches.
    """
    import matplotlib  # slow to import

    low, high = limits
    painted = matplotlib.colormaps[colours or ("PuOr_r" if low < 0 else "cividis")]
    paint = painted((values - low) / ((high - low) or 1.0), bytes=True)
    paint[np.isnan(values)] = BLANK
    cells: list[Shape | Label | Image] = [Image(uri=png_uri(paint), columns=len(columns), rows=len(rows))]
    if _cell_width(rows, columns) >= FITS:
        for i, j in np.ndindex(values.shape):
            is_dark = paint[i, j, :3] @ (0.2126, 0.7152, 0.0722) < 0.5 * 255
            ink = INK if math.isnan(values[i, j]) else "#ffffff" if is_dark else "#111111"
            cells.append(Label(x=j, y=i, text=format_number(float(values[i, j])), color=ink, size=FONT))
    step = 1 if not columns[0].isdigit() else math.ceil(len(columns) / TICKS)
    is_crowded = max(map(len, columns)) * CHARACTER > _cell_width(rows, columns) * step
    ramp = png_uri(painted(np.linspace(1, 0, RAMP)[:, None], bytes=True)[..., :3])
    across, down = len(columns) - 0.5, len(rows) - 0.5
    ticks = range(0, len(columns), step)
    x = Axis(label=labels[1], low=-0.5, high=across, ticks=ticks, names=columns[::step], turned=is_crowded)
    y = Axis(label=labels[2], low=down, high=-0.5, ticks=range(len(rows)), names=rows)
    panel = Panel(shapes=cells, x=x, y=y, colours=Colours(uri=ramp, axis=Axis(label=labels[0], low=low, high=high)))
    size = _figure_size(rows, columns, height)
    wide = ' class="wide"' if size[0] > WIDE else ""
    name = html.escape(alt, quote=True)
    return f'<svg{wide} role="img" aria-label="{name}" {write_panel(panel, size, alt)}</svg>'


def _colour_limits(values: Floats) -> tuple[float, float]:
    """From 0 to the largest value; symmetric around 0 if there are negative values."""
    finite = values[np.isfinite(values)]
    top = float(np.abs(finite).max()) if finite.size and finite.any() else 1.0
    return (-top if finite.size and finite.min() < 0 else 0.0), top


def _margin_width(rows: Sequence[str]) -> float:
    """Inches next to the cells, for the names of the rows and the colour bar."""
    return 1.7 + CHARACTER * max(map(len, rows))


def _cell_width(rows: Sequence[str], columns: Sequence[object]) -> float:
    """Width of a cell in inches."""
    return min(CELL, (WIDTH - _margin_width(rows)) / len(columns))


def _figure_size(rows: Sequence[str], columns: Sequence[object], row: float = ROW) -> tuple[float, float]:
    """Width and height of a figure in inches; rows are thin where a cell cannot hold a number."""
    room = _cell_width(rows, columns)
    return _margin_width(rows) + max(1.2, room * len(columns)), 1.3 + (row if room >= FITS else ROW / 2) * len(rows)
