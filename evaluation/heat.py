"""Heat maps: the cross-site matrix, the coordinator's matrices between sites, a site's notes about others by round, how
routing mixes models.

Values are printed in their cells if they fit; the alternative text has them all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluation.drawing import INK, Picture, render_svg
from evaluation.histograms import Floats
from evaluation.panels import CHARACTER, WIDTH
from evaluation.wording import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL, ROW = (0.85, 0.45)  # inches; a cell where there is room
LOW_ROW = 0.25  # inches; for many rows, as layers of a network
FITS = 0.5  # inches; the width of a cell that can hold a number
PALE = 0.05  # least half-width of the colour scale, so that small changes look small
TICKS = 20  # labels along an axis


def draw_cross_site(models: Sequence[str], tests: Sequence[str], values: Floats, measure: str, method: str) -> Picture:
    """Heat map of `protocols.score_matrix`: the model of each site (rows) on the patients of each site (columns)."""
    parts = [
        f"{m} on {t} {format_number(float(values[i, j]))}" for i, m in enumerate(models) for j, t in enumerate(tests)
    ]
    alt = f"{measure} of {method}: " + "; ".join(parts) + "."
    low, high = (0.5, 1.0) if np.isnan(values).all() or np.nanmin(values) >= 0.5 else (float(np.nanmin(values)), 1.0)

    def draw(figure: Figure) -> None:
        axes = _draw_cells(figure, models, tests, values, (low, high), measure)
        axes.set(xlabel="tested on the patients of", ylabel="model of")

    caption = "The diagonal is private testing; a column shows which hospitals' models suit these patients."
    return Picture(f"Cross-site generalization: {method}", caption, render_svg(_figure_size(models, tests), alt, draw))


def draw_site_matrix(sites: Sequence[str], values: Floats, name: str, method: str) -> Picture:
    """A matrix (K, K) of the coordinator after the last round: what each site (row) takes from each site (column)."""
    parts = [
        f"{site} from {other} {format_number(float(value))}"
        for site, row in zip(sites, values, strict=True)
        for other, value in zip(sites, row, strict=True)
    ]
    alt = f"{name} of {method} between hospitals: " + "; ".join(parts) + "."

    def draw(figure: Figure) -> None:
        axes = _draw_cells(figure, sites, sites, values, _colour_limits(values), name)
        axes.set(xlabel="takes from", ylabel="hospital")

    caption = (
        "How much each hospital (row) takes from each (column), as the coordinator knows it after the last round. "
        "Notes that hospitals do not send, as APPLE's relationships, are on their own pages only."
    )
    return Picture(f"{method}: {name} between hospitals", caption, render_svg(_figure_size(sites, sites), alt, draw))


def draw_round_matrix(sites: Sequence[str], rounds: Sequence[int], values: Floats, name: str, method: str) -> Picture:
    """A site's notes about each site (row) in each round (column); NaN = no note."""
    last = [f"{site} {format_number(float(values[i, -1]))}" for i, site in enumerate(sites)]
    first = [f"{site} {format_number(float(values[i, 0]))}" for i, site in enumerate(sites)]
    alt = f"{name} of {method} by hospital and round. Round {rounds[0]}: {', '.join(first)}. "
    alt += f"Round {rounds[-1]}: {', '.join(last)}."

    def draw(figure: Figure) -> None:
        axes = _draw_cells(figure, sites, [str(round_) for round_ in rounds], values, _colour_limits(values), name)
        axes.set_xlabel("round")

    caption = f"{name} that this hospital gives each hospital, itself among them, after each round."
    return Picture(f"{method}: {name} by round", caption, render_svg(_figure_size(sites, rounds), alt, draw))


def draw_mixture(layers: Sequence[str], experts: Sequence[str], values: Floats, spread: Floats, label: str) -> Picture:
    """Mean coefficient of each model (column) in each layer (row) of a routed network, and its standard deviation over
    images: both (L, K + 1).
    """
    start, models = (
        1 / len(experts),
        [f"{name} {format_number(float(v))}" for name, v in zip(experts, values[0], strict=True)],
    )
    means = ", ".join(f"{name} {format_number(float(v))}" for name, v in zip(experts, values.mean(axis=0), strict=True))
    alt = f"Coefficients of {label}, mean over layers: {means}. In {layers[0]}: {', '.join(models)}."
    reach = max(PALE, float(np.abs(values - start).max()))

    def draw(figure: Figure) -> None:
        limits = (start - reach, start + reach)
        axes = _draw_cells(figure, layers, experts, values, limits, "coefficient", colours="PuOr_r")
        axes.set(xlabel="model of", ylabel="layer")

    caption = (
        f"Coefficient of each model in each layer's kernel, mean over this hospital's images. White is "
        f"1/{len(experts)}, the start; coefficients are between 0 and 1 and need not sum to 1. Between images "
        f"they have a standard deviation of at most {float(spread.max()):.2g}."
    )
    return Picture(
        f"{label}: how models are mixed", caption, render_svg(_figure_size(layers, experts, LOW_ROW), alt, draw)
    )


def _draw_cells(
    figure: Figure,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Floats,
    limits: tuple[float, float],
    label: str,
    *,
    colours: str = "",
) -> Axes:
    """Cells with their values, names of rows and columns, and the colour bar. Other colours if values are below 0, or
    as named.
    """
    import matplotlib  # slow to import

    axes, (low, high) = figure.subplots(), limits
    painted = matplotlib.colormaps[colours or ("PuOr_r" if low < 0 else "cividis")]
    image = axes.imshow(values, cmap=painted, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    if _cell_width(rows, columns) >= FITS:
        for i, j in np.ndindex(values.shape):
            red, green, blue, _ = painted(image.norm(values[i, j]))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
            ink = INK if math.isnan(values[i, j]) else "#ffffff" if dark else "#111111"
            axes.text(j, i, format_number(float(values[i, j])), ha="center", va="center", color=ink)
    step = 1 if not columns[0].isdigit() else math.ceil(len(columns) / TICKS)
    crowded = max(map(len, columns)) * CHARACTER > _cell_width(rows, columns) * step
    axes.set_xticks(range(0, len(columns), step), columns[::step], rotation=60 if crowded else 0)
    axes.set_yticks(range(len(rows)), rows)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label=label, shrink=0.9).outline.set_visible(False)
    return axes


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
