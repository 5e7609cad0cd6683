"""Half-overlapping windows over images that are larger than what a network sees at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from privacy.dp.chunks import at_once

OVERLAP = 0.5  # along each axis


def average_windows(predict: Callable[[Tensor], Tensor], x: Tensor, window: Sequence[int]) -> Tensor:
    """What `predict` gives for windows (b, C, *window) of images x (n, C, *spatial), averaged where they overlap with
    weights of a Gaussian about their middle: (n, K, *spatial). An image that is smaller is filled with zeros about it.
    """
    from monai.inferers.utils import sliding_window_inference  # slow to import

    sides = [int(side) for side in window]
    pieces = at_once(x.new_empty(1, x.shape[1], *sides), dense=True)
    averaged: Tensor = sliding_window_inference(x, sides, pieces, predict, overlap=OVERLAP, mode="gaussian")
    return averaged
