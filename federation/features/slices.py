"""Features of a volume by those of its slices, for extractors that know planes only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def by_slice(of_plane: Callable[[Floats], Floats], image: Floats) -> Floats:
    """Features (d,) of an image (C, H, W); of a volume (C, D, H, W) their mean, largest and spread over slices (3 d,).

    of_plane: from (C, H, W) to (d,).
    """
    if image.ndim == 3:
        return of_plane(image)
    found = np.stack([of_plane(image[:, k]) for k in range(image.shape[1])])
    return np.concatenate([found.mean(axis=0), found.max(axis=0), found.std(axis=0)])
