"""Random convolutions: patches of fixed random filters, pooled; Rahimi and Recht's random features for images.

Filters are drawn once from a seed in the settings, so they are the same everywhere and depend on no patient. Each scale
halves the image. A filter's responses are pooled to their mean, their spread, their largest value and their share above
0 (Dempster et al., ROCKET, Data Min Knowl Disc 2020), over all places.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from privacy.settings_error import out_of_range, refuse

Floats = NDArray[np.float64]
MOST = 2**28  # responses to an image at a time: 1 GiB


@dataclass(frozen=True, kw_only=True)
class RandomConvolutions:
    """filters: at each scale. scales: the image, half of it, ... seed: of the filters. width: sides of a filter."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["random_convolutions"] = "random_convolutions"
    filters: int = 48
    scales: int = 3
    width: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(out_of_range(self, filters=(1, 4096), scales=(1, 6), width=(2, 15)))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        least = self.width * 2 ** (self.scales - 1)
        if len(inputs) not in (3, 4) or min(inputs[1:]) < least:
            return [f"random_convolutions needs images or volumes whose sides are at least {least}, found {inputs}"]
        if (responses := self.filters * prod(inputs[1:])) > MOST:
            return [f"random_convolutions: filters x pixels must be <= {MOST}, found {responses}: take fewer filters"]
        return []

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W) or volumes (n, C, D, H, W)."""
        x = torch.from_numpy(np.ascontiguousarray(images)).float()
        # One by one: torch takes another algorithm for narrow filters on 16 images or more, and it rounds differently.
        return np.concatenate([self._image_features(image[None]).double().numpy() for image in x])

    @torch.no_grad()
    def _image_features(self, x: torch.Tensor) -> torch.Tensor:
        """Features (1, d) of one image (1, C, H, W) or volume (1, C, D, H, W)."""
        sides = x.dim() - 2
        convolve, halve = (
            (functional.conv2d, functional.avg_pool2d) if sides == 2 else (functional.conv3d, functional.avg_pool3d)
        )
        generator = torch.Generator().manual_seed(self.seed)
        features = []
        for scale in range(self.scales):
            weight = torch.randn(self.filters, x.shape[1], *[self.width] * sides, generator=generator)
            weight -= weight.flatten(2).mean(dim=2).view(*weight.shape[:2], *[1] * sides)  # an offset changes nothing
            weight /= weight.flatten(1).norm(dim=1).view(-1, *[1] * (sides + 1))
            bias = torch.randn(self.filters, generator=generator) * 0.05
            z = convolve(x, weight, bias).flatten(2)
            features += [z.mean(dim=2), z.std(dim=2), z.amax(dim=2), (z > 0).float().mean(dim=2)]
            x = halve(x, 2) if scale + 1 < self.scales else x
        return torch.cat(features, dim=1)
