"""A network's predictions: classes and probabilities, of whole images or windows, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.task import Task
from federation.windows import average_by_slabs, average_windows
from privacy.dp.chunks import at_once
from privacy.dp.stored_rows import split_rows


def predict_classes(task: Task, module: nn.Module, x: Tensor, *, window: Sequence[int] | None = None) -> Tensor:
    """The most probable class of each pixel, (n, *spatial) uint8 on the CPU; 0 where the network gives NaN.

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
    """classes: (n, *spatial) uint8, the most probable class of each pixel; 0 where the network gives NaN. expected:
    (n, classes - 1) float64, the sum over pixels of each class's probability, without the background. Both on the CPU.
    """

    classes: Tensor
    expected: Tensor


def predict_masks(task: Task, module: nn.Module, x: Tensor, *, window: Sequence[int] | None = None) -> Masks:
    """As `predict_classes`, with how many pixels of each class the probabilities add up to."""
    if window is not None and len(window) != x.dim() - 2:
        raise ValueError(f"window is {list(window)}, needed are {x.dim() - 2} sides")
    if window is None and task.patch is not None and tuple(x.shape[2:]) != task.patch:
        window = task.patch

    def predict(pieces: Tensor) -> Tensor:
        return task.probabilities(module, pieces)

    class_maps, expected = list[Tensor](), list[Tensor]()
    for part in (x[rows] for rows in split_rows(x, at_once(x))):
        is_whole = window is None or not len(part)
        slabs = [(0, predict(part))] if is_whole else average_by_slabs(predict, part, window or ())
        masks = [masks_of_probabilities(slab) for _, slab in slabs]
        class_maps.append(torch.cat([each.classes for each in masks], dim=1))
        expected.append(torch.stack([each.expected for each in masks]).sum(dim=0))
    return Masks(torch.cat(class_maps), torch.cat(expected))


def masks_of_probabilities(probabilities: Tensor) -> Masks:
    """The masks that probabilities (n, classes, *spatial) give."""
    known = probabilities.nan_to_num(nan=0.0)  # no number: background
    expected = known[:, 1:].flatten(2).sum(dim=2, dtype=torch.float64)
    return Masks(known.argmax(dim=1).to("cpu", torch.uint8), expected.cpu())


def predict_probabilities(task: Task, module: nn.Module, x: Tensor, window: Sequence[int] | None) -> Tensor:
    """Probabilities (n, classes, *spatial) of images x, whole or in windows, as in `answers`."""
    if window is None:
        return task.probabilities(module, x)
    return average_windows(lambda pieces: task.probabilities(module, pieces), x, window)
