"""A network's predictions: classes and probabilities, of whole images or windows, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.task import Task
from federation.windows import average_windows
from privacy.dp.chunks import at_once


def predict_classes(task: Task, module: nn.Module, x: Tensor, *, window: Sequence[int] | None = None) -> Tensor:
    """The most probable class of each pixel, (n, *spatial) int64 on the CPU; 0 where the network gives NaN.

    Args:
        task: what was learnt.
        module: the trained network, on the device of the images.
        x: (n, C, *spatial).
        window: sides of half-overlapping windows, weighted by a Gaussian about their middle. None: those of the patches
            on which the model is trained, or whole images.

    Raises:
        ValueError: the window has another number of sides.
    """
    return predict_masks(task, module, x, window=window).classes


class Masks(NamedTuple):
    """classes: (n, *spatial) int64, the most probable class of each pixel; 0 where the network gives NaN. expected:
    (n, classes - 1) float64, the sum over pixels of each class's probability, without the background. Both on the CPU.
    """

    classes: Tensor
    expected: Tensor


def predict_masks(task: Task, module: nn.Module, x: Tensor, *, window: Sequence[int] | None = None) -> Masks:
    """As `predict_classes`, with how many pixels of each class the probabilities add up to."""
    if window is not None and len(window) != x.dim() - 2:
        raise ValueError(f"window is {list(window)}, needed are {x.dim() - 2} sides")
    parts = torch.split(x, at_once(x, dense=True))
    parts_found = [masks_of_probabilities(predict_probabilities(task, module, part, window)) for part in parts]
    return Masks(*(torch.cat(tensors) for tensors in zip(*parts_found, strict=True)))


def masks_of_probabilities(probabilities: Tensor) -> Masks:
    """The masks that probabilities (n, classes, *spatial) give."""
    known = probabilities.nan_to_num(nan=0.0)  # no number: background
    return Masks(known.argmax(dim=1).cpu(), known[:, 1:].flatten(2).sum(dim=2, dtype=torch.float64).cpu())


def predict_probabilities(task: Task, module: nn.Module, x: Tensor, window: Sequence[int] | None) -> Tensor:
    """Probabilities (n, classes, *spatial) of images x, whole or in windows, as in `answers`."""
    if window is None:
        return task.probabilities(module, x)
    return average_windows(lambda pieces: task.probabilities(module, pieces), x, window)
