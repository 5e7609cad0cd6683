"""What a hospital releases of a model's scores under patient-level differential privacy: histograms, each with noise.

To each histogram a patient adds a non-negative vector that sums to 1 - their images per cell over all their images -
so that its L2 sensitivity to one patient is 1, whatever the other patients are. All of them together cost what one
histogram with noise of standard deviation `noise` costs: a histogram that gets the share s of the budget has noise /
sqrt(s), and the shares sum to 1 (`Parts`). First come the levels of the scale (`evaluation.scale`), then, in bins that
follow from them,
the scores by class:

two classes: one histogram (other, this class) x bins of the probability of class 1; 0.5 is an edge.
more: one of (true class) x bins of that class's own probability; for each class, bins of its probability over the
    images of all others, with one more cell for its own; and (true, predicted) class.
ordered: for each cut between grades, one histogram (below, from the cut on) x bins of the probability that the grade
    reaches it (`evaluation.histograms`); and (true, predicted) class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from evaluation.histograms import Floats, Ints, complaints, list_rows, predict_grades
from evaluation.scale import BRANCH, LEVELS, cell_of, cells_at_level, compute_density, compute_edges, tree_levels

BINS = 8
"""By measurement (benchmarks/studies/noised_scores.py): with more bins the noise pulls the AUC towards 0.5, with fewer,
images that the model separates share a bin."""
SCALE, OWN_CLASS, REST, CONFUSION = 0.1, 0.45, 0.25, 0.2
"""Shares of the budget with more than two classes; with two, all but `SCALE` is the one histogram's. Cuts between
ordered classes share what is neither the scale's nor the confusion's.
"""

AddNoise = Callable[[Ints, float], Floats]
"""(P, cells) images of each patient, and the noise's standard deviation -> the noised histogram (cells,)."""


class Parts(NamedTuple):
    """Standard deviations of the noise, in patients, of each cell of: a level of the scale; the scores of the images
    of a class, or those at a cut; those of the images of all others; the confusion.
    """

    scale: float
    own: float
    rest: float
    confusion: float


class Release(NamedTuple):
    """What leaves, which is rounded to float32. levels: (K, TREE), the levels of each score row, one after the other.
    histograms: by name, see `release_histograms`.
    """

    levels: Floats
    histograms: Mapping[str, Floats]


def split_noise(noise: float, classes: int, *, ordered: bool = False) -> Parts:
    """The noise of each part of a release that costs as much as one histogram with `noise`."""
    if classes == 2:
        class_noise = noise / math.sqrt(1 - SCALE)
        return Parts(noise * math.sqrt(LEVELS / SCALE), class_noise, class_noise, class_noise)
    if ordered:
        cuts = classes - 1
        cut_noise = noise * math.sqrt(cuts / (1 - SCALE - CONFUSION))
        return Parts(noise * math.sqrt(LEVELS * cuts / SCALE), cut_noise, cut_noise, noise / math.sqrt(CONFUSION))
    return Parts(
        noise * math.sqrt(LEVELS * classes / SCALE),
        noise / math.sqrt(OWN_CLASS),
        noise * math.sqrt(classes / REST),
        noise / math.sqrt(CONFUSION),
    )


