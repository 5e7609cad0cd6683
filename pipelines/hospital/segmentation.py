"""Compare a model's masks of test patients with the true ones: sums leave, scores of single patients stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evaluation.floors import mean_mask
from evaluation.histograms import Floats
from evaluation.masks import DICE_AT, Values, score_masks
from evaluation.overlap import Overlaps, sum_over_patients, to_tensors
from evaluation.volumes import SizeWords
from evaluation.wording import Words
from federation.task import IGNORED
from pipelines.data.cohort import Cohort
from pipelines.data.stored import structures_of
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.words import WORDS
from pipelines.models.largest import keep_largest
from privacy.dp.access import Rows, Split
from privacy.message import Json, number_of

SLICES = 3  # of a patient who has several images
WORST = 3  # patients whose outlines are shown first


FLOOR = "floor/"
"""Prefix of the mean mask's tensors, in a reply and in the hospital's copy."""
STORED = ("patients", "scores", "present", "images")
SIZES = "sizes"


def score_patients(
    cohort: Cohort,
    truth: Rows,
    predicted: Tensor,
    classes: int,
    expected: Tensor | None = None,
    *,
    surfaces: bool = True,
) -> Values:
    """Scores of each test patient, one after another, of the cohort's regions or else of each class. truth: the test
    rows. predicted: (n, *spatial). expected: (n, classes - 1) pixels of each class by the probabilities, if known.
    surfaces: as in `score_masks`.
    """
    patient, spacing = truth.patient.cpu(), spacing_of(cohort)
    each = [(patient == who).nonzero()[:, 0] for who in torch.unique(patient)] or [torch.arange(0)]
    score = partial(
        score_masks,
        spacing_mm=spacing,
        classes=classes,
        ignored=IGNORED,
        structures=structures_of(cohort, classes),
        surfaces=surfaces,
    )
    parts = [
        score(
            truth.y[rows.to(truth.y.device)].cpu().numpy(),
            predicted[rows].numpy(),
            patient[rows].numpy(),
            expected=None if expected is None else expected[rows].numpy(),
        )
        for rows in each
    ]
    patients, scores, present, sizes = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("patients", "scores", "present", "sizes")
    )
    return Values(patients, scores, present, len(patient), sizes)


def find_largest(cohort: Cohort, validation: Rows, predicted: Tensor, classes: int) -> tuple[int, ...]:
    """The structures, 1 = the first, of which only the largest component is to be kept, because that raises the
    validation patients' Dice, summed over structures. predicted: (n, *spatial) of the validation rows.

    What is left out becomes background. So one class's decision does not change another's Dice, but one region's may:
    each is decided after those before it.
    """
    if not len(validation.y):
        return ()
    cleaned, chosen = predicted, list[int]()

    def find_dice(masks: Tensor) -> Floats:
        return score_patients(cohort, validation, masks, classes, surfaces=False).scores[:, :, DICE_AT]

    before = find_dice(cleaned)
    for number, members in enumerate(structures_of(cohort, classes), start=1):
        trial = keep_components(cleaned, [members])
        after = find_dice(trial)
        if np.nansum(after - before) > 0:
            cleaned, before = trial, after
            chosen.append(number)
    return tuple(chosen)


def keep_components(predicted: Tensor, structures: Sequence[Sequence[int]]) -> Tensor:
    """The masks (n, *spatial) of examples, of these structures, by their classes, with the largest component only."""
    if not structures:
        return predicted
    return torch.stack([torch.from_numpy(keep_largest(each, structures)) for each in predicted.cpu().numpy()])


def floor_of(cohort: Cohort, splits: Mapping[Split, Rows], classes: int) -> Values:
    """Scores of a baseline: the mean mask of the training patients, predicted for every test image."""
    test = splits["test"]
    mask = torch.from_numpy(mean_mask(splits["train"].y.cpu(), test.y.shape[1:], classes))
    return score_patients(cohort, test, mask.expand(test.y.shape), classes)


def compute_sums(hospital: Hospital, values: Values, copies: int) -> Overlaps:
    """Sums over the hospital's patients, and over its own draws of them."""
    return sum_over_patients(values, copies=copies, seed=hospital.bootstrap_seed(), site=hospital.name)


def reply_tensors(hospital: Hospital, values: Values, floor: Values | None, copies: int) -> dict[str, Tensor]:
    """The tensors of a reply."""
    model_tensors = to_tensors(compute_sums(hospital, values, copies))
    low = {} if floor is None else to_tensors(compute_sums(hospital, floor, copies))
    return {**model_tensors, **{f"{FLOOR}{name}": tensor for name, tensor in low.items()}}


