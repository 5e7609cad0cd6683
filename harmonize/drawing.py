"""Drawing functions for procedural pictures, for many pictures at once.

Coordinates run from -1 to 1 across the whole image, edge to edge, x to the right and y downwards, so that a picture is
the same at any size. Planes are (n, H, W); numbers of a picture are (n, 1, 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Inputs: TypeAlias = tuple[int, ...]  # (C, H, W)
Ranges: TypeAlias = Mapping[str, tuple[float, float]]
Numbers: TypeAlias = Mapping[str, Tensor]
Number: TypeAlias = "Tensor | float"
Plane: TypeAlias = Callable[[Numbers, Tensor, Tensor, Inputs], tuple[Tensor, Tensor]]
"""plane(numbers, y (n, 1, 1), noise_seed (n,), inputs) -> pictures (n, C, H, W) in [-1, 1], and what is where in them:
opacities (n, 2, H, W) of what makes a picture one of class 1, which are 0 in class 0, and of the organ around it.
"""


def draw_normal(seeds: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Standard normal numbers (n, *shape) for each shape; row i comes from seeds[i] alone. seeds: (n,) int64."""
    sizes = [math.prod(shape) for shape in shapes]
    rows = torch.empty(len(seeds), sum(sizes))
    for row, seed in zip(rows, seeds.tolist(), strict=True):
        row.normal_(generator=torch.Generator().manual_seed(seed))
    return [part.reshape(-1, *shape) for part, shape in zip(torch.split(rows, sizes, 1), shapes, strict=True)]


def pixel_grid(height: int, width: int) -> tuple[Tensor, Tensor]:
    """(x (1, 1, W), y (1, H, 1)) of the pixel centres."""
    x, y = ((torch.arange(size) + 0.5) * (2 / size) - 1 for size in (width, height))
    return x[None, None, :], y[None, :, None]


def smooth_field(noise: Tensor, height: int, width: int) -> Tensor:
    """Smooth fields (n, k, H, W) through a few normal numbers (n, k, h, w), by bicubic interpolation."""
    return functional.interpolate(noise, (height, width), mode="bicubic", align_corners=False)


def ellipse_opacity(
    x: Tensor, y: Tensor, cx: Number, cy: Number, rx: Number, ry: Number, *, soft: Number = 1.0
) -> Tensor:
    """1 inside an ellipse, 0 outside, falling linearly over about `soft` (in the unit of x) at its border."""
    far = (((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2).sqrt()
    return ((1 - far) * ((rx + ry) / (2 * soft)) + 0.5).clamp(0, 1)


def paint_planes(canvas: tuple[Tensor, ...], where: Tensor, colour: tuple[Number, ...]) -> tuple[Tensor, ...]:
    """Blend every plane of the canvas towards its colour, with `where` as opacity from 0 to 1."""
    return tuple(plane + where * (value - plane) for plane, value in zip(canvas, colour, strict=True))


def smooth_images(images: Tensor, sigma_x: Tensor, sigma_y: Tensor) -> Tensor:
    """Gaussian filter of (n, C, H, W) with deviations (n, 1, 1) in half images; weights at the border are
    renormalized.
    """
    x, y = pixel_grid(*images.shape[-2:])
    across, down = _gaussian_kernel(x.flatten(), sigma_x), _gaussian_kernel(y.flatten(), sigma_y)
    return down[:, None] @ images @ across.mT[:, None]


def _gaussian_kernel(line: Tensor, sigma: Tensor) -> Tensor:
    """(n, size, size) weights; every row sums to 1."""
    return (-0.5 * ((line[:, None] - line) / sigma) ** 2).softmax(dim=-1)
