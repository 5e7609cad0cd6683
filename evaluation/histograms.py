"""Counts that a hospital sends about a model: how many images fall into each bin of predicted probability.

A model's scores on a hospital's test patients become, per class, a histogram on [0, 1] of the images of that class and
of all others, and a confusion matrix at threshold 0.5 (two classes) or at the largest probability. Scores of ordered
classes become, per cut between grades, a histogram of the probability that the grade reaches the cut, and the confusion
matrix is that of the median grade. Besides the sample itself there are B copies in which the
hospital's *patients* were resampled with replacement (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
with the patient as the unit): every interval that the coordinator prints is computed from them.

What the copies reveal beyond the histogram: bins that change together across copies belong to the same patient. With
the seed, and at least as many copies as patients, one can solve for every patient's own histogram; so a
hospital draws with a secret seed of its own, the same for all models, which keeps them paired. Even then
scores can be attributed to one and the same patient, though not to a named one.

C grades 0 .. C-1 have C - 1 cuts, between grade k - 1 and grade k. What a model says of a cut is P(grade >= k), the sum
of its probabilities from k on, so it falls from cut to cut whatever the network. The predicted grade is the median: the
highest whose cut the grade reaches with a probability of at least 0.5. No other grade has a smaller expected distance
from the true one; of two classes it is the one whose probability is at least 0.5.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evaluation.scale import CELLS, cell_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

BINS = 1024
TOLERANCE = 1e-3  # how far a row of probabilities may sum from 1: half precision is enough
PACKED = ("class_patients", "columns", "confusion", "patients", "scores", "shape")
LARGEST = 2**28  # elements of the scores once unpacked: a received shape must not fill the memory
Scale: TypeAlias = Literal["probability", "odds"]
PROBABILITY: Scale = "probability"
ODDS: Scale = "odds"
"""Scales with bins of equal width: of the probability itself, and as `evaluation.scale` has it."""


@dataclass(frozen=True)
class Packed:
    """Numbers of `shape`, most of which are 0: `values` (first side, m), at `columns` (m,) of the other sides in a row.
    With 1,000 copies a hospital's scores are 16 MiB, and a hundredth of that packed.
    """

    values: Ints
    columns: Ints
    shape: tuple[int, ...]

    def unpack(self, rows: slice = slice(None)) -> Ints:
        """The numbers, or those of some places of the first axis."""
        values = self.values[rows]
        flat: Ints = np.zeros((len(values), math.prod(self.shape[1:])), np.int64)
        flat[:, self.columns] = values
        unpacked: Ints = flat.reshape(len(values), *self.shape[1:])
        return unpacked

    def unpack_used(self) -> tuple[Ints, Ints]:
        """The numbers at those places of the last axis where there is any, and these places, in order."""
        last = self.shape[-1]
        used, place = np.unique(self.columns % last, return_inverse=True)
        sides = (len(self.values), *self.shape[1:-1], len(used))
        flat: Ints = np.zeros((len(self.values), math.prod(sides[1:])), np.int64)
        flat[:, self.columns // last * len(used) + place] = self.values
        return flat.reshape(sides), used


def pack_scores(scores: Ints) -> Packed:
    """Numbers >= 0 without the columns that are 0 at every place of the first axis."""
    flat = scores.reshape(len(scores), -1)
    columns = np.flatnonzero(flat.any(axis=0))
    values = flat[:, columns]
    small = not values.size or int(values.max()) <= np.iinfo(np.int32).max
    return Packed(values.astype(np.int32 if small else np.int64), columns, scores.shape)


@dataclass(frozen=True)
class Counts:
    """One model on the test images of one or more sites.

    packed: `scores` in little memory.
    confusion: (1 + B, C, C) images by [true, predicted] class.
    patients: patients in the sample.
    class_patients: (C,) patients with at least one image of the class, or of ordered classes by their highest.
    noise: standard deviation of the noise that was in each bin, in patients (`evaluation.noised`); 0 = counted.
    scale: of the bins; of noised counts the odds.
    """

    packed: Packed
    confusion: Ints
    patients: int
    class_patients: tuple[int, ...]
    noise: float = 0.0
    scale: Scale = PROBABILITY

    @property
    def scores(self) -> Ints:
        """(1 + B, K, 2, bins) images per bin of predicted probability, made anew each time; index 0 is the sample, 1..B
        its patient-bootstrap copies. K = 1 (class 1) for two classes, else K = C, each class against the rest, or of
        ordered classes K = C - 1, one for each cut. The axis of 2: (other, this class), or (below, from the cut on).
        """
        return self.packed.unpack()

    @property
    def used_scores(self) -> tuple[Ints, Ints]:
        """`scores` in the bins that hold any image, (1 + B, K, 2, m), and these bins, (m,) in order: a hospital has
        fewer images than there are bins.
        """
        return self.packed.unpack_used()

    @property
    def sample(self) -> Ints:
        """(K, 2, bins): the scores of the sample alone."""
        first: Ints = self.packed.unpack(slice(1))[0]
        return first

    @property
    def shape(self) -> tuple[int, ...]:
        """(1 + B, K, 2, bins), of the scores."""
        return self.packed.shape

    @property
    def copies(self) -> int:
        """B, the number of bootstrap copies."""
        return self.shape[0] - 1

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return int(self.confusion.shape[-1])

    @property
    def has_cuts(self) -> bool:
        """Whether a score row is a cut between more than two ordered classes."""
        return bool(2 <= self.shape[1] == self.classes - 1)


def count_scores(
    labels: ArrayLike,
    probabilities: ArrayLike,
    patients: ArrayLike,
    *,
    copies: int,
    seed: int,
    bins: int = BINS,
    site: str = "",
    ordered: bool = False,
) -> Counts:
    """Count the scores of one model on one site's test images, and of its bootstrap copies.

    Args:
        labels: (n,) int, the true class of each image.
        probabilities: (n, C), rows sum to 1. Probability p falls into bin min(floor(p * bins), bins - 1), so that 0.5
            is an edge for an even number of bins.
        patients: (n,) int, the patient of each image.
        copies: B, how often the patients are drawn again.
        seed: with `site` and the set of patients it fixes the draws, whatever the model: models are compared pair by
            pair.
        bins: bins on [0, 1].
        site: the hospital; hospitals that number their patients alike must not draw alike.
        ordered: whether each class is more than the one before it.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    y, p, who = np.asarray(labels), np.asarray(probabilities, dtype=np.float64), np.asarray(patients)
    if wrong := complaints(y, p, who, copies, bins):
        raise ValueError("cannot count scores: " + "; ".join(wrong))
    distinct, patient = np.unique(who.astype(np.int64), return_inverse=True)
    weights = np.vstack([np.ones((1, len(distinct)), np.int64), draw_patient_weights(distinct, copies, seed, site)])
    classes = p.shape[1]
    shown, this = list_rows(y, p, ordered=ordered)
    bin_ = np.minimum((shown * bins).astype(np.int64), bins - 1)
    rows = shown.shape[1]
    column = (np.arange(rows) * 2 + this) * bins + bin_
    scores = tally_weighted(patient[:, None], column, weights, rows * 2 * bins)
    predicted = predict_labels(p, ordered=ordered)
    confusion = tally_weighted(patient, y * classes + predicted, weights, classes * classes)
    return Counts(
        pack_scores(scores.reshape(copies + 1, rows, 2, bins)),
        confusion.reshape(copies + 1, classes, classes),
        len(distinct),
        count_class_patients(y, who, classes, ordered=ordered),
    )


