"""Wavelet scattering: energies of oriented wavelets, and of wavelets of their moduli (Bruna and Mallat, PAMI 2013).

Filters and cascade are kymatio's (Andreux et al., JMLR 2020): Morlet wavelets, whose responses' moduli are filtered
once more. For each path over scales, and relative angle in the second order, the features are the logarithm of the mean
over places and directions, the spread over places, and how much it depends on direction. So a rotated picture has
almost the same features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from federation.features.slices import features_by_slice
from privacy.settings_error import out_of_range, refuse

Floats = NDArray[np.float64]
Path: TypeAlias = tuple[int, ...]
FLOOR = 1e-4  # added to energies before the logarithm: far below the noise of any image here


@dataclass(frozen=True, kw_only=True)
class Scattering:
    """scales: of wavelets, octaves from the finest. angles: of wavelets, over half a turn."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["scattering"] = "scattering"
    scales: int = 3
    angles: int = 8

    def __post_init__(self) -> None:
        refuse(out_of_range(self, scales=(1, 6), angles=(2, 16)))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        least = 2 ** (self.scales + 1)
        if len(inputs) in (3, 4) and min(inputs[-2:]) >= least:
            return []
        return [f"scattering needs images or volumes whose slices have sides of at least {least}, found {inputs}"]

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W), or volumes (n, C, D, H, W) by slices."""
        return np.stack([features_by_slice(self._plane_features, image) for image in images])

    def _plane_features(self, image: Floats) -> Floats:
        """Features (d,) of one image (C, H, W)."""
        paths = _build_transform(self.scales, self.angles, image.shape[1:])(image)  # each path's `coef` is (C, h, w)
        groups: dict[Path, list[Floats]] = {}
        for path in paths[1:]:
            turned = tuple((angle - path["theta"][0]) % self.angles for angle in path["theta"][1:])
            groups.setdefault((*path["j"], *turned), []).append(path["coef"])
        smooth = paths[0]["coef"].reshape(len(image), -1)
        features = [smooth.mean(axis=1), smooth.std(axis=1)]
        for group in groups.values():
            energy = np.maximum(np.stack(group), 0).reshape(len(group), len(image), -1)  # angle, channel, place
            mean, by_place, by_angle = energy.mean(axis=(0, 2)), energy.mean(axis=0), energy.mean(axis=2)
            features += [np.log(mean + FLOOR), np.log(by_place.std(axis=1) + FLOOR)]
            features.append(by_angle.std(axis=0) / (mean + FLOOR))
        return np.concatenate(features)


@lru_cache(maxsize=4)
def _build_transform(scales: int, angles: int, sides: tuple[int, int]) -> Any:
    """kymatio's transform of planes of these sides, whose filters take seconds to make."""
    from kymatio.scattering2d.frontend.numpy_frontend import ScatteringNumPy2D  # the package itself imports more

    return ScatteringNumPy2D(scales, sides, angles, out_type="list")
