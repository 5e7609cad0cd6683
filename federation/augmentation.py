"""Random views of a mini-batch, drawn for the whole batch at once, on its device. Masks are transformed with the
images.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from privacy.dp.access import Augment

ROTATION = 0.26  # radians, about 15 degrees
SCALE = 0.1
SHIFT = 0.1  # of half the image
BEND = 0.04  # of a side: the largest shift of a control point of `elastic`; beyond it an image could fold
POINTS = 5  # control points of `elastic` along each side; the outermost do not move


def flip_images(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mirror each image left to right with probability 1/2. x: (b, C, [D,] H, W); the last axis is left-right.

    y: masks (b, [D,] H, W) are mirrored with their images, labels (b,) do not change.
    """
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return _mirror_rows(x, mirrored), y if y.dim() == 1 else _mirror_rows(y, mirrored)


def apply_affine(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Flip, then a small rotation, scaling and shift in the axial plane. x, y: as in `flip_images`.

    Linear interpolation, and the nearest class for masks; border values are repeated; all slices of a volume move the
    same.
    """
    drawn = 2 * torch.rand(len(x), 4, generator=generator) - 1
    angle, scale = ROTATION * drawn[:, 0], 1 + SCALE * drawn[:, 1]
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale * angle.cos()
    theta[:, 1, 0] = scale * angle.sin()
    theta[:, 0, 1] = -theta[:, 1, 0]
    theta[:, :, 2] = SHIFT * drawn[:, 2:]
    x, y = flip_images(x, y, generator)
    return _warp_images(x, theta, "bilinear"), y if y.dim() == 1 else _warp_images(y.to(x.dtype), theta, "nearest").to(
        y.dtype
    )


def apply_elastic(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Flip, then a random smooth displacement in the axial plane, the non-rigid deformation of VAFL (section III.G) and
    CusFL. x, y: as in `flip_images`.

    Neither paper gives its strength. Control points on a square grid move by up to `BEND` of a side along each axis,
    and cubic interpolation moves the pixels between them. The moves are so small that no image folds. Interpolation and
    border: as in `apply_affine`.
    """
    drawn = 2 * torch.rand(len(x), 2, POINTS - 2, POINTS - 2, generator=generator) - 1
    moves = functional.pad(2 * BEND * drawn, (1, 1, 1, 1))
    x, y = flip_images(x, y, generator)
    if y.dim() > 1:
        y = displace_images(y.to(x.dtype), moves, "nearest").to(y.dtype)
    return displace_images(x, moves, "bilinear"), y


def displace_images(x: Tensor, moves: Tensor, mode: str) -> Tensor:
    """x (b, ..., H, W), displaced: each pixel gets the value that lies `moves` away. moves: (b, 2, k, k), at control
    points from edge to edge: (to the right, downwards), in halves of a side.
    """
    planes = x.reshape(len(x), prod(x.shape[1:-2]), *x.shape[-2:])
    grid = functional.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), [*planes.shape], align_corners=False)
    field = functional.interpolate(moves, size=x.shape[-2:], mode="bicubic", align_corners=True)
    grid = (grid + field.permute(0, 2, 3, 1)).to(x.device, x.dtype)
    warped = functional.grid_sample(planes, grid, mode=mode, padding_mode="border", align_corners=False)
    return warped.reshape(x.shape)


def _mirror_rows(x: Tensor, which: Tensor) -> Tensor:
    """x with the rows for which `which` (b,) is true mirrored along the last axis."""
    return torch.where(which.view(-1, *[1] * (x.dim() - 1)).to(x.device), x.flip(-1), x)


def _warp_images(x: Tensor, theta: Tensor, mode: str) -> Tensor:
    """x (b, ..., H, W), mapped by theta (b, 2, 3), rows before columns, in the plane of its last two axes."""
    planes = x.reshape(len(x), prod(x.shape[1:-2]), *x.shape[-2:])
    across_first = theta[:, [1, 0]][:, :, [1, 0, 2]]  # the order of axes in torch's grids
    grid = functional.affine_grid(across_first.to(x.device), [*planes.shape], align_corners=False)
    warped = functional.grid_sample(planes, grid, mode=mode, padding_mode="border", align_corners=False)
    return warped.reshape(x.shape)


AUGMENTATIONS: Mapping[str, Augment | None] = {
    "none": None,
    "flip": flip_images,
    "affine": apply_affine,
    "elastic": apply_elastic,
}
