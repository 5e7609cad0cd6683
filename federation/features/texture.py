"""Texture of one grey image: local binary patterns, and co-occurrence of grey levels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVELS = 16
RADII = (1, 2)
PROPERTIES = ("contrast", "dissimilarity", "homogeneity", "energy", "correlation")


def pattern_features(grey: Floats, inside: NDArray[np.bool_] | None = None) -> Floats:
    """Square roots of the shares of uniform local binary patterns, 10 bins at each radius, over all pixels or those
    `inside`.
    """
    from skimage.feature import local_binary_pattern  # slow to import

    grey_bytes = np.round(np.clip(grey, 0, 1) * 255).astype(np.uint8)
    shares = []
    for radius in RADII:
        codes = local_binary_pattern(grey_bytes, 8, radius, method="uniform")
        counts = np.bincount((codes if inside is None else codes[inside]).astype(int).ravel(), minlength=10)
        shares.append(np.sqrt(counts / max(counts.sum(), 1)))
    return np.concatenate(shares)


def co_occurrence(grey: Floats, window: tuple[float, float]) -> Floats:
    """Properties of the co-occurrence matrix at each radius, mean over four directions. window: of the grey levels."""
    from skimage.feature import graycomatrix, graycoprops  # slow to import

    low, high = window
    levels = np.clip((grey - low) / (high - low) * LEVELS, 0, LEVELS - 1).astype(np.uint8)
    turns = [0, np.pi / 4, np.pi / 2, 3 * np.pi / 4]
    counted = graycomatrix(levels, RADII, turns, levels=LEVELS, symmetric=True, normed=True)
    properties = {name: graycoprops(counted, name).mean(axis=1) for name in PROPERTIES}
    properties["contrast"] = np.log1p(properties["contrast"])
    return np.concatenate([np.nan_to_num(properties[name]) for name in PROPERTIES])