def patient_scores(values: Values, floor: Values | None) -> dict[str, Tensor]:
    """Tensors of single patients' scores, which stay at the hospital."""
    parts = {"": values} | ({} if floor is None else {FLOOR: floor})
    tensors: dict[str, Tensor] = {}
    for prefix, part in parts.items():
        numbers = (part.patients, part.scores, part.present.astype("uint8"))
        tensors |= {f"{prefix}{name}": torch.from_numpy(n) for name, n in zip(STORED, numbers, strict=False)}
        tensors[f"{prefix}images"] = torch.tensor([part.images])
        tensors |= {} if part.sizes is None else {f"{prefix}{SIZES}": torch.from_numpy(part.sizes)}
    return tensors


def read_patient_scores(tensors: Mapping[str, Tensor], prefix: str = "") -> Values | None:
    """Read what `patient_scores` wrote; None if there is nothing."""
    if f"{prefix}scores" not in tensors:
        return None
    patients, scores, present, images = (tensors[f"{prefix}{name}"].numpy() for name in STORED)
    sizes = tensors.get(f"{prefix}{SIZES}")
    return Values(patients, scores, present.astype(bool), int(images[0]), None if sizes is None else sizes.numpy())


def spacing_of(cohort: Cohort) -> tuple[float, ...]:
    """Pixel spacing along the axes of an image: mm, or 1 if unknown (pictures)."""
    images = cohort.recipe.get("images")
    settings: Mapping[str, Json] = images if isinstance(images, dict) else {}
    plane = number_of(settings, "spacing_mm", 1.0)
    deep = [number_of(settings, "depth_mm", 1.0)] * (cohort.images.dim() - 4)
    return (*deep, plane, plane)


def kind_of(cohort: Cohort) -> str:
    """The kind of a cohort's examples; empty if unknown."""
    images = cohort.recipe.get("images")
    return str(images.get("kind", "")) if isinstance(images, dict) else ""


def words_of_kind(kind: str) -> Words:
    """The name of examples of a kind, and the unit of distances."""
    return replace(WORDS.get(kind, Words()), length={"pictures": "pixels", "tensors": "places"}.get(kind, "mm"))


def select_shown_patients(values: Values) -> list[tuple[str, int]]:
    """(what, row of `found`) of the best, the median and the worst patient by mean Dice; fewer where there are fewer.

    Patients without any structure, by both masks, have no Dice and are not shown.
    """
    order = _rank_patients(values)
    if not order:
        return []
    places = {"best": 0, "worst": len(order) - 1} if len(order) < 3 else {}
    places = places or {"best": 0, "median": len(order) // 2, "worst": len(order) - 1}
    return [(what, order[place]) for what, place in places.items()][: len(order)]


def select_worst_first(values: Values) -> list[tuple[str, int]]:
    """(what, row) of the `WORST` worst patients by mean Dice, the worst first, and below them for comparison the median
    and the best one; nobody twice, and nobody without a Dice.
    """
    order = _rank_patients(values)[::-1]
    chosen = [("worst" if place == 0 else f"{place + 1}. worst", row) for place, row in enumerate(order[:WORST])]
    rest = order[WORST:]
    if len(rest) > 1:
        chosen.append(("median", rest[max(0, len(order) // 2 - WORST)]))
    return [*chosen, ("best", rest[-1])] if rest and chosen[-1][1] != rest[-1] else chosen


def _rank_patients(values: Values) -> list[int]:
    """Rows of patients who have a Dice, from the best to the worst mean over structures."""
    means = [
        (sum(known) / len(known), row)
        for row, dice in enumerate(values.scores[:, :, 0].tolist())
        if (known := [value for value in dice if not math.isnan(value)])
    ]
    return [row for _, row in sorted(means, reverse=True)]


def size_words(kind: str) -> SizeWords:
    """What the size of a mask is called for a kind of examples, and its unit."""
    known = {
        "volumes": SizeWords("volume", "ml", 1000.0),
        "slices": SizeWords("summed area", "cm²", 100.0),
        "tensors": SizeWords("size", "places", 1.0),
    }
    return known.get(kind, SizeWords("area", "pixels", 1.0))


def most_of(masks: Tensor, patient_rows: Sequence[Tensor]) -> list[Tensor]:
    """The rows with most of the true mask: equally many of each patient (own: their rows), at most `SLICES`."""
    count, chosen = min([SLICES, *map(len, patient_rows)]), []
    for rows in patient_rows:
        area = ((masks[rows] > 0) & (masks[rows] != IGNORED)).flatten(1).sum(dim=1)
        chosen.append(rows[area.argsort(descending=True, stable=True)[:count].sort().values])
    return chosen
