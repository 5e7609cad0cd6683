"""Standardization, whitening and reduction of features by public pictures, so that their scale depends on no patient.

A moment or a gradient under differential privacy gets the same noise in every direction. So directions should have
about the same information: features are standardized by the public pictures' means and standard deviations, cut to +-4,
turned to the public pictures' principal axes, of which the first are kept, and divided by the root of (eigenvalue +
softness x mean eigenvalue). softness 0 makes all directions equal; a large one keeps their order of size.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MOST = 4.0


class Whitening(NamedTuple):
    """mean, spread: (d,) of the features. axes: (d, k), from standardized features to whitened ones."""

    mean: Floats
    spread: Floats
    axes: Floats


def fit_whitening(public: Floats, *, components: int, softness: float) -> Whitening:
    """The whitening that fits features (n, d) of public pictures; their whitened features have a mean square of 1.

    Raises:
        ValueError: there are fewer pictures or features than components.
    """
    if min(public.shape) < components:
        available = f"{public.shape[0]} public pictures with {public.shape[1]} features"
        raise ValueError(
            f"components must be at most the number of pictures and of features, found {components} of {available}"
        )
    mean, spread = public.mean(axis=0), public.std(axis=0)
    spread = np.where(spread > 1e-9 * (1 + np.abs(mean)), spread, np.inf)  # a constant feature becomes 0
    z = np.clip((public - mean) / spread, -MOST, MOST)
    values, axes = np.linalg.eigh(z.T @ z / len(z))
    values, axes = values[::-1][:components], axes[:, ::-1][:, :components]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])  # the sign is arbitrary: fix it
    axes = axes / np.sqrt(np.maximum(values, 0) + softness * values.mean() + 1e-9)
    return Whitening(mean, spread, axes / np.sqrt(((z @ axes) ** 2).mean()))


def whiten_features(features: Floats, by: Whitening) -> Floats:
    """Features (n, d) standardized, cut and turned: (n, k)."""
    return multiply_by_row(np.clip((features - by.mean) / by.spread, -MOST, MOST), by.axes)


def fourier_features(x: Floats, width: int, bandwidth: float) -> Floats:
    """Random Fourier features (n, width) of whitened features (n, k), with a mean square of about 1.

    A linear model on them approximates one with a Gaussian kernel (Rahimi and Recht, Random features for large-scale
    kernel machines, NIPS 2007). bandwidth: of the kernel, in units of sqrt(k). The frequencies are the same everywhere.
    """
    random = np.random.default_rng(0)
    frequencies = random.standard_normal((x.shape[1], width)) / (bandwidth * np.sqrt(x.shape[1]))
    phases = random.uniform(0, 2 * np.pi, width)
    features: Floats = np.sqrt(2.0) * np.cos(multiply_by_row(x, frequencies) + phases)
    return features


def multiply_by_row(x: Floats, matrix: Floats) -> Floats:
    """x @ matrix, row by row: in a product of many rows, the rounding of a row depends on their number."""
    return np.stack([row @ matrix for row in x]) if len(x) else np.zeros((0, matrix.shape[1]))
