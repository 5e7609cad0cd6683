"""Scores from one noised histogram, which a hospital sends about a model under patient-level differential privacy.

Counts and bootstrap copies (`evaluation.histograms`) protect no patient. Under differential privacy the hospital
releases one histogram instead: over 2 x bins cells, (other, this class) x bins of the predicted probability of class 1.
Each test patient adds a non-negative vector that sums to 1 - their images per cell over all their images - and Gaussian
noise is added to each cell. All functions here but `votes` see only the result, so they cost no privacy. Their other
inputs are declared public: the numbers of test patients, of images, and of patients with at least one image of a class.

Noise makes cells negative, and a true 0 looks like a few patients. So the histogram is first projected onto possible
ones: no cell negative, the declared number of patients, and of each class no more patients than have it. Compared with
clipping at 0 this does not reduce the error, but intervals contain the truth more often. The last condition changed no
error; it keeps a class without patients empty.

Such counts weight every patient equally; counts without noise weight every image equally. Both are the same where each
patient has one image.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evaluation.histograms import LARGEST, Counts, Floats, Ints, complaints

NOISED_BINS = 8
"""By measurement (benchmarks/noised_scores.py): with more bins the noise pulls the AUC towards 0.5 and intervals miss
it; with fewer, images that the model separates share a bin. A model whose scores all lie within a few bins looks
worse than it is, noise or not, and no interval shows it: scores on 0.35 .. 0.55 lost 0.1 of AUC at 8 bins."""

MOST = 2**31 - 1  # images and patients; received numbers must not overflow
FACTS = ("class_patients", "images", "noise", "patients")


def votes(
    labels: ArrayLike, probabilities: ArrayLike, patients: ArrayLike, *, bins: int = NOISED_BINS
) -> NDArray[np.int64]:
    """Images per cell of each patient, (P, 2 * bins), patients in ascending order of their number.

    Divided by its sum, a row is its patient's contribution to the histogram. The result is not private yet.

    Args:
        labels: (n,) int, 0 or 1.
        probabilities: (n, 2), rows sum to 1. Probability p of class 1 falls into bin min(floor(p * bins), bins - 1).
        patients: (n,) int, the patient of each image.
        bins: bins on [0, 1], an even number, so that 0.5 is an edge.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    y, p, who = np.asarray(labels), np.asarray(probabilities, dtype=np.float64), np.asarray(patients)
    wrong = complaints(y, p, who, 0, bins)
    if bins % 2:
        wrong.append(f"bins is {bins}, needed is an even number, so that 0.5 is an edge")
    if p.ndim == 2 and p.shape[1] > 2:
        wrong.append(f"probabilities are of {p.shape[1]} classes, allowed are 2 classes only")
    if wrong:
        raise ValueError("cannot count votes: " + "; ".join(wrong))
    distinct, patient = np.unique(who, return_inverse=True)
    cell = y * bins + np.minimum((p[:, 1] * bins).astype(np.int64), bins - 1)
    counted = np.bincount(patient * 2 * bins + cell, minlength=len(distinct) * 2 * bins)
    return np.asarray(counted.reshape(len(distinct), 2 * bins), dtype=np.int64)


