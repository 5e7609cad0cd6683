"""Colour, texture and shape of a picture: numbers in the spirit of the ABCD rule of dermatoscopy, without training.

The part that differs from the border of the picture is taken as the object (in dermatoscopy the lesion): Otsu's
threshold on the distance to the border's median colour in CIE Lab, largest component. Then, in this order: colours
inside and outside (Lab, HSV, RGB), shares of named colours (Nachbar et al., The ABCD rule of dermatoscopy, J Am Acad
Dermatol 1994, name six), outline and asymmetry about the two principal axes, the edge's sharpness, local binary
patterns (Ojala et al., PAMI 2002), energies of differences of Gaussians, and co-occurrence of grey levels (Haralick et
al., 1973).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from federation.features.texture import co_occurrence, pattern_features

Floats = NDArray[np.float64]

# CIE Lab, set by hand, of the colours that the ABCD rule calls white, red, light brown, dark brown, blue-grey, black.
NAMED = np.array([[90, 0, 5], [52, 38, 22], [60, 15, 25], [32, 16, 18], [45, -4, -12], [12, 3, 3]], dtype=np.float64)
NEAR = 15.0  # a colour's reach in Lab
SCALES = (0.01, 0.02, 0.04, 0.08, 0.16)  # of Gaussians, in sides of the picture


@dataclass(frozen=True, kw_only=True)
class Colour:
    """Colour, texture and shape of pictures with three channels (red, green, blue) in [-1, 1]."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["colour"] = "colour"

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        if len(inputs) == 3 and inputs[0] == 3 and min(inputs[1:]) >= 16:
            return []
        return [f"colour needs pictures (3, height, width) of 16 pixels or more, found {inputs}"]

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of pictures (n, 3, H, W)."""
        return np.stack([_picture_features(np.clip((image + 1) / 2, 0, 1).transpose(1, 2, 0)) for image in images])


def _picture_features(rgb: Floats) -> Floats:
    """All features (d,) of one picture (H, W, 3) in [0, 1]."""
    from skimage.color import rgb2hsv, rgb2lab  # slow to import

    lab = rgb2lab(rgb)
    channels = np.concatenate([lab / 100, rgb2hsv(rgb), rgb], axis=2)
    away, inside = _find_object(lab)
    grey = lab[:, :, 0] / 100
    return np.concatenate(
        [
            _colour_features(channels, inside),
            _named_colour_features(lab[inside]),
            _outline_features(inside),
            _asymmetry_features(lab, inside),
            _edge_features(away, inside),
            pattern_features(grey, inside),
            _energy_features(lab / 100, inside),
            co_occurrence(grey, (0.0, 1.0)),
        ]
    )


def _find_object(lab: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Distance of each pixel to the border's median colour, and the object's mask: never empty, never all pixels."""
    from scipy.ndimage import gaussian_filter, label  # slow to import
    from skimage.filters import threshold_otsu  # slow to import

    height, width = lab.shape[:2]
    rim = max(1, round(0.06 * min(height, width)))
    border = np.ones((height, width), dtype=bool)
    border[rim:-rim, rim:-rim] = False
    away = np.linalg.norm(lab - np.median(lab[border], axis=0), axis=2)
    smooth = gaussian_filter(away, 0.015 * min(height, width))
    y, x = np.mgrid[:height, :width]
    middle = np.hypot((y + 0.5) / height - 0.5, (x + 0.5) / width - 0.5)
    if smooth.max() - smooth.min() < 1e-6:
        return away, middle < 0.3
    parts, count = label(smooth > threshold_otsu(smooth))
    weights = np.bincount(parts.ravel(), np.exp(-4 * middle.ravel() ** 2), minlength=count + 1)[1:]
    inside = parts == 1 + int(weights.argmax())
    share = inside.mean()
    return away, inside if 0.01 < share < 0.98 else middle < 0.3


def _colour_features(channels: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Mean, spread, skewness and quantiles of the colours of the object, and how the surroundings differ."""
    within, outside = channels[inside], channels[~inside]
    mean, spread = within.mean(axis=0), within.std(axis=0)
    skew = (((within - mean) / (spread + 1e-3)) ** 3).mean(axis=0)
    ends = np.quantile(within[:, :3], [0.05, 0.5, 0.95], axis=0).ravel()
    return np.concatenate([mean, spread, np.cbrt(skew), mean - outside.mean(axis=0), outside.std(axis=0), ends])


def _named_colour_features(lab: Floats) -> Floats:
    """Shares of the named colours, and how many there are (the exponential of their entropy)."""
    near = np.exp(-0.5 * (np.linalg.norm(lab[:, None] - NAMED, axis=2) / NEAR) ** 2)
    shares: Floats = near.mean(axis=0)
    p = shares / (shares.sum() + 1e-9)
    return np.append(np.sqrt(shares), np.exp(-(p * np.log(p + 1e-9)).sum()) / len(NAMED))


def _outline_features(inside: NDArray[np.bool_]) -> Floats:
    """Area, roundness, solidity, extent, ratio of axes, offset and perimeter of the object."""
    from skimage.measure import regionprops  # slow to import

    region = regionprops(inside.astype(np.uint8))[0]
    side = float(np.sqrt(inside.size))
    offset = np.hypot(*(np.array(region.centroid) / inside.shape - 0.5))
    round_ = np.log1p(region.perimeter**2 / (4 * np.pi * region.area))
    sides = region.axis_minor_length / max(region.axis_major_length, 1e-6)
    return np.array(
        [region.area / inside.size, round_, region.solidity, region.extent, sides, offset, region.perimeter / side]
    )


def _asymmetry_features(lab: Floats, inside: NDArray[np.bool_]) -> Floats:
    """How far outline and colours differ from their mirror images about the two principal axes through the middle."""
    from scipy.ndimage import map_coordinates  # slow to import

    places = np.argwhere(inside).astype(np.float64)
    middle = places.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov((places - middle).T) + 1e-6 * np.eye(2))
    features = []
    for axis in axes.T:
        mirrored = (places - middle) - 2 * np.outer((places - middle) @ axis, axis) + middle
        is_inside = map_coordinates(inside.astype(np.float64), mirrored.T, order=0, mode="constant") > 0.5
        colours = np.stack([map_coordinates(lab[:, :, c], mirrored.T, order=1, mode="nearest") for c in range(3)], 1)
        distances = np.linalg.norm(colours - lab[inside], axis=1)[is_inside]
        features += [1 - is_inside.mean(), distances.mean() / 100 if len(distances) else 0.0]
    return np.array([*sorted(features[::2]), *sorted(features[1::2])])


def _edge_features(away: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Contrast of object and surroundings; mean and spread of the slope along the object's edge."""
    from skimage.segmentation import find_boundaries  # slow to import

    slope = np.hypot(*np.gradient(away))[find_boundaries(inside, mode="inner")]
    contrast = (away[inside].mean() - away[~inside].mean()) / 100
    return np.array([contrast, np.log1p(slope.mean()), slope.std() / (slope.mean() + 1e-3)])


def _energy_features(lab: Floats, inside: NDArray[np.bool_]) -> Floats:
    """Logarithm of the energy of differences of Gaussians inside the object, by scale and channel."""
    from scipy.ndimage import gaussian_filter  # slow to import

    side = min(lab.shape[:2])
    blurred = [lab, *(gaussian_filter(lab, (s * side, s * side, 0)) for s in SCALES)]
    bands = [((a - b)[inside] ** 2).mean(axis=0) for a, b in itertools.pairwise(blurred)]
    return np.log10(np.concatenate(bands) + 1e-7)
