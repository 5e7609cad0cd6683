"""ComBat on features (Johnson, Li and Rabinovic, Biostatistics 8, 2007, section 3.2): what `cameras.py` compares.

There is no well-kept library under a licence that fits: neuroCombat's last release is of 2021, inmoose is GPL. ComBat
gains nothing on the cameras (docs/results/without-a-patient.md), so it is no setting of a run. A hospital needs from
the others the mean, the deviation and the effect of the class, nothing else; its own shift and scale stay with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
TOLERANCE, MOST = 1e-6, 500


class Common(NamedTuple):
    """Of all hospitals that train: mean (d,), deviation (d,) of the residuals, and the class's effect (d,) for a label
    of 1 over one of 0. share: of label 1.
    """

    mean: Rows
    deviation: Rows
    effect: Rows
    share: float


def common(x: Mapping[str, Rows], y: Mapping[str, NDArray[np.int64]]) -> Common:
    """Least squares of features (n, d) on hospital and label; residuals over all hospitals (equations of step 1)."""
    every, labels = np.concatenate(list(x.values())), np.concatenate(list(y.values())).astype(float)
    inside = np.concatenate([one - one.mean(axis=0) for one in x.values()])
    centred = np.concatenate([one - one.mean() for one in y.values()])
    effect = centred @ inside / (centred @ centred)
    residuals = inside - centred[:, None] * effect
    share = float(labels.mean())
    return Common(every.mean(axis=0), np.sqrt((residuals**2).mean(axis=0)), effect, share)


def shift_and_scale(z: Rows) -> tuple[Rows, Rows]:
    """Empirical Bayes of a hospital's shift and variance (d,) from its standardized features (n, d) (steps 2 and 3)."""
    n, own_shift, own_variance = len(z), z.mean(axis=0), z.var(axis=0, ddof=1)
    prior, spread = own_shift.mean(), own_shift.var(ddof=1)
    mean, variance = own_variance.mean(), own_variance.var(ddof=1)
    shape = (mean**2 + 2 * variance) / variance
    scale = (mean**3 + mean * variance) / variance
    shift, found = own_shift, own_variance
    for _ in range(MOST):
        new = (n * spread * own_shift + found * prior) / (n * spread + found)
        other = (scale + 0.5 * ((z - new) ** 2).sum(axis=0)) / (n / 2 + shape - 1)
        moved = max(float(np.abs(new - shift).max()), float(np.abs(other - found).max()))
        shift, found = new, other
        if moved < TOLERANCE:
            break
    return shift, found


def combat(x: Rows, known: Common, y: NDArray[np.int64] | None, fit: NDArray[np.intp] | None = None) -> Rows:
    """A hospital's features (n, d) without its own shift and scale. y: labels of the rows `fit` (all), from which these
    are computed; None where there are none, and the class then counts as part of the hospital.
    """
    fit = np.arange(len(x)) if fit is None else fit
    z = (x - known.mean) / known.deviation
    of_class = np.zeros_like(z)
    if y is not None:
        of_class[fit] = (y - known.share)[:, None] * (known.effect / known.deviation)
    shift, variance = shift_and_scale(z[fit] - of_class[fit])
    return (z - of_class - shift) / np.sqrt(variance) + of_class
