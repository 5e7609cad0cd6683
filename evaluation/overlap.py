"""Sums that a hospital sends about a segmentation model: agreement of its masks with the given ones, over patients.

A model that misses a patient loses in Dice and not in HD95 (see `evaluation.masks`), so every score says for how many
patients it has a value. Besides the sample's sums there are those of B copies with patients resampled, the same draws
as in `evaluation.histograms`; its warning about the seed applies here too: such sums can be solved for single
patients' values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evaluation.histograms import LARGEST, Floats, Ints, draw_patient_weights, find_size_problems, find_type_problems
from evaluation.masks import DICE_AT, FARTHEST, HD95_AT, Values
from evaluation.metrics import Measure, Support, ratio

PACKED = ("class_patients", "images", "known", "patients", "totals")


@dataclass(frozen=True)
class Overlaps:
    """One model on the test images of one or more sites, C classes without the background, M = 2 measures: Dice, HD95.

    totals: (1 + B, C, M) sums over patients; index 0 is the sample, 1..B its patient-bootstrap copies.
    known: (1 + B, C, M) patients for whom the measure has a value.
    patients, images: in the sample. class_patients: (C,) patients whose given masks contain the structure.
    """

    totals: Floats
    known: Ints
    patients: int
    class_patients: tuple[int, ...]
    images: int

    @property
    def noise(self) -> float:
        """No noise: `histograms.Counts` may have some."""
        return 0.0


def sum_over_patients(values: Values, *, copies: int, seed: int, site: str = "") -> Overlaps:
    """Sums over patients and over their bootstrap copies.

    Args:
        values: of single patients.
        copies: B, how often the patients are resampled.
        seed, site: as in `histograms.count_scores`; they fix the draws whatever the model.

    Raises:
        ValueError: copies is negative.
    """
    if copies < 0:
        raise ValueError(f"copies is {copies}, allowed is 0 or more")
    number, classes, _ = values.scores.shape
    weights = np.vstack([np.ones((1, number), np.int64), draw_patient_weights(values.patients, copies, seed, site)])
    flat = values.scores.reshape(number, -1)
    shape = (copies + 1, classes, 2)
    return Overlaps(
        (weights @ np.nan_to_num(flat)).reshape(shape),
        (weights @ np.isfinite(flat).astype(np.int64)).reshape(shape),
        number,
        tuple(int(count) for count in values.present.sum(axis=0)),
        values.images,
    )


def pool_overlaps(sites: Sequence[Overlaps]) -> Overlaps:
    """Pool sites: sums are added, copies pairwise, so a pooled copy draws patients within each site.

    Raises:
        ValueError: there is nothing to pool, or they differ in copies or classes.
    """
    shapes = {site.totals.shape for site in sites}
    if len(shapes) != 1:
        shapes_text = ", ".join(str(shape) for shape in sorted(shapes)) or "none"
        raise ValueError(f"overlaps to pool must agree in copies and classes; found totals of {shapes_text}")
    return Overlaps(
        np.sum([site.totals for site in sites], axis=0),
        np.sum([site.known for site in sites], axis=0),
        sum(site.patients for site in sites),
        tuple(sum(site.class_patients[c] for site in sites) for c in range(len(sites[0].class_patients))),
        sum(site.images for site in sites),
    )


def to_tensors(overlaps: Overlaps) -> dict[str, Tensor]:
    """Pack for sending: totals (1 + B, C, M) float64, the others int32: known (1 + B, C, M), patients (1,), images
    (1,), class_patients (C,).
    """
    integers = {
        "known": overlaps.known,
        "patients": np.array([overlaps.patients]),
        "images": np.array([overlaps.images]),
        "class_patients": np.array(overlaps.class_patients),
    }
    totals = torch.from_numpy(np.ascontiguousarray(overlaps.totals))
    return {"totals": totals, **{name: torch.from_numpy(array.astype(np.int32)) for name, array in integers.items()}}


def from_tensors(tensors: Mapping[str, Tensor]) -> Overlaps:
    """Unpack the tensors of `to_tensors`.

    Raises:
        ValueError: naming everything that keeps the tensors from being overlaps.
    """
    if wrong := _find_format_problems(tensors) or _find_value_problems(tensors):
        raise ValueError("these tensors are no overlaps: " + "; ".join(wrong))
    return Overlaps(
        tensors["totals"].numpy(),
        tensors["known"].numpy().astype(np.int64),
        int(tensors["patients"][0]),
        tuple(int(n) for n in tensors["class_patients"]),
        int(tensors["images"][0]),
    )


def _find_format_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Problems of types and shapes."""
    wrong = find_type_problems(tensors, {**dict.fromkeys(PACKED, torch.int32), "totals": torch.float64})
    if set(tensors) != set(PACKED):
        return wrong
    classes, shape = tensors["class_patients"].numel(), tuple(tensors["totals"].shape)
    if len(shape) != 3 or shape[0] < 1 or shape[1:] != (classes, 2) or classes < 1:
        return [*wrong, f"totals have shape {shape}, needed is (1 + copies, {classes}, 2) with a class or more"]
    if tensors["totals"].numel() > LARGEST:
        wrong.append(f"totals have shape {shape}, allowed are {LARGEST} elements")
    sizes = {"known": shape, "patients": (1,), "images": (1,), "class_patients": (classes,)}
    return wrong + find_size_problems(tensors, sizes)