def count_class_patients(y: Ints, patients: Ints, classes: int, *, ordered: bool) -> tuple[int, ...]:
    """(C,): patients with at least one image of each class; of ordered classes those of whom it is the highest."""
    if ordered and classes > 2:
        distinct, place = np.unique(patients, return_inverse=True)
        highest = np.zeros(len(distinct), np.int64)
        np.maximum.at(highest, place, y)
        return tuple(np.bincount(highest, minlength=classes).tolist())
    return tuple(int(np.unique(patients[y == c]).size) for c in range(classes))


def pool_counts(counts: Sequence[Counts]) -> Counts:
    """Pool sites: samples and copies are summed pairwise, so a pooled copy draws patients within each site.
    If some counts are noised, and so on the scale of the odds, the other counts are converted to it.

    Raises:
        ValueError: there is nothing to pool, or the counts differ in copies, classes or bins.
    """
    if any(c.scale == ODDS for c in counts):
        counts = [convert_to_odds(c) for c in counts]
    shapes = {(c.shape, c.confusion.shape) for c in counts}
    if len(shapes) != 1:
        shapes_text = ", ".join(f"scores {a} with confusion {b}" for a, b in sorted(shapes)) or "none"
        raise ValueError(f"counts to pool must agree in copies, classes and bins; found: {shapes_text}")
    scores = np.zeros(counts[0].shape, np.int64)
    for each in counts:  # one after the other, so that memory does not grow with their number
        scores.reshape(len(scores), -1)[:, each.packed.columns] += each.packed.values
    return Counts(
        pack_scores(scores),
        np.sum([c.confusion for c in counts], axis=0),
        sum(c.patients for c in counts),
        tuple(sum(c.class_patients[k] for c in counts) for k in range(counts[0].classes)),
        math.hypot(*(c.noise for c in counts)),
        counts[0].scale,
    )


