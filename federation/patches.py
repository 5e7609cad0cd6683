"""Patches: views of training images that are smaller than the image, at random places, more often about foreground."""

from __future__ import annotations

import torch
from torch import Tensor

from privacy.dp.access import Augment


def build_patch_views(patch: tuple[int, ...], foreground: float, classes: int, after: Augment | None = None) -> Augment:
    """A function that cuts a patch from each image and its mask, and gives views of it by `after`.

    patch: its sides. classes: of the masks, with background. foreground: the probability that a patch is centred at a
    voxel of foreground, as far as it then stays within the image: first one of the image's classes is drawn, then one
    of its voxels, so that a small structure is seen as often as a large one (nnU-Net, Nature Methods 2021, supplement
    2: a third of the patches of a batch). All other places are equally likely. An image without foreground has a patch
    at any place.
    """

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        # Read once for all images: a GPU waits for it, because Python must know where a slice begins.
        corners = torch.stack([_draw_corner(mask, patch, foreground, classes, generator) for mask in y]).tolist()
        x = torch.stack([_cut_patch(image, corner, patch) for image, corner in zip(x, corners, strict=True)])
        y = torch.stack([_cut_patch(mask, corner, patch) for mask, corner in zip(y, corners, strict=True)])
        return (x, y) if after is None else after(x, y, generator)

    return augment


def _draw_corner(
    mask: Tensor, patch: tuple[int, ...], foreground: float, classes: int, generator: torch.Generator
) -> Tensor:
    """The first voxel of a patch of a mask (*spatial): (axes,) int64, not read from a GPU. As many numbers are drawn
    whatever the mask holds.
    """
    rooms = torch.tensor([side - length for side, length in zip(mask.shape, patch, strict=True)])
    drawn = torch.rand(3 + mask.dim(), generator=generator, dtype=torch.float64)
    which, label, voxel = drawn[:3].tolist()
    anywhere, halves = (drawn[3:] * (rooms + 1)).long(), torch.tensor([length // 2 for length in patch])
    anywhere, rooms, halves = torch.stack([anywhere, rooms, halves]).to(mask.device).unbind()
    if which >= foreground:
        return anywhere
    flat = mask.flatten()
    sizes = torch.stack([(flat == number).sum() for number in range(1, classes)])
    is_there = sizes > 0
    in_class = flat == 1 + _choose_one(label, is_there)
    place, centre = _choose_one(voxel, in_class), list[Tensor]()
    for side in reversed(mask.shape):  # torch.unravel_index copies the shape to the device
        centre.insert(0, place % side)
        place = place // side
    about = torch.minimum((torch.stack(centre) - halves).clamp(min=0), rooms)
    corner: Tensor = torch.where(is_there.any(), about, anywhere)
    return corner


def _choose_one(share: float, is_one: Tensor) -> Tensor:
    """The place in (n,) of the true value before which lies this share in [0, 1) of them: (). Any place if all are
    false.
    """
    counted = is_one.cumsum(0, dtype=torch.int32)
    number = (share * counted[-1].double()).int() + 1
    return torch.searchsorted(counted, number).clamp(max=len(is_one) - 1)


def _cut_patch(image: Tensor, corner: list[int], patch: tuple[int, ...]) -> Tensor:
    """(..., *patch) of an image (..., *spatial)."""
    for axis, (at, length) in enumerate(zip(corner, patch, strict=True)):
        image = image.narrow(axis - len(patch), at, length)
    return image
