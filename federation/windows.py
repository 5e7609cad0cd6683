"""Windows over images that are larger than what a network sees at once: half-overlapping ones whose predictions are
averaged, and as few as cover an image, where nothing is averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from privacy.dp.chunks import at_once

OVERLAP = 0.5  # along each axis


def average_windows(predict: Callable[[Tensor], Tensor], x: Tensor, window: Sequence[int]) -> Tensor:
    """What `predict` gives for windows (b, C, *window) of images x (n, C, *spatial), averaged where they overlap with
    weights of a Gaussian about their middle: (n, K, *spatial). An image that is smaller is filled with zeros about it.
    """
    from monai.inferers.utils import sliding_window_inference  # slow to import

    sides = [int(side) for side in window]
    pieces = at_once(x.new_empty(1, x.shape[1], *sides))
    averaged: Tensor = sliding_window_inference(x, sides, pieces, predict, overlap=OVERLAP, mode="gaussian")
    return averaged


def split_windows(x: Tensor, window: Sequence[int] | None) -> Iterator[Tensor]:
    """The windows (n, C, *window) that cover images x (n, C, *spatial), as few as possible; the last along an axis ends
    with the image. None: whole images.
    """
    if window is None:
        yield x
        return
    from monai.data.utils import dense_patch_slices  # slow to import

    for place in dense_patch_slices(x.shape[2:], tuple(window), tuple(window)):
        yield x[(..., *place)]


def cut_windows(x: Tensor, window: Sequence[int] | None) -> Tensor:
    """The same windows as one tensor (n * m, C, *window), the m windows of an image behind each other."""
    return x if window is None else torch.stack([*split_windows(x, window)], dim=1).flatten(0, 1)


def average_by_slabs(
    predict: Callable[[Tensor], Tensor], x: Tensor, window: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """`average_windows` of images x (n, C, *spatial), slab by slab along the first axis in space: its first place, and
    (n, K, length, *rest). Sums of one window's length are held, whatever the length of the image.
    """
    from monai.data.utils import compute_importance_map, dense_patch_slices  # slow to import

    sides, lengths = tuple(x.shape[2:]), tuple(int(side) for side in window)
    if any(side < length for side, length in zip(sides, lengths, strict=True)):
        yield 0, average_windows(predict, x, window)
        return
    steps = tuple(
        length if side == length else max(1, int(length * (1 - OVERLAP)))
        for side, length in zip(sides, lengths, strict=True)
    )
    places = dense_patch_slices(sides, lengths, steps)
    weight = compute_importance_map(lengths, mode="gaussian", device=x.device, dtype=x.dtype)
    starts = sorted({place[0].start for place in places})
    sums, counts = x.new_zeros(0), x.new_zeros(1, 1, lengths[0], *sides[1:])
    for start, following in zip(starts, [*starts[1:], sides[0]], strict=True):
        for place in (place for place in places if place[0].start == start):
            answer = predict(x[(..., *place)])
            if not sums.numel():
                sums = answer.new_zeros(*answer.shape[:2], lengths[0], *sides[1:])
            rest = (..., slice(0, lengths[0]), *place[1:])
            sums[rest] += answer * weight
            counts[rest] += weight
        done = following - start
        yield start, sums[:, :, :done] / counts[:, :, :done]
        sums, counts = (
            torch.cat([part[:, :, done:], torch.zeros_like(part[:, :, :done])], dim=2) for part in (sums, counts)
        )  # new zeros: what was no number there must not pass on
