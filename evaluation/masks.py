"""Agreement of a model's masks with the given ones, patient by patient.

Dice (Dice, Ecology 26, 1945) of a patient is computed over all images as one volume, 2 |A and B| / (|A| + |B|). It is 0
if one of the two is empty; if both are, it has no value. HD95 is the symmetric 95th
percentile of distances between surfaces, the larger of both directions' percentiles, as in MONAI (after the
Hausdorff distance: Huttenlocher et al., IEEE PAMI 15, 1993). It has no value if either mask is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.histograms import Floats

DICE_AT, HD95_AT = 0, 1
GRID = 2.0**20
"""Values are rounded to 1 / GRID: sums of them are then exact, in any order, on any machine."""
FARTHEST = 2.0**20  # in mm or pixels; sums of received values must stay exact


@dataclass(frozen=True)
class Values:
    """Scores of P single patients, which stay at the hospital. patients: (P,) ascending. scores: (P, C, M), NaN where a
    measure has no value. present: (P, C) whether the given masks contain the structure. images: in all. sizes: None, or
    (P, C, 3) of the given and of the model's masks over all images of a patient, and the sum of the structure's
    probability (NaN = unknown), in mm² or mm³, or in pixels without a spacing.
    """

    patients: NDArray[np.int64]
    scores: Floats
    present: NDArray[np.bool_]
    images: int
    sizes: Floats | None = None


def score_masks(
    truth: ArrayLike,
    predicted: ArrayLike,
    patients: ArrayLike,
    *,
    spacing_mm: Sequence[float],
    classes: int,
    expected: ArrayLike | None = None,
    ignored: int | None = None,
    structures: Sequence[Sequence[int]] | None = None,
    surfaces: bool = True,
) -> Values:
    """Dice, HD95 and sizes of each patient and structure, C structures in all.

    HD95 is computed for each image, so in the plane for slices; a patient's is the mean over images in which neither
    mask is empty. A structure that is missed in a slice, or drawn where none is, affects only Dice.

    Args:
        truth, predicted: (n, *spatial) int, 0 = background, 1 .. classes - 1.
        patients: (n,) int, the patient of each image.
        spacing_mm: distance between neighbouring pixels along each axis of an image.
        classes: with the background.
        expected: (n, classes - 1), pixels of each class that the probabilities of an image add up to, if known.
        ignored: the value of `truth` where nobody says which class is there. Dice does not count it, and an image that
            has it has no HD95, because a surface may lie within it.
        structures: the classes that each structure is made of; structures may overlap. None = each class is one.
        surfaces: whether HD95 is computed, which takes long; otherwise it has no value.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    t, p, who = np.asarray(truth), np.asarray(predicted), np.asarray(patients)
    members = [*((number,) for number in range(1, classes))] if structures is None else [*map(tuple, structures)]
    if wrong := _find_mask_problems(t, p, who, spacing_mm, classes, ignored, members):
        raise ValueError("cannot compare masks: " + "; ".join(wrong))
    distinct = np.unique(who.astype(np.int64))
    scores = np.full((len(distinct), len(members), 2), np.nan)
    present = np.zeros((len(distinct), len(members)), dtype=np.bool_)
    for row, patient in enumerate(distinct):
        rows = np.flatnonzero(who == patient)
        unknown = t[rows] == ignored if ignored is not None else np.zeros((), np.bool_)
        is_known = ~unknown.reshape(len(rows), -1).any(axis=1) if unknown.any() else np.ones(len(rows), np.bool_)
        for c, numbers in enumerate(members):
            true_masks, model_masks = is_any_of(t[rows], numbers), is_any_of(p[rows], numbers) & ~unknown
            present[row, c] = true_masks.any()
            scores[row, c, DICE_AT] = dice(true_masks, model_masks)
            pairs = zip(true_masks[is_known], model_masks[is_known], strict=True) if surfaces else ()
            far = [value for pair in pairs if (value := hd95(*pair, spacing_mm)) == value]
            scores[row, c, HD95_AT] = np.mean(far) if far else np.nan
    sums = np.full((len(t), classes - 1), np.nan) if expected is None else np.asarray(expected, np.float64)
    is_unknown = np.zeros(t.shape, np.bool_) if ignored is None else np.asarray(t == ignored, np.bool_)
    partly = np.atleast_1d(is_unknown.reshape(len(t), -1).any(axis=1))
    sums = np.where(partly[:, None], np.nan, sums)  # probabilities are of all pixels
    sizes = measure_sizes(t, np.where(is_unknown, 0, p), sums, spacing_mm, members)
    total = np.stack([sizes[who == patient].sum(axis=0) for patient in distinct])
    return Values(distinct, np.round(scores * GRID) / GRID, present, len(t), total)


