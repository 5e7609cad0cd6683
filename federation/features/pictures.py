"""Images as networks that learnt from pictures take them: three channels, one size, values from 0 to 1."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Floats = NDArray[np.float64]


def find_picture_complaints(name: str, inputs: tuple[int, ...]) -> list[str]:
    """Why examples of this shape cannot become pictures; empty = no problem. name: of the extractor."""
    if len(inputs) in (3, 4) and inputs[0] in (1, 3) and min(inputs[-2:]) >= 8:
        return []
    return [f"{name} needs images or volumes of 1 or 3 channels with sides of at least 8, found {inputs}"]


def prepare_picture(image: Floats, window: tuple[float, float], size: int) -> Tensor:
    """An image (1 or 3, H, W) as a picture (1, 3, size, size) float32 in [0, 1].

    window: the values that become 0 and 1; others are cut.
    """
    low, high = window
    x = torch.from_numpy(np.clip((image - low) / (high - low), 0, 1)).float()[None].expand(-1, 3, -1, -1)
    return functional.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=True)
