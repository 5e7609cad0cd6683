"""Patches: views of training images that are smaller than the image, at random places, more often about foreground."""

from __future__ import annotations

import torch
from torch import Tensor

from federation.task import IGNORED
from privacy.dp.access import Augment
from privacy.dp.stored_rows import view_rows


def build_patch_views(patch: tuple[int, ...], foreground: float, classes: int, after: Augment | None = None) -> Augment:
    """A function that cuts a patch from each image and its mask, and gives views of it by `after`.

    patch: its sides. classes: of the masks, with background. foreground: the probability that a patch is centred at a
    voxel of foreground, as far as it then stays within the image: first one of the image's classes is drawn, then one
    of its voxels, so that a small structure is seen as often as a large one (nnU-Net, Nature Methods 2021, supplement
    2: a third of the patches of a batch). All other places are equally likely. An image without foreground has a patch
    at any place. Where voxels are ignored, the other patches are centred at any voxel that is not, as in nnU-Net:
    elsewhere there is nothing to learn.
    """

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images, masks = view_rows(x), view_rows(y)
        # Read once for all images: a GPU waits for it, because Python must know where a slice begins.
        corners = torch.stack([_draw_corner(mask, patch, foreground, classes, generator) for mask in masks]).tolist()
        x = torch.stack([_cut_patch(image, corner, patch) for image, corner in zip(images, corners, strict=True)])
        y = torch.stack([_cut_patch(mask, corner, patch) for mask, corner in zip(masks, corners, strict=True)]).long()
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
    ignored = (mask == IGNORED).sum()
    is_centred, inside = (ignored > 0) & (ignored < mask.numel()), mask != IGNORED
    if which < foreground:
        is_there = torch.stack([(mask == number).any() for number in range(1, classes)])
        in_class = mask == 1 + _choose_one(label, is_there)
        is_centred, inside = is_centred | is_there.any(), torch.where(is_there.any(), in_class, inside)
    about = torch.minimum((_choose_voxel(voxel, inside) - halves).clamp(min=0), rooms)
    corner: Tensor = torch.where(is_centred, about, anywhere)
    return corner


def _choose_voxel(share: float, inside: Tensor) -> Tensor:
    """The place (axes,) of the voxel inside (*spatial) before which, in array order, lies this share in [0, 1) of them.
    Only one plane's are counted one by one.
    """
    counts = inside.flatten(1).sum(dim=1)
    until = counts.cumsum(0)
    number = (share * until[-1].double()).long() + 1
    plane = torch.searchsorted(until, number).clamp(max=len(until) - 1)
    before = until.index_select(0, plane[None])[0] - counts.index_select(0, plane[None])[0]
    in_plane = inside.index_select(0, plane[None]).flatten().cumsum(0)
    place, centre = torch.searchsorted(in_plane, number - before).clamp(max=len(in_plane) - 1), list[Tensor]()
    for side in reversed(inside.shape[1:]):  # torch.unravel_index copies the shape to the device
        centre.insert(0, place % side)
        place = place // side
    return torch.stack([plane, *centre])


def _choose_one(share: float, is_one: Tensor) -> Tensor:
    """The place in (n,) of the true value before which lies this share in [0, 1) of them: (). Any place if all are
    false.
    """
    counted = is_one.cumsum(0)
    number = (share * counted[-1].double()).long() + 1
    return torch.searchsorted(counted, number).clamp(max=len(is_one) - 1)


def _cut_patch(image: Tensor, corner: list[int], patch: tuple[int, ...]) -> Tensor:
    """(..., *patch) of an image (..., *spatial)."""
    for axis, (at, length) in enumerate(zip(corner, patch, strict=True)):
        image = image.narrow(axis - len(patch), at, length)
    return image