def measure_sizes(
    truth: NDArray[np.integer],
    predicted: NDArray[np.integer],
    expected: Floats,
    spacing_mm: Sequence[float],
    members: Sequence[Sequence[int]],
) -> Floats:
    """(n, C, 3): the size of each structure in given masks, in predicted ones, and as expected.

    truth, predicted: (n, *spatial) int. expected: (n, classes - 1) pixels. members: the classes of each structure.
    """
    axes = tuple(range(1, truth.ndim))
    counts = [
        np.stack([is_any_of(mask, numbers).sum(axis=axes) for numbers in members], axis=-1)
        for mask in (truth, predicted)
    ]
    sums = np.stack([expected[:, np.asarray(numbers) - 1].sum(axis=1) for numbers in members], axis=-1)
    return np.asarray(np.stack([*counts, sums], axis=-1) * float(np.prod(spacing_mm)), dtype=np.float64)


def is_any_of(class_map: NDArray[np.generic], numbers: Sequence[int]) -> NDArray[np.bool_]:
    """Where a map has one of these classes: the mask of the structure that they make."""
    return reduce(np.logical_or, [class_map == number for number in numbers])


def dice(true_mask: NDArray[np.bool_], model_mask: NDArray[np.bool_]) -> float:
    """2 |A and B| / (|A| + |B|) of two masks of one shape; NaN where both are empty."""
    size = int(true_mask.sum()) + int(model_mask.sum())
    return 2 * int((true_mask & model_mask).sum()) / size if size else float("nan")


def hd95(true_mask: NDArray[np.bool_], model_mask: NDArray[np.bool_], spacing_mm: Sequence[float]) -> float:
    """Symmetric 95th percentile of the distances between two masks' surfaces, in mm; NaN if either is empty.

    A pixel is on the surface if a neighbour along an axis is outside the mask or outside the image.
    """
    if not (true_mask.any() and model_mask.any()):
        return float("nan")
    from scipy import ndimage  # slow to import

    (box,) = ndimage.find_objects((true_mask | model_mask).astype(np.int8))
    surfaces = [mask & ~ndimage.binary_erosion(mask) for mask in (true_mask[box], model_mask[box])]
    far = [ndimage.distance_transform_edt(~surface, sampling=spacing_mm) for surface in surfaces]
    return float(max(np.quantile(far[0][surfaces[1]], 0.95), np.quantile(far[1][surfaces[0]], 0.95)))


def _find_mask_problems(
    t: NDArray[np.generic],
    p: NDArray[np.generic],
    who: NDArray[np.generic],
    spacing_mm: Sequence[float],
    classes: int,
    ignored: int | None,
    members: Sequence[Sequence[int]],
) -> list[str]:
    """Everything that is wrong with the arguments of `score_masks`."""
    wrong = [f"classes is {classes}, needed is 2 or more: the background and a structure"] if classes < 2 else []
    if t.ndim < 3 or not len(t) or p.shape != t.shape:
        return [*wrong, f"truth and predicted are {t.shape} and {p.shape}, needed is (n, *spatial) of both, n >= 1"]
    for name, mask in (("truth", t), ("predicted", p)):
        if not np.issubdtype(mask.dtype, np.integer):
            wrong.append(f"{name} is {mask.dtype}, needed are integers")
        elif mask.min() < 0 or _find_highest(mask, ignored if name == "truth" else None) >= classes:
            wrong.append(f"{name} goes from {mask.min()} to {mask.max()}, allowed is 0 to {classes - 1}")
    if who.shape != t.shape[:1] or not np.issubdtype(who.dtype, np.integer):
        wrong.append(f"patients are {who.shape} of {who.dtype}, needed is ({len(t)},) of integers")
    if len(spacing_mm) != t.ndim - 1 or not all(0 < step < FARTHEST for step in spacing_mm):
        wrong.append(f"spacing is {list(spacing_mm)}, needed are {t.ndim - 1} numbers > 0 for the axes of an image")
    if classes > 1 and not (members and all(numbers and set(numbers) <= set(range(1, classes)) for numbers in members)):
        wrong.append(f"structures are {list(members)}, needed are classes from 1 to {classes - 1} of each")
    return wrong


def _find_highest(mask: NDArray[np.generic], ignored: int | None) -> int:
    """The highest value that is not ignored; -1 if there is none."""
    highest = mask.max()
    return int(highest if highest != ignored else mask.max(where=mask != ignored, initial=-1))