def _find_value_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Values that no patients could give, in tensors with the right types and shapes."""
    totals, known, class_patients = tensors["totals"], tensors["known"], tensors["class_patients"]
    patients, most = int(tensors["patients"][0]), torch.tensor([1.0, FARTHEST], dtype=torch.float64)
    tests = {
        f"patients is {patients}, needed is 1 or more": patients < 1,
        f"images is {int(tensors['images'][0])}, needed is one a patient or more": int(tensors["images"][0]) < patients,
        f"class_patients must be in [0, {patients}]": bool(((class_patients < 0) | (class_patients > patients)).any()),
        f"known must be in [0, {patients}]": bool(((known < 0) | (known > patients)).any()),
        "totals hold numbers that are not finite": not bool(totals.isfinite().all()),
        f"totals are negative, or above 1 a known patient for Dice or {FARTHEST:g} for HD95": bool(
            ((totals < 0) | (totals > known * most)).any()
        ),
        "HD95 is known of more patients than Dice, or than have the structure": bool(
            (known[..., HD95_AT] > known[..., DICE_AT]).any() or (known[0, :, HD95_AT] > class_patients).any()
        ),
        "Dice is known of fewer patients than have the structure": bool((known[0, :, DICE_AT] < class_patients).any()),
    }
    return [problem for problem, wrong in tests.items() if wrong]


def _mean_over_patients(overlaps: Overlaps, at: int, only: int | None) -> Floats:
    """(1 + B,): mean over patients, then over the classes in the sample's given masks, or of one class."""
    means = ratio(overlaps.totals[..., at], overlaps.known[..., at])
    classes = _list_mean_classes(overlaps, only)
    return np.asarray(means[:, classes].mean(axis=-1)) if classes else np.full(len(means), np.nan)


def _list_mean_classes(overlaps: Overlaps, only: int | None) -> list[int]:
    """The classes of a mean: structures that the hospital's patients have, because it may lack some."""
    return [c for c, patients in enumerate(overlaps.class_patients) if patients] if only is None else [only]


def _score_support(overlaps: Overlaps, at: int, only: int | None) -> Support:
    """The number of patients behind a score: of several classes, those with the rarest structure."""
    classes = _list_mean_classes(overlaps, only)
    positive = min((overlaps.class_patients[c] for c in classes), default=0)
    return Support(
        patients=overlaps.patients,
        images=overlaps.images,
        positives=positive,
        negatives=overlaps.patients - positive,
        positive_patients=positive,
        defined=min((int(overlaps.known[0, c, at]) for c in classes), default=0),
    )


def _make_measure(name: str, at: int, only: int | None = None) -> Measure:
    """The measure at a place of the last axis. only: the class it is computed for; None = mean over classes."""
    return Measure(
        name,
        lambda overlaps: _mean_over_patients(overlaps, at, only),
        higher_is_better=at == DICE_AT,
        rests=lambda overlaps: _score_support(overlaps, at, only),
    )


DICE = _make_measure("Dice", DICE_AT)
HD95 = _make_measure("HD95", HD95_AT)


def list_measures(structures: Sequence[str]) -> tuple[Measure, ...]:
    """Dice and HD95 over all structures, and if there are several also of each. structures: names, class 1 first."""
    each = enumerate(structures if len(structures) > 1 else ())
    named = [_make_measure(f"{m.name} {name}", at, c) for c, name in each for at, m in enumerate((DICE, HD95))]
    return (DICE, HD95, *named)
