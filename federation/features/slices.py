"""Features of a volume from those of its slices, for extractors that only take planes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def features_by_slice(plane_features: Callable[[Floats], Floats], image: Floats) -> Floats:
    """Features (d,) of an image (C, H, W); of a volume (C, D, H, W) their mean, largest and spread over slices (3 d,).

    plane_features: from (C, H, W) to (d,).
    """
    if image.ndim == 3:
        return plane_features(image)
    slice_features = np.stack([plane_features(image[:, k]) for k in range(image.shape[1])])
    return np.concatenate([slice_features.mean(axis=0), slice_features.max(axis=0), slice_features.std(axis=0)])
