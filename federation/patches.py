"""Patches: views of training images that are smaller than the image, at random places, more often about foreground."""

from __future__ import annotations

import torch
from torch import Tensor

from federation.task import IGNORED
from privacy.dp.access import Augment
from privacy.dp.stored_rows import StoredRows, view_rows


def build_patch_views(patch: tuple[int, ...], foreground: float, classes: int, after: Augment | None = None) -> Augment:
    """A function that cuts a patch from each image and its mask, and gives views of it by `after`.

    patch: its sides. classes: of the masks, with background. foreground: the probability that a patch is centred at a
    voxel of foreground, as far as it then stays within the image: first one of the image's classes is drawn, then one
    of its voxels, so that a small structure is seen as often as a large one (nnU-Net, Nature Methods 2021, supplement
    2: a third of the patches of a batch). All other places are equally likely. An image without foreground has a patch
    at any place. Where voxels are ignored, the other patches are centred at any voxel that is not, as in nnU-Net:
    elsewhere there is nothing to learn.
    """

    known: dict[int, Tensor] = {}  # counts of masks, by their row in `whose`
    whose: list[Tensor] = []

    def count_masks(y: Tensor, masks: list[Tensor]) -> list[Tensor]:
        """What `_count_voxels` gives of each mask; of rows that are not copied, looked at once."""
        if not isinstance(y, StoredRows):
            return [_count_voxels(mask, classes) for mask in masks]
        if not (whose and whose[0] is y.stored):
            known.clear()
            whose[:] = [y.stored]
        numbers = y.rows.tolist()
        for number, mask in zip(numbers, masks, strict=True):
            if number not in known:
                known[number] = _count_voxels(mask, classes)
        return [known[number] for number in numbers]

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images, masks = view_rows(x), view_rows(y)
        counted = zip(masks, count_masks(y, masks), strict=True)
        # Read once for all images: a GPU waits for it, because Python must know where a slice begins.
        corners = torch.stack(
            [_draw_corner(mask, counts, patch, foreground, generator) for mask, counts in counted]
        ).tolist()
        x = torch.stack([_cut_patch(image, corner, patch) for image, corner in zip(images, corners, strict=True)])
        y = torch.stack([_cut_patch(mask, corner, patch) for mask, corner in zip(masks, corners, strict=True)]).long()
        return (x, y) if after is None else after(x, y, generator)

    return augment


def _count_voxels(mask: Tensor, classes: int) -> Tensor:
    """How many voxels of each plane of a mask (planes, ...) are not ignored, and are of each class but background:
    (classes, planes) int64.
    """
    kinds = (mask != IGNORED, *(mask == number for number in range(1, classes)))
    return torch.stack([inside.flatten(1).sum(dim=1) for inside in kinds])


def _draw_corner(
    mask: Tensor, counts: Tensor, patch: tuple[int, ...], foreground: float, generator: torch.Generator
) -> Tensor:
    """The first voxel of a patch of a mask (*spatial): (axes,) int64, not read from a GPU. As many numbers are drawn
    whatever the mask holds. counts: of the mask, by `_count_voxels`.
    """
    rooms = torch.tensor([side - length for side, length in zip(mask.shape, patch, strict=True)])
    drawn = torch.rand(3 + mask.dim(), generator=generator, dtype=torch.float64)
    which, label, voxel = drawn[:3].tolist()
    anywhere, halves = (drawn[3:] * (rooms + 1)).long(), torch.tensor([length // 2 for length in patch])
    anywhere, rooms, halves = torch.stack([anywhere, rooms, halves]).to(mask.device).unbind()
    ignored = mask.numel() - counts[0].sum()
    is_centred, kind = (ignored > 0) & (ignored < mask.numel()), torch.zeros_like(ignored)
    if which < foreground:
        is_there = counts[1:].sum(dim=1) > 0
        is_centred = is_centred | is_there.any()
        kind = torch.where(is_there.any(), 1 + _choose_one(label, is_there), kind)
    about = torch.minimum((_choose_voxel(voxel, mask, kind, counts) - halves).clamp(min=0), rooms)
    corner: Tensor = torch.where(is_centred, about, anywhere)
    return corner


def _choose_voxel(share: float, mask: Tensor, kind: Tensor, counts: Tensor) -> Tensor:
    """The place (axes,) of the voxel before which, in array order, lies this share in [0, 1) of the mask's voxels of a
    kind: (), a class, or 0 = not ignored. Only one plane's are counted one by one.
    """
    of_kind = counts.index_select(0, kind[None])[0]
    until = of_kind.cumsum(0)
    number = (share * until[-1].double()).long() + 1
    plane = torch.searchsorted(until, number).clamp(max=len(until) - 1)
    before = until.index_select(0, plane[None])[0] - of_kind.index_select(0, plane[None])[0]
    values = mask.index_select(0, plane[None]).flatten()
    in_plane = torch.where(kind == 0, values != IGNORED, values == kind).cumsum(0)
    place, centre = torch.searchsorted(in_plane, number - before).clamp(max=len(in_plane) - 1), list[Tensor]()
    for side in reversed(mask.shape[1:]):  # torch.unravel_index copies the shape to the device
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