def to_tensors(counts: Counts) -> dict[str, Tensor]:
    """Pack counts as int32 tensors, with only the bins that hold an image: one empty in the sample is so in every copy.

    Returns:
        scores (1 + B, m) over the m bins that hold an image, columns (m,) their place in K * 2 * bins, shape (4,),
        confusion (1 + B, C, C), patients (1,), class_patients (C,).

    Raises:
        ValueError: a count does not fit in 32 bits, or the counts are noised: `noised.to_tensors` sends the histogram.
    """
    if counts.noise:
        raise ValueError(f"counts with noise {counts.noise} are not packed; send the noised histogram instead")
    is_filled = counts.packed.values[0] > 0
    return to_int32(
        {
            "scores": counts.packed.values[:, is_filled],
            "columns": counts.packed.columns[is_filled],
            "shape": np.array(counts.shape),
            "confusion": counts.confusion,
            "patients": np.array([counts.patients]),
            "class_patients": np.array(counts.class_patients),
        }
    )


def from_tensors(tensors: Mapping[str, Tensor]) -> Counts:
    """Unpack what `to_tensors` packed.

    Raises:
        ValueError: naming everything that keeps the tensors from being counts.
    """
    if wrong := _find_format_problems(tensors):
        raise ValueError("these tensors are no counts: " + "; ".join(wrong))
    arrays = {name: tensors[name].numpy().astype(np.int64) for name in PACKED}
    packed = Packed(tensors["scores"].numpy(), arrays["columns"], tuple(int(n) for n in arrays["shape"]))
    patients = tuple(int(n) for n in arrays["class_patients"])
    counts = Counts(packed, arrays["confusion"], int(arrays["patients"][0]), patients)
    images = counts.confusion.sum(axis=(1, 2))
    if not (counts.scores.sum(axis=(2, 3)) == images[:, None]).all():
        raise ValueError("these tensors are no counts: scores and confusion do not count the same images")
    return counts


def convert_to_odds(counts: Counts) -> Counts:
    """The same counts on the scale of the odds, each bin at its centre."""
    if counts.scale == ODDS:
        return counts
    scores, bins = counts.scores, counts.shape[-1]
    moved = np.zeros((*counts.shape[:-1], CELLS), np.int64)
    for bin_, cell in enumerate(cell_of((np.arange(bins) + 0.5) / bins).tolist()):
        moved[..., cell] += scores[..., bin_]
    return replace(counts, packed=pack_scores(moved), scale=ODDS)


