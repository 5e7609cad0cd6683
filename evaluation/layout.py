"""From a few noised bins to a histogram on the scale.

Scores of both classes that share a bin would count as tied, and a model that separates them would look worse than it
is. So within a bin each class is laid out as if the log odds of the class rose evenly on the normal score of the rank
(the binormal model, Dorfman and Alf 1969), as fast as the bins themselves say. Only noised counts are used. Measured
(benchmarks/studies/noised_scores.py): this halves what bins alone lose, and where scores say nothing it adds nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evaluation.histograms import Floats, Ints
from evaluation.metrics import auc
from evaluation.scale import CELLS

SURE = (0.02, 0.98)  # an AUC is clipped to this range before its slope is computed
SIGN = np.array([[-0.5], [0.5]])  # (other, this) class


class Layout(NamedTuple):
    """One score row's scale. density: (CELLS,) all patients; starts: (bins,) the first cell of each bin; normal:
    (CELLS,) the normal score of a cell's rank; middle: (bins,) its mean over a bin's patients.
    """

    density: Floats
    starts: Ints
    normal: Floats
    middle: Floats


def compute_layout(density: Floats, edges: Ints) -> Layout:
    """The layout for a density (CELLS,) and the edges of its bins (bins - 1,)."""
    from scipy.special import ndtri  # slow to import

    total, even = max(float(density.sum()), 1e-9), 1e-9  # so that bins that the tree holds empty have a shape
    filled = density + even * total / CELLS
    rank = (np.cumsum(filled) - filled / 2) / filled.sum()
    normal = ndtri(np.clip(rank, 0.25 / (total + 1), 1 - 0.25 / (total + 1)))
    starts = np.concatenate([[0], edges]).astype(np.int64)
    middle = np.add.reduceat(filled * normal, starts) / np.add.reduceat(filled, starts)
    return Layout(filled, starts, normal, middle)


def spread_over_cells(pairs: Floats, row: Layout) -> Floats:
    """Spread patients (..., 2, bins) of (other, this) class over cells (..., 2, CELLS); the sum of each bin stays."""
    sizes = np.diff(np.append(row.starts, CELLS))
    lean = SIGN * compute_slope(pairs)[..., None, None] * (row.normal - np.repeat(row.middle, sizes))
    weight = row.density * np.exp(np.clip(lean, -30, 30))
    inside = np.add.reduceat(weight, row.starts, axis=-1)
    return np.asarray(weight * np.repeat(pairs / inside, sizes, axis=-1), dtype=np.float64)


def compute_slope(pairs: Floats) -> Floats:
    """(...,): how fast the log odds of this class rise on the normal score of all, where two normal classes with equal
    variance have the AUC of the bins.
    """
    from scipy.special import ndtri  # slow to import

    separation = np.sqrt(2) * ndtri(np.clip(np.nan_to_num(auc(pairs), nan=0.5), *SURE))
    this = pairs[..., 1, :].sum(axis=-1) / np.maximum(pairs.sum(axis=(-2, -1)), 1e-9)
    return np.asarray(separation * np.sqrt(1 + this * (1 - this) * separation**2), dtype=np.float64)
