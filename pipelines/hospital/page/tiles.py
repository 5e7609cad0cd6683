"""A patient's image with its masks as a tile of a sheet, and scores in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from evaluation.tiles import Tile
from evaluation.volumes import PREDICTED, TRUE, SizeWords
from evaluation.wording import format_figures, format_number
from federation.task import IGNORED
from pipelines.data.cohort import Cohort
from pipelines.hospital.segmentation import kind_of

PLACED = ("", "slices", "volumes")
"""Kinds of images that lie somewhere in a study."""


def build_mask_tile(
    cohort: Cohort,
    row: int,
    true_mask: torch.Tensor,
    predicted_mask: torch.Tensor | None = None,
    text: str = "",
    plane: int | None = None,
) -> Tile:
    """An image with its given mask (*spatial), and a model's where there is one. text: before the patient's code.
    plane: of a volume; None = the slice that shows most of either mask, the given one first.
    """
    true_mask = true_mask.masked_fill(true_mask == IGNORED, 0)
    image, which = cohort.images[row], [true_mask, *([] if predicted_mask is None else [predicted_mask])]
    if image.dim() == 4:
        areas = [(mask > 0).sum(dim=(1, 2)) for mask in which]
        if plane is None:
            plane = next((int(area.argmax()) for area in areas if area.any()), len(true_mask) // 2)
        image, which = image[:, plane], [mask[plane] for mask in which]
    colour = len(image) == 3 and kind_of(cohort) != "slices"  # slices may have their neighbours beside them
    image = stretch_colours(cohort, image)
    place = f", slice {number_slice(cohort, row, plane)}" if kind_of(cohort) in PLACED else ""
    return Tile(
        image=((image.permute(1, 2, 0) + 1) / 2).numpy() if colour else image[len(image) // 2].numpy(),
        caption=f"{text}{cohort.patients[int(cohort.patient[row])][:8]}{place}",
        given_mask=which[0].numpy(),
        predicted_mask=None if predicted_mask is None else which[1].numpy(),
    )


def number_slice(cohort: Cohort, row: int, plane: int | None) -> int:
    """The number of a slice for a reader, from 1. plane: of a volume; None = the row is a slice."""
    return 1 + (int(cohort.position[row]) if plane is None else plane)


def stretch_colours(cohort: Cohort, image: torch.Tensor) -> torch.Tensor:
    """An image (C, H, W) whose three colours are in [-1, 1]; the range of tensors is unknown, so it is stretched."""
    if kind_of(cohort) != "tensors" or len(image) != 3:
        return image
    low, high = image.min(), image.max()
    return 2 * (image - low) / (high - low).clamp(min=1e-12) - 1


def in_words(scores: NDArray[np.float64], structures: Sequence[str], unit: str) -> str:
    """A patient's scores (C, 2): "Dice 0.912, HD95 2.100 mm", of each structure where there are several."""
    names = structures if len(structures) > 1 else [""]
    parts = []
    for c, name in enumerate(names):
        dice, far = (float(value) for value in scores[c])
        of = f" {name}" if name else ""
        parts.append(f"Dice{of} {format_number(dice)}, HD95{of} {format_number(far)}{f' {unit}' if far == far else ''}")
    return ", ".join(parts)


def describe_sizes(sizes: NDArray[np.float64], structures: Sequence[str], words: SizeWords) -> str:
    """A patient's sizes (C, 3): "volume 31.2 ml given, 45 ml predicted", of each structure where there are several."""
    names = structures if len(structures) > 1 else [""]
    parts = []
    for values, name in zip(sizes / words.divisor, names, strict=True):
        true, predicted = format_figures(float(values[TRUE])), format_figures(float(values[PREDICTED]))
        of = f" of {name}" if name else ""
        parts.append(f"{words.what}{of} {true} {words.unit} given, {predicted} {words.unit} predicted")
    return ", ".join(parts)