def draw_patient_weights(patients: Ints, copies: int, seed: int, site: str) -> Ints:
    """(copies, P): how often each patient, in ascending order, is in each copy."""
    generator = make_generator(seed, patients.astype("<i8").tobytes() + site.encode())
    number = len(patients)
    drawn = generator.integers(number, size=(copies, number)) + number * np.arange(copies)[:, None]
    return np.bincount(drawn.ravel(), minlength=copies * number).reshape(copies, number)


def make_generator(seed: int, content: bytes) -> np.random.Generator:
    """A generator that follows from a seed and from what it draws for."""
    number = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "little")
    return np.random.default_rng([abs(seed), int(seed < 0), number])


def tally_weighted(patient: Ints, column: Ints, weights: Ints, width: int) -> Ints:
    """(1 + B, width): how often each column occurs, each patient counted as often as it is in the copy."""
    from scipy import sparse  # slow to import

    rows, columns = (a.ravel() for a in np.broadcast_arrays(patient, column))
    ones = np.ones(len(rows), np.int64)
    per_patient = sparse.csr_array((ones, (rows, columns)), shape=(weights.shape[1], width))
    return np.ascontiguousarray((per_patient.T @ weights.T).T)


def complaints(
    y: NDArray[np.generic], p: Floats, who: NDArray[np.generic], copies: int, bins: int, *, fewest: int = 1
) -> list[str]:
    """Everything that is wrong with the arguments of `count_scores`. fewest: images; with noise there may be none,
    because an error would reveal it.
    """
    wrong = []
    if copies < 0:
        wrong.append(f"copies is {copies}, allowed is 0 or more")
    if bins < 2:
        wrong.append(f"bins is {bins}, allowed is 2 or more")
    if p.ndim != 2 or p.shape[0] < fewest or p.shape[1] < 2:
        return [*wrong, f"probabilities have shape {p.shape}, needed is (n, C) with n >= {fewest} and C >= 2"]
    for name, values in (("labels", y), ("patients", who)):
        if values.shape != p.shape[:1] or not np.issubdtype(values.dtype, np.integer):
            wrong.append(f"{name} have shape {values.shape} and type {values.dtype}, needed is ({len(p)},) of integers")
        elif name == "labels" and (outside := [int(v) for v in np.unique(y) if not 0 <= v < p.shape[1]]):
            wrong.append(f"labels hold {outside[:5]}, allowed is 0 to {p.shape[1] - 1}")
    off = ~np.isfinite(p).all(axis=1) | (p.min(axis=1) < 0) | (np.abs(p.sum(axis=1) - 1) > TOLERANCE)
    if off.any():
        wrong.append(
            f"{int(off.sum())} of {len(p)} rows of probabilities are not finite, negative or do not sum to 1; give the "
            f"softmax or sigmoid of the model's logits, not the logits"
        )
    return wrong


def _find_format_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Problems that are visible before unpacking."""
    wrong = find_type_problems(tensors, dict.fromkeys(PACKED, torch.int32))
    if set(tensors) != set(PACKED):
        return wrong
    shape, classes = tuple(tensors["shape"].tolist()), tensors["class_patients"].numel()
    allowed = (1,) if classes == 2 else (classes, classes - 1)
    if len(shape) != 4 or shape[1] not in allowed or shape[2] != 2 or min(shape) < 1:
        rows = " or ".join(map(str, allowed))
        return [*wrong, f"shape is {shape}, needed is (1 + copies, {rows}, 2, bins)"]
    sizes = {"confusion": (shape[0], classes, classes), "patients": (1,), "class_patients": (classes,)}
    return wrong + find_packing_problems(tensors, "", shape, sizes)


def find_type_problems(tensors: Mapping[str, Tensor], kinds: Mapping[str, torch.dtype]) -> list[str]:
    """Tensors that are missing or too many; else those of another type, and whole numbers below 0."""
    if set(tensors) != set(kinds):
        return [f"found {sorted(tensors)}, needed is {sorted(kinds)}"]
    each = sorted(tensors.items())
    wrong = [
        f"{name} is {tensor.dtype}, needed is {kinds[name]}" for name, tensor in each if tensor.dtype != kinds[name]
    ]
    integers = [(name, tensor) for name, tensor in each if kinds[name] == torch.int32 and tensor.numel()]
    return wrong + [f"{name} holds negative numbers" for name, tensor in integers if int(tensor.min()) < 0]


def find_size_problems(tensors: Mapping[str, Tensor], sizes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Tensors of another shape."""
    shapes = {name: tuple(tensors[name].shape) for name in sizes}
    return [
        f"{name} has shape {shapes[name]}, needed is {size}" for name, size in sizes.items() if shapes[name] != size
    ]


