"""Confusion matrices of more than two classes: which class a model takes for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evaluation.axes import Axis, Image, Label, Panel, Shape
from evaluation.drawing import Picture, png_uri
from evaluation.histograms import Ints
from evaluation.metrics import ratio
from evaluation.panels import CHARACTER, WIDTH, draw_panels
from evaluation.wording import format_whole

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
    size = (side + EDGE + label_width, side + EDGE + label_width)

    def draw(_: str, matrix: tuple[str, Ints]) -> Panel:
        method, counts = matrix
        return replace(_draw_matrix(counts, names, side / len(names) >= FITS), method=method)

    caption = (
        f"How many {examples} of each class (row) each model took for which (column); the darker, the larger the share "
        "of the row. Right answers are on the diagonal."
    )
    caption += " Counts were told with noise, and rounded." if noised else ""
    shown_matrices = {titles[key]: (key[1], matrix) for key, matrix in matrices.items()}
    drawing = draw_panels(shown_matrices, draw, alt=alt, labels=("predicted", "true"), size=size)
    return [Picture("Confusion matrices", caption, drawing)]


def _draw_matrix(counts: Ints, names: Sequence[str], numbers: bool) -> Panel:
    """One matrix, shaded by the share of each row. numbers: whether its cells hold the counts."""
    import matplotlib  # slow to import

    shares = np.nan_to_num(ratio(counts, counts.sum(axis=-1, keepdims=True)))
    colours = np.round(255 * matplotlib.colormaps["Blues"](shares)[..., :3]).astype(np.uint8)
    shapes: list[Shape | Label | Image] = [Image(uri=png_uri(colours), columns=len(names), rows=len(names))]
    for i, j in np.ndindex(counts.shape):
        if numbers and counts[i, j]:
            ink = "#ffffff" if shares[i, j] > 0.5 else "#111111"
            shapes.append(Label(x=j, y=i, text=format_whole(int(counts[i, j])), color=ink))
    axis = Axis(ticks=range(len(names)), names=names, line=False, low=-0.5, high=len(names) - 0.5)
    x = replace(axis, turned=max(map(len, names)) > 4)
    return Panel(shapes=shapes, x=x, y=replace(axis, low=axis.high, high=axis.low), square=True)


def _describe_matrix(counts: Ints, names: Sequence[str]) -> str:
    """How often each true class was predicted as which class."""
    parts = []
    for name, row in zip(names, counts, strict=True):
        predictions = ", ".join(
            f"{number} {taken}" for taken, number in zip(names, row.tolist(), strict=True) if number
        )
        parts.append(f"of {name} {predictions or 'none'}")
    return "; ".join(parts)
