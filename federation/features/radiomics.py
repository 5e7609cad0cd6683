"""Radiomics of slices and volumes of one quantity: first order, focal extremes at several scales, texture.

Kinds of features are those of the image biomarker standardisation initiative (Zwanenburg et al., Radiology 2020), their
definitions are our own. Grey levels are cut to a fixed `window` and not to the range of each patient, so a feature
means the same in every patient and an ADC keeps its unit. Added for focal lesions: extremes of the smoothed image at
several scales, in the middle and everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from federation.features.texture import co_occurrence, pattern_features
from privacy.settings_error import refuse, unmet, wrong_lengths

Floats = NDArray[np.float64]

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
CUTS = 8
SCALES = (1 / 48, 1 / 24, 1 / 16, 1 / 10)  # of Gaussians, in sides of the image
ENDS = (0.01, 0.05, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Radiomics:
    """First order, extremes of the smoothed image, texture of each channel. window: of the values; values beyond it
    become its ends. The default suits ADC in 1e-3 mm²/s.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["radiomics"] = "radiomics"
    window: tuple[float, float] = (0.0, 3.0)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2))
        low, high = self.window
        refuse(unmet(self, window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first")))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        if len(inputs) in (3, 4) and min(inputs[-2:]) >= 8:
            return []
        what = "images (channels, height, width) or volumes of 8 pixels or more in the plane"
        return [f"radiomics needs {what}, found {inputs}"]

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W) or volumes (n, C, D, H, W)."""
        low, high = self.window
        scaled = (np.clip(images, low, high) - low) / (high - low)
        near = _middle_mask(images.shape[2:])
        return np.stack([np.concatenate([_channel_features(channel, near) for channel in image]) for image in scaled])


def _middle_mask(shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The ellipsoid in the middle whose axes are .7 of the sides."""
    axes = np.meshgrid(*[(np.arange(side) + 0.5) / side - 0.5 for side in shape], indexing="ij")
    inside: NDArray[np.bool_] = np.sqrt(sum(axis**2 for axis in axes)) < 0.35
    return inside


def _channel_features(image: Floats, near: NDArray[np.bool_]) -> Floats:
    """Features (d,) of one channel (H, W) or (D, H, W)."""
    planes = image[None] if image.ndim == 2 else image
    texture = np.mean([np.concatenate([pattern_features(p), co_occurrence(p, (0.0, 1.0))]) for p in planes], axis=0)
    return np.concatenate(
        [_first_order_features(image), _first_order_features(image[near]), _extreme_features(image, near), texture]
    )


def _first_order_features(values: Floats) -> Floats:
    """Moments, entropy, cumulative shares and quantiles of values in [0, 1]."""
    values = values.ravel()
    mean, spread = values.mean(), values.std()
    z = (values - mean) / (spread + 1e-3)
    shares = np.histogram(values, bins=32, range=(0, 1))[0] / len(values)
    entropy = -(shares * np.log(shares + 1e-9)).sum()
    below = [(values < (k + 1) / (CUTS + 1)).mean() for k in range(CUTS)]
    ends = np.quantile(values, QUANTILES)
    return np.array([mean, spread, np.cbrt((z**3).mean()), np.log1p((z**4).mean()), entropy, *np.sqrt(below), *ends])


def _extreme_features(image: Floats, near: NDArray[np.bool_]) -> Floats:
    """Extreme quantiles, minimum and maximum of the smoothed image and of a blob filter, at several scales."""
    from scipy.ndimage import gaussian_filter  # slow to import

    side, features = min(image.shape[-2:]), []
    for scale in SCALES:
        smooth = gaussian_filter(image, scale * side, mode="nearest")
        blob = smooth - gaussian_filter(image, 1.6 * scale * side, mode="nearest")
        for filtered in (smooth, blob):
            inner = filtered[near]
            features += [*np.quantile(inner, ENDS), inner.min(), inner.max(), filtered.std()]
        features.append(np.quantile(smooth[near], 0.02) - np.median(smooth[near]))
    return np.array(features)