def from_noised(
    histogram: ArrayLike,
    *,
    noise: float,
    patients: int,
    images: int,
    class_patients: tuple[int, int],
    copies: int,
    seed: int,
) -> Counts:
    """Counts from a noised histogram, so that every protocol, table, figure and interval works with it.

    The projected histogram is scaled to `images`, and rounded so that the total stays. Each copy is a parametric
    bootstrap (Efron and Tibshirani 1993, section 6.5): `patients` are drawn from the projected histogram, each as one
    cell, noise is added anew, then the same projection and rounding. So intervals include the sampling of patients and
    the noise. They are not paired between models, whatever the seed, because the noise of different models is
    independent.

    Args:
        histogram: (2, bins), cells of (class 0, class 1); bins even.
        noise: standard deviation of the Gaussian noise in each cell, in patients.
        patients, images: in the test split; each patient has at least one image.
        class_patients: patients with at least one image of class 0 and of class 1.
        copies: B, how many bootstrap copies.
        seed: with the histogram it fixes the copies.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    h = np.asarray(histogram, dtype=np.float64)
    if wrong := [*_misshapen(h, copies), *_impossible(noise, patients, images, class_patients)]:
        raise ValueError("these are no noised counts: " + "; ".join(wrong))
    least, most = patients - class_patients[0], class_patients[1]  # of class 1, in patients
    sample = projected(h, patients, np.array(least), np.array(most))
    generator = np.random.default_rng([abs(seed), int(seed < 0), _digest(h)])
    flat = sample.ravel() / sample.sum()
    drawn = generator.multinomial(patients, flat, size=copies).astype(np.float64).reshape(copies, *h.shape)
    shift = drawn[:, 1].sum(axis=-1) - sample[1].sum()  # other patients were drawn, so other numbers are declared
    low, high = (np.clip(bound + shift, 0, patients) for bound in (least, most))
    redone = projected(drawn + noise * generator.standard_normal(drawn.shape), patients, low, high)
    scores = _rounded(np.concatenate([sample[None], redone]), patients, images)
    confusion = scores.reshape(len(scores), 2, 2, -1).sum(axis=-1)
    return Counts(scores[:, None], confusion, patients, tuple(class_patients), float(noise))


def projected(histogram: Floats, patients: float, least: Floats, most: Floats) -> Floats:
    """The nearest histograms (Euclidean) with no negative cell, `patients` in all and `least` to `most` of class 1.

    First onto the simplex, which says how many are of class 1; that number is brought into its bounds, and each class
    is projected onto its own simplex. This is exact: where the number is out of bounds, the nearest histogram has it at
    the bound, since it is a linear function on a convex set.

    Args:
        histogram: (..., 2, bins).
        patients: the total.
        least, most: (...,), with 0 <= least <= most <= patients.
    """
    *lead, classes, bins = histogram.shape
    together = _simplex(histogram.reshape(*lead, classes * bins), np.full(lead, float(patients)))
    positive = np.clip(together[..., bins:].sum(axis=-1), least, most)
    return _simplex(histogram, np.stack([patients - positive, positive], axis=-1))


def to_tensors(histogram: ArrayLike) -> dict[str, Tensor]:
    """A noised histogram (2, bins) as sent: noised, float32 (2, bins). Its facts (`FACTS`) are sent with it."""
    return {"noised": torch.from_numpy(np.asarray(histogram, dtype=np.float32))}


def from_tensors(tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int) -> Counts:
    """Counts from a received message: the tensor of `to_tensors` and the facts noise, patients, images, class_patients.

    Raises:
        ValueError: naming everything that keeps them from being noised counts.
    """
    wrong = []
    if set(tensors) != {"noised"}:
        wrong.append(f"found the tensors {sorted(tensors)}, needed is ['noised']")
    elif tensors["noised"].dtype != torch.float32:
        wrong.append(f"noised is {tensors['noised'].dtype}, needed is float32")
    else:
        wrong += _misshapen(tensors["noised"].numpy(), copies)
    if missing := [name for name in FACTS if name not in facts]:
        wrong.append(f"the facts lack {', '.join(missing)}")
    else:
        wrong += _impossible(*(facts[name] for name in ("noise", "patients", "images", "class_patients")))
    if wrong:
        raise ValueError("these are no noised counts: " + "; ".join(wrong))
    known: dict[str, object] = {name: facts[name] for name in FACTS}
    return from_noised(tensors["noised"].numpy(), **known, copies=copies, seed=seed)  # type: ignore[arg-type]


def _simplex(values: Floats, total: Floats) -> Floats:
    """(..., d) projected onto {h >= 0, sum h = total}, total (...,) >= 0 (Duchi et al. 2008, figure 1)."""
    falling = -np.sort(-values, axis=-1)
    excess = np.cumsum(falling, axis=-1) - total[..., None]
    number = np.arange(1, values.shape[-1] + 1)
    kept = np.maximum((falling * number >= excess).sum(axis=-1, keepdims=True), 1)
    return np.asarray(np.maximum(values - np.take_along_axis(excess, kept - 1, axis=-1) / kept, 0.0), dtype=np.float64)


def _rounded(histograms: Floats, patients: int, images: int) -> Ints:
    """(n, 2, bins) of patients as whole images, `images` in all: first each class's number, then each cell."""
    scaled = histograms * (images / patients)
    return _apportioned(scaled, _apportioned(scaled.sum(axis=-1), np.full(len(scaled), images)))


def _apportioned(shares: Floats, total: Ints) -> Ints:
    """(..., d) as whole numbers that sum to total (...,): the largest remainders are rounded up."""
    nearest = np.rint(shares)
    shares = np.where(np.abs(shares - nearest) < 1e-6, nearest, shares)  # 2.9999999 is 3, not 2 with a remainder
    whole = np.floor(shares).astype(np.int64)
    rank = np.argsort(np.argsort(whole - shares, axis=-1, kind="stable"), axis=-1)
    return np.asarray(whole + (rank < (total - whole.sum(axis=-1))[..., None]), dtype=np.int64)


def _digest(histogram: Floats) -> int:
    """A seed from the histogram itself: copies of two models must not have the same noise."""
    return int.from_bytes(hashlib.blake2b(histogram.astype("<f8").tobytes(), digest_size=16).digest(), "little")


def _misshapen(h: NDArray[np.floating], copies: int) -> list[str]:
    """Everything that is wrong with a histogram and the number of its copies."""
    wrong = []
    if copies < 0:
        wrong.append(f"copies is {copies}, allowed is 0 or more")
    if h.ndim != 2 or h.shape[0] != 2 or h.shape[1] < 2 or h.shape[1] % 2:
        return [*wrong, f"the histogram has shape {h.shape}, needed is (2, bins): two classes, an even number of bins"]
    if h.size * (1 + copies) > LARGEST:
        wrong.append(f"{1 + copies} histograms of {h.size} cells are too many, allowed are {LARGEST} cells")
    if not np.isfinite(h).all():
        wrong.append(f"{int((~np.isfinite(h)).sum())} of {h.size} cells are not finite")
    return wrong


def _impossible(noise: object, patients: object, images: object, class_patients: object) -> list[str]:
    """Everything that is wrong with the declared facts, each by itself and then together."""
    wrong = []
    if isinstance(noise, bool) or not isinstance(noise, int | float) or not (noise >= 0 and math.isfinite(noise)):
        wrong.append(f"noise is {noise!r}, allowed is a finite number >= 0")
    for name, value in (("patients", patients), ("images", images)):
        if not _whole(value, 1):
            wrong.append(f"{name} is {value!r}, allowed is 1 to {MOST}")
    pair = class_patients if isinstance(class_patients, list | tuple) else ()
    if len(pair) != 2 or not all(_whole(one, 0) for one in pair):
        wrong.append(f"class_patients is {class_patients!r}, needed are two whole numbers, for class 0 and class 1")
    elif _whole(patients, 1) and not max(pair) <= patients <= sum(pair):  # type: ignore[operator]
        wrong.append(f"class_patients is {class_patients!r} of {patients} patients; each patient has one class or both")
    if not wrong and sum(pair) > images:  # type: ignore[operator]
        wrong.append(f"images is {images}, needed is {sum(pair)} or more: one for each patient of a class")
    return wrong


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST
