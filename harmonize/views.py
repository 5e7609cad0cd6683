"""Inputs of a step of adversarial training: random views, noise, and translations of earlier steps."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

ANGLE, SCALE, SHIFT = 0.1, 0.05, 0.05  # of `affine`: radians, share, share of half the image
View: TypeAlias = Literal["none", "flip", "affine"]


def augment_views(x: Tensor, how: View, g: torch.Generator) -> Tensor:
    """Mirror each image (b, C, H, W) left and right with probability 1/2; `affine` also turns, scales and shifts it."""
    if how == "none":
        return x
    mirrored = torch.rand(len(x), 1, 1, 1, generator=g, device=x.device) < 0.5
    x = torch.where(mirrored, x.flip(-1), x)
    if how == "flip":
        return x
    drawn = 2.0 * torch.rand(len(x), 4, generator=g, device=x.device) - 1.0
    angle, scale = ANGLE * drawn[:, 0], 1.0 + SCALE * drawn[:, 1]
    cos, sin, shift = scale * angle.cos(), scale * angle.sin(), SHIFT * drawn[:, 2:]
    theta = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def add_noise(x: Tensor, deviation: float, g: torch.Generator | None) -> Tensor:
    """Add Gaussian noise of a standard deviation: instance noise, which keeps a discriminator from winning at once."""
    return x + deviation * torch.randn(x.shape, generator=g, device=x.device) if deviation else x


def mix_with_pool(pool: dict[str, Tensor], name: str, made: Tensor, size: int, g: torch.Generator | None) -> Tensor:
    """Replace about half of the images by those of earlier steps, once the pool is full (Shrivastava et al., CVPR
    2017).
    """
    pool_images, shown = pool.get(name, made[:0]).clone(), []
    places = torch.randint(2 * size, (len(made), 1), generator=g, device=made.device)  # never read: a GPU need not wait
    for image, place in zip(made.unsqueeze(1), places, strict=True):
        if len(pool_images) < size:
            pool_images = torch.cat([pool_images, image])
        else:
            is_replaced, slot = place < size, place.clamp(max=size - 1)
            older = pool_images.index_select(0, slot)
            pool_images.index_copy_(0, slot, torch.where(is_replaced, image, older))
            image = torch.where(is_replaced, older, image)
        shown.append(image)
    pool[name] = pool_images
    return torch.cat(shown)


def step_seed(seed: int, step: int) -> int:
    """A seed for (seed, step), the same on every machine. step: any whole number above -2**32."""
    return int(np.random.SeedSequence([seed, step % 2**32]).generate_state(1, np.uint64)[0] >> np.uint64(1))
