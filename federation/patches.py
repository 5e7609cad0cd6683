"""Patches: views of training images that are smaller than the image, at random places, more often about foreground."""

from __future__ import annotations

import torch
from torch import Tensor

from privacy.dp.access import Augment


def build_patch_views(patch: tuple[int, ...], foreground: float, after: Augment | None = None) -> Augment:
    """A function that cuts a patch from each image and its mask, and gives views of it by `after`.

    patch: its sides. foreground: the probability that it is centred at a voxel of foreground, as far as it then stays
    within the image: first one of the image's classes is drawn, then one of its voxels, so that a small structure is
    seen as often as a large one (nnU-Net, Nature Methods 2021, supplement 2: a third of the patches of a batch). All
    other places are equally likely. An image without foreground has a patch at any place.
    """

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        corners = [_draw_corner(mask, patch, foreground, generator) for mask in y]
        x = torch.stack([_cut_patch(image, corner, patch) for image, corner in zip(x, corners, strict=True)])
        y = torch.stack([_cut_patch(mask, corner, patch) for mask, corner in zip(y, corners, strict=True)])
        return (x, y) if after is None else after(x, y, generator)

    return augment


def _draw_corner(mask: Tensor, patch: tuple[int, ...], foreground: float, generator: torch.Generator) -> list[int]:
    """The first voxel of a patch of a mask (*spatial). As many numbers are drawn whatever the mask holds."""
    rooms = [side - length for side, length in zip(mask.shape, patch, strict=True)]
    which, label, voxel, *places = torch.rand(3 + mask.dim(), generator=generator, dtype=torch.float64).tolist()
    classes = torch.unique(mask)
    classes = classes[classes > 0]
    if which >= foreground or not len(classes):
        return [int(place * (room + 1)) for place, room in zip(places, rooms, strict=True)]
    voxels = (mask == classes[int(label * len(classes))]).nonzero()
    centre = voxels[int(voxel * len(voxels))].tolist()
    middle = [at - length // 2 for at, length in zip(centre, patch, strict=True)]
    return [min(max(0, at), room) for at, room in zip(middle, rooms, strict=True)]


def _cut_patch(image: Tensor, corner: list[int], patch: tuple[int, ...]) -> Tensor:
    """(..., *patch) of an image (..., *spatial)."""
    for axis, (at, length) in enumerate(zip(corner, patch, strict=True)):
        image = image.narrow(axis - len(patch), at, length)
    return image
