"""Confusion matrices of more than two classes: which class a model takes for which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from evaluation.drawing import INK, Picture, render_svg
from evaluation.histograms import Ints
from evaluation.metrics import ratio
from evaluation.panels import CHARACTER, WIDTH
from evaluation.wording import format_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 20  # classes of a matrix that can be read
CELL, EDGE = 0.42, 0.9  # inches; a cell where there is room, and the margin around a matrix
FITS = 0.3  # inches; the width of a cell that can hold a number


def confusion_matrices(
    shown: Mapping[str, Mapping[str, Ints]],
    names: Sequence[str],
    *,
    examples: str = "images",
    noised: bool = False,
) -> list[Picture]:
    """A matrix for each (site, method): rows are true classes, columns predicted ones. None for more than `MOST`.

    Args:
        shown: site -> method -> (C, C) counts.
        names: of the classes.
        examples: their name.
        noised: whether the counts were sent with noise.
    """
    matrices = {(site, m): counts for site, by_method in shown.items() for m, counts in by_method.items()}
    if not matrices or len(names) > MOST:
        return []
    titles = {key: f"{key[0]}: {key[1]}" if len(shown) > 1 else key[1] for key in matrices}
    alt = (
        "Confusion matrices. "
        + "; ".join(f"{titles[key]}: {_describe_matrix(matrix, names)}" for key, matrix in matrices.items())
        + "."
    )
    label_width = CHARACTER * max(map(len, names))
    side = min(CELL * len(names), WIDTH - EDGE - label_width)
    columns = max(1, min(len(matrices), int(WIDTH / (side + EDGE + label_width))))
    rows = math.ceil(len(matrices) / columns)
    size = (columns * (side + EDGE + label_width), rows * (side + EDGE + label_width))

    def draw(figure: Figure) -> None:
        cells = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in cells[len(matrices) :]:
            axes.set_visible(False)
        for axes, (key, counts) in zip(cells, matrices.items(), strict=False):
            _draw_matrix(axes, counts, names, side / len(names) >= FITS)
            axes.set_title(titles[key])

    caption = (
        f"How many {examples} of each class (row) each model took for which (column); the darker, the larger the share "
        "of the row. Right answers are on the diagonal."
    )
    caption += " Counts were told with noise, and rounded." if noised else ""
    return [Picture("Confusion matrices", caption, render_svg(size, alt, draw))]


def _draw_matrix(axes: Axes, counts: Ints, names: Sequence[str], numbers: bool) -> None:
    """Draw one matrix, shaded by the share of each row. numbers: whether its cells hold the counts."""
    import matplotlib  # slow to import

    shares = np.nan_to_num(ratio(counts, counts.sum(axis=-1, keepdims=True)))
    axes.imshow(shares, cmap=matplotlib.colormaps["Blues"], vmin=0, vmax=1, interpolation="nearest")
    for i, j in np.ndindex(counts.shape):
        if numbers and counts[i, j]:
            ink = "#ffffff" if shares[i, j] > 0.5 else "#111111"
            axes.text(j, i, format_whole(int(counts[i, j])), ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=60 if max(map(len, names)) > 4 else 0)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("predicted", color=INK)
    axes.set_ylabel("true", color=INK)


def _describe_matrix(counts: Ints, names: Sequence[str]) -> str:
    """How often each true class was predicted as which class."""
    parts = []
    for name, row in zip(names, counts, strict=True):
        predictions = ", ".join(
            f"{number} {taken}" for taken, number in zip(names, row.tolist(), strict=True) if number
        )
        parts.append(f"of {name} {predictions or 'none'}")
    return "; ".join(parts)
