"""Random views of a mini-batch, drawn for the whole batch at once, on the device where it lies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from monai.networks.layers import AffineTransform
from torch import Tensor

from privacy.access import Augment

ROTATION = 0.26  # radians, about 15 degrees
SCALE = 0.1
SHIFT = 0.1  # of half the image


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror left and right with probability 1/2 each. x: (b, C, [D,] H, W); the last axis is left-right."""
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, *[1] * (x.dim() - 1)).to(x.device), x.flip(-1), x)


def affine(x: Tensor, generator: torch.Generator) -> Tensor:
    """Flip, then a small rotation, scaling and shift in the axial plane. x: (b, C, [D,] H, W).

    Linear interpolation, border values repeated; every slice of a volume moves alike.
    """
    if x.dim() == 5:
        return affine(x.flatten(1, 2), generator).reshape(x.shape)
    drawn = 2 * torch.rand(len(x), 4, generator=generator) - 1
    angle, scale = ROTATION * drawn[:, 0], 1 + SCALE * drawn[:, 1]
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale * angle.cos()
    theta[:, 1, 0] = scale * angle.sin()
    theta[:, 0, 1] = -theta[:, 1, 0]
    theta[:, :, 2] = SHIFT * drawn[:, 2:]
    warp = AffineTransform(mode="bilinear", padding_mode="border", normalized=True, align_corners=False)
    warped: Tensor = warp(flip(x, generator), theta.to(x.device))
    return warped


AUGMENTATIONS: Mapping[str, Augment | None] = {"none": None, "flip": flip, "affine": affine}