def find_packing_problems(
    tensors: Mapping[str, Tensor], prefix: str, shape: tuple[int, ...], sizes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """Problems of numbers packed in columns. prefix: of their names. shape: once unpacked. sizes: of other tensors."""
    width, columns = math.prod(shape[1:]), tensors[f"{prefix}columns"]
    if shape[0] * width > LARGEST:
        return [f"{prefix}shape is {shape}, allowed are {LARGEST} elements"]
    packed = {f"{prefix}scores": (shape[0], columns.numel()), f"{prefix}columns": (columns.numel(),)}
    wrong, places = find_size_problems(tensors, {**packed, **sizes}), columns.flatten().tolist()
    if len(set(places)) != len(places) or max(places, default=0) >= width:
        wrong.append(f"{prefix}columns must be distinct and below {width}")
    return wrong


def find_noise_problems(noise: object) -> list[str]:
    """What is wrong with a standard deviation of noise that was told."""
    is_number = isinstance(noise, int | float) and not isinstance(noise, bool)
    is_fine = is_number and 0 <= float(str(noise)) < math.inf
    return [] if is_fine else [f"noise is {noise!r}, allowed is a finite number >= 0"]


def to_int32(arrays: Mapping[str, Ints]) -> dict[str, Tensor]:
    """Counts as tensors for sending. Raises: ValueError: one does not fit in 32 bits."""
    largest = max((int(array.max()) for array in arrays.values() if array.size), default=0)
    if largest > torch.iinfo(torch.int32).max:
        raise ValueError(f"a count of {largest} does not fit in 32 bits; count fewer images at once")
    return {name: torch.from_numpy(array.astype(np.int32)) for name, array in arrays.items()}


def reach_cuts(probabilities: Floats) -> Floats:
    """(n, C - 1): P(grade >= k) for k = 1 .. C - 1. probabilities: (n, C)."""
    p = np.asarray(probabilities, np.float64)
    from_above = np.cumsum(p[:, :0:-1], axis=1)[:, ::-1]
    return from_above if p.shape[1] == 2 else np.clip(from_above, 0.0, 1.0)  # sums can leave [0, 1] by rounding


def predict_grades(probabilities: Floats) -> Ints:
    """(n,): the median grade of each row. probabilities: (n, C)."""
    return np.asarray((reach_cuts(probabilities) >= 0.5).sum(axis=1), dtype=np.int64)


def list_rows(y: Ints, probabilities: Floats, *, ordered: bool) -> tuple[Floats, Ints]:
    """The scores (n, K) by which a model is judged, and whether each holds of the image (n, K), 0 or 1.

    Of two classes that of class 1; of more that of each class against the rest, K = C, or if they are ordered of each
    cut, K = C - 1. y: (n,) true classes. probabilities: (n, C).
    """
    classes = probabilities.shape[1]
    if ordered or classes == 2:
        return reach_cuts(probabilities), (y[:, None] >= np.arange(1, classes)).astype(np.int64)
    return probabilities, (y[:, None] == np.arange(classes)).astype(np.int64)


def predict_labels(probabilities: Floats, *, ordered: bool) -> Ints:
    """(n,): the likeliest class of each row; of two the one with at least 0.5, of ordered ones the median."""
    if ordered or probabilities.shape[1] == 2:
        return predict_grades(probabilities)
    return np.asarray(probabilities.argmax(axis=1), dtype=np.int64)