def release_histograms(
    labels: ArrayLike,
    probabilities: ArrayLike,
    patients: ArrayLike,
    *,
    noise: float,
    class_patients: Sequence[int],
    number: int,
    add_noise: AddNoise,
    ordered: bool = False,
) -> Release:
    """The noised histograms of one model's scores on one site's test images.

    Args:
        labels: (n,) int, the true class of each image; n may be 0.
        probabilities: (n, C), rows sum to 1.
        patients: (n,) int, the patient of each image.
        noise: the standard deviation of the one histogram that would cost as much as all of it.
        number, class_patients: of test patients, and of those with an image of each class (of ordered ones by their
            highest), as they are declared: bins follow from them and from noised counts only.
        add_noise: adds the noise, and records that it did.
        ordered: whether each class is more than the one before it.

    Returns:
        Histograms of two classes: noised (2, bins). Of more: noised (C, bins), rest (C, bins + 1), the last cell for
        the class's own images, confusion (C, C). Of ordered ones: cuts (C - 1, 2 * bins), confusion (C, C).

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    y, p, who = np.asarray(labels), np.asarray(probabilities, dtype=np.float64), np.asarray(patients)
    if wrong := complaints(y, p, who, 0, BINS, fewest=0):
        raise ValueError("cannot count votes: " + "; ".join(wrong))
    classes, how = p.shape[1], split_noise(noise, p.shape[1], ordered=ordered)
    shown, this = list_rows(y, p, ordered=ordered)
    cells = cell_of(shown)
    tree = [
        [add_noise(tree_votes(row_cells, who, level), how.scale) for level in range(1, LEVELS + 1)]
        for row_cells in cells.T
    ]
    levels = np.stack([np.concatenate(each) for each in tree]).astype(np.float32).astype(np.float64)
    bounds = bins_from(levels, number, class_patients)
    if ordered and classes > 2:
        rows = zip(cells.T, this.T, bounds, strict=True)
        cuts = [add_noise(cut_votes(*row, who), how.own) for row in rows]
        confusion = add_noise(confusion_votes(y, p, who, ordered=True), how.confusion).reshape(classes, classes)
        return Release(levels, {"cuts": np.stack(cuts), "confusion": confusion})
    own_class = add_noise(class_votes(y, p, who, bounds), how.own).reshape(classes, BINS)
    if classes == 2:
        return Release(levels, {"noised": own_class})
    rest = [add_noise(rest_votes(y, p, who, bounds, c), how.rest) for c in range(classes)]
    confusion = add_noise(confusion_votes(y, p, who), how.confusion).reshape(classes, classes)
    return Release(levels, {"noised": own_class, "rest": np.stack(rest), "confusion": confusion})


def bins_from(levels: Floats, number: int, class_patients: Sequence[int]) -> Ints:
    """(K, bins - 1): the edges that follow from released levels (K, TREE) and from the numbers of `release_histograms`,
    the same at the hospital and wherever they are received.
    """
    classes = len(class_patients)
    has_cuts = len(levels) == classes - 1
    bin_edges = []
    for row, flat in enumerate(levels):
        positive = sum(class_patients[row + 1 :]) if has_cuts else class_patients[row]
        where, share = compute_density(tree_levels(flat), number), positive / max(sum(class_patients), 1)
        bin_edges.append(compute_edges(where, BINS, share=share, half=classes == 2))
    return np.stack(bin_edges)


def tree_votes(cells: Ints, patients: Ints, level: int) -> Ints:
    """(P, BRANCH ** level) images of each patient in each cell of a level."""
    return _count_by_patient(patients, cells_at_level(cells, level), BRANCH**level)


def class_votes(y: Ints, p: Floats, patients: Ints, edges: Ints) -> Ints:
    """(P, C * bins) images of each patient by true class and bin: of class 1's probability, of more than two classes
    of the true class's own. edges: (K, bins - 1).
    """
    label = np.ones_like(y) if p.shape[1] == 2 else y
    bins = bins_of(p[np.arange(len(y)), label], edges[np.zeros_like(y) if p.shape[1] == 2 else y])
    return _count_by_patient(patients, y * BINS + bins, p.shape[1] * BINS)


def rest_votes(y: Ints, p: Floats, patients: Ints, edges: Ints, label: int) -> Ints:
    """(P, bins + 1) images of each patient of all other classes by bin of this class's probability, and its own."""
    bins = bins_of(p[:, label], np.broadcast_to(edges[label], (len(y), BINS - 1)))
    return _count_by_patient(patients, np.where(y == label, BINS, bins), BINS + 1)


def cut_votes(cells: Ints, this: Ints, edges: Ints, patients: Ints) -> Ints:
    """(P, 2 * bins) images of each patient below a cut, and from it on (`this`, (n,)), by bin of the cell of its
    probability. edges: (bins - 1,).
    """
    bins = np.asarray((cells[:, None] >= edges).sum(axis=1), dtype=np.int64)
    return _count_by_patient(patients, this * BINS + bins, 2 * BINS)


def confusion_votes(y: Ints, p: Floats, patients: Ints, *, ordered: bool = False) -> Ints:
    """(P, C * C) images of each patient by true and likeliest class, or median grade."""
    predicted = predict_grades(p) if ordered else p.argmax(axis=1)
    return _count_by_patient(patients, y * p.shape[1] + predicted, p.shape[1] ** 2)


def bins_of(probability: Floats, edges: Ints) -> Ints:
    """(n,) bins of probabilities (n,), each between its own edges (n, bins - 1)."""
    return np.asarray((cell_of(probability)[:, None] >= edges).sum(axis=1), dtype=np.int64)


def _count_by_patient(patients: Ints, cell: Ints, width: int) -> Ints:
    """(P, width): images of each patient in each cell, patients in ascending order of their number."""
    distinct, patient = np.unique(patients, return_inverse=True)
    counted = np.bincount(patient * width + cell, minlength=len(distinct) * width)
    return np.asarray(counted.reshape(len(distinct), width), dtype=np.int64)
