"""Images as networks that learnt from pictures take them: three channels, one size, values from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from privacy.settings_error import Problem, out_of_range, unmet

Floats = NDArray[np.float64]
LARGEST = 1e6  # of a feature; larger values are cut, and NaN becomes 0


class Preparation(Protocol):
    """Settings of a network whose file the user brings: how an image becomes its picture."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def window(self) -> tuple[float, float]: ...
    @property
    def mean(self) -> tuple[float, float, float]: ...
    @property
    def std(self) -> tuple[float, float, float]: ...


def find_preparation_problems(settings: Preparation) -> list[Problem]:
    """Values that no file or picture can have."""
    low, high = settings.window
    hexadecimal = not settings.sha256 or (
        len(settings.sha256) == 64 and set(settings.sha256) <= set("0123456789abcdef")
    )
    return out_of_range(settings, size=(16, 1024)) + unmet(
        settings,
        sha256=(hexadecimal, "64 hexadecimal digits, as sha256sum prints them"),
        window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first"),
        mean=(all(map(math.isfinite, settings.mean)), "finite numbers"),
        std=(all(0 < value < math.inf for value in settings.std), "positive numbers"),
    )


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


def normalize_picture(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """A picture (1, 3, H, W), minus the mean of each channel and divided by its deviation."""
    shift, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return (x - shift) / scale


def cut_features(features: Tensor) -> Floats:
    """Features (d,) as finite numbers. Otherwise a network that returns NaN for some patients would reveal, by an
    error, that they are in the data.
    """
    values = features.double().numpy()
    cut: Floats = np.clip(np.nan_to_num(values, nan=0.0, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)
    return cut
