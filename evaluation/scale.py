"""A scale on which a model's scores spread out, learned from noised counts of the scores without their labels.

Scores of one model may fill [0, 1], those of another all lie between 0.45 and 0.55, or below 0.01: bins of equal width
then hold all patients in one bin, and the model looks useless. So before a hospital counts scores by class, it spends a
small share of the noise's budget to learn where scores lie: a tree of `LEVELS` histograms of all scores, each cell of
one divided into `BRANCH` of the next (Hay et al., Boosting the accuracy of differentially private histograms through
consistency, VLDB 2010). Its cells are equal on the scale x / (1 + |x|) of the log odds x = log(p / (1 - p)): fine near
0.5, and still telling 0.001 from 0.0001. What follows from the noised tree costs nothing more: the density
(`compute_density`), and the edges (`compute_edges`) between bins that hold about equally many patients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BRANCH, LEVELS = 4, 5
CELLS = BRANCH**LEVELS
TILT, STEEP = 0.7, 4
HALF = CELLS // 2
"""The first cell of probabilities of 0.5 and more."""
TREE = sum(BRANCH**level for level in range(1, LEVELS + 1))
"""Cells of all levels together."""


def cell_of(probability: ArrayLike) -> Ints:
    """The cell, 0 to CELLS - 1, of each probability."""
    p = np.asarray(probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        x = np.log(p) - np.log1p(-p)
    place = np.sign(x) * (1 - 1 / (1 + np.abs(x)))
    cell = np.clip(((place + 1) / 2 * CELLS).astype(np.int64), 0, CELLS - 1)
    return np.asarray(np.where(p < 0.5, np.minimum(cell, HALF - 1), np.maximum(cell, HALF)), dtype=np.int64)


def cells_at_level(cells: Ints, level: int) -> Ints:
    """The cells of a level, 1 to LEVELS, that hold these cells."""
    return np.asarray(cells // BRANCH ** (LEVELS - level), dtype=np.int64)


def compute_density(levels: Sequence[Floats], patients: float) -> Floats:
    """(CELLS,) patients in each cell, none negative, `patients` in all, from the noised levels from top to bottom.

    What a cell got is divided among its children: their counts are projected onto those that are possible.
    """
    cells = np.full(1, float(patients))
    for counts in levels:
        cells = project_onto_simplex(np.asarray(counts, np.float64).reshape(len(cells), BRANCH), cells).ravel()
    return cells


def compute_edges(density: Floats, bins: int, *, share: float, half: bool) -> Ints:
    """(bins - 1,): the first cell of every bin but the lowest, strictly rising.

    Where the class is half of the patients, bins hold equally many. A rarer class has the highest scores of a model
    that knows it, so bins grow narrower there: their ends are at equal steps of (1 - w) u + w u^STEEP of the share u of
    patients below, with w = TILT (1 - 2 share); a class of more than half is the other's mirror image.

    Args:
        density: (CELLS,) patients in each cell.
        bins: how many.
        share: of patients who have the class.
        half: the edge that is nearest to the probability 0.5 is moved there.
    """
    below = np.concatenate([[0.0], np.cumsum(density)])
    edge_cells = np.abs(below[:, None] - below[-1] * steps(bins, share)).argmin(axis=0).astype(np.int64)
    lowest = np.arange(1, bins)
    edge_cells = np.clip(edge_cells, lowest, lowest + CELLS - bins)  # a cell at least for every bin
    at = int(np.abs(edge_cells - HALF).argmin()) if half else 0
    edge_cells[at] = HALF if half else edge_cells[at]
    for place in range(at - 1, -1, -1):
        edge_cells[place] = min(edge_cells[place], edge_cells[place + 1] - 1)
    for place in range(at + 1, bins - 1):
        edge_cells[place] = max(edge_cells[place], edge_cells[place - 1] + 1)
    return np.asarray(edge_cells, dtype=np.int64)


def steps(bins: int, share: float) -> Floats:
    """(bins - 1,): the shares of patients below each edge."""
    if share > 0.5:
        return np.asarray(1 - steps(bins, 1 - share)[::-1], dtype=np.float64)
    weight, u = TILT * (1 - 2 * share), np.linspace(0, 1, 2001)
    return np.asarray(np.interp(np.arange(1, bins) / bins, (1 - weight) * u + weight * u**STEEP, u))


def project_onto_simplex(values: Floats, total: Floats) -> Floats:
    """(..., d) projected onto {h >= 0, sum h = total}, total (...,) >= 0 (Duchi et al. 2008, figure 1)."""
    falling = -np.sort(-values, axis=-1)
    excess = np.cumsum(falling, axis=-1) - total[..., None]
    number = np.arange(1, values.shape[-1] + 1)
    support_size = np.maximum((falling * number >= excess).sum(axis=-1, keepdims=True), 1)
    return np.asarray(
        np.maximum(values - np.take_along_axis(excess, support_size - 1, axis=-1) / support_size, 0.0), dtype=np.float64
    )


def tree_levels(flat: Floats) -> list[Floats]:
    """(TREE,) as the levels, from top to bottom."""
    return np.split(flat, np.cumsum([BRANCH**level for level in range(1, LEVELS)]))
