"""Does a map show where a finding is? The pointing game, and the overlap with a mask.

Pointing game (Zhang et al., Top-Down Neural Attention by Excitation Backprop, IJCV 2018, arXiv 1608.00507): a hit if
the largest value lies in the mask, or within a tolerance of it (15 pixels there, on photographs; here as the caller
says, in pixels). Maps and masks are (H, W).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.histograms import Floats

Mask = NDArray[np.bool_]

BLANK = 0.05
"""A map that is nowhere above this is blank: there is nothing to be seen on a page."""


def is_blank(cam: Floats) -> bool:
    """Whether a map in [0, 1] shows nothing."""
    return bool(cam.max() < BLANK)


def hit_share(cam: Floats, mask: Mask, reach: float = 0.0) -> float:
    """The share of the map's largest values that lie in the mask or not farther than `reach` pixels from it. 0 for a
    map that is the same everywhere: it points nowhere.

    Raises:
        ValueError: map and mask have other shapes, or the mask is empty.
    """
    _check_map(cam, mask)
    if cam.max() == cam.min():
        return 0.0
    return float(_widen_mask(mask, reach)[cam == cam.max()].mean())


def _widen_mask(mask: Mask, reach: float) -> Mask:
    """Where the mask is at most `reach` pixels away."""
    if reach < 1:
        return mask
    from scipy.ndimage import distance_transform_edt  # slow to import

    return np.asarray(distance_transform_edt(~mask) <= reach, dtype=np.bool_)


def threshold_dice(cam: Floats, mask: Mask, threshold: float) -> float:
    """Overlap of the mask with where the map is at or above the threshold, in [0, 1].

    Raises:
        ValueError: as `hit_share`.
    """
    _check_map(cam, mask)
    marked = cam >= threshold
    return float(2 * (marked & mask).sum() / (marked.sum() + mask.sum()))


def average_precision(cam: Floats, mask: Mask) -> float:
    """Area under precision and recall of the map's values as scores of pixels; the mask's share of pixels for a map
    that is the same everywhere.

    Raises:
        ValueError: as `hit_share`.
    """
    _check_map(cam, mask)
    from sklearn.metrics import average_precision_score  # slow to import

    return float(average_precision_score(mask.ravel(), cam.ravel()))


def _check_map(cam: Floats, mask: Mask) -> None:
    """Raises ValueError if map and mask differ in shape, or if the mask is empty."""
    if cam.shape != mask.shape or cam.ndim != 2:
        raise ValueError(f"a map of shape {cam.shape} and a mask of shape {mask.shape}; both must be (H, W) and alike")
    if not mask.any():
        raise ValueError("the mask is empty: where nothing is, no map can point; leave the image out")
