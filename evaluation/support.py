"""How many images and patients a score rests on, and whether that is enough to judge by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from evaluation.histograms import Counts
from evaluation.votes import BINS

NOISE_SHARE = 0.1  # largest noise in a class's number of patients, as a share of it: `Support.assessable`


@dataclass(frozen=True)
class Support:
    """The number of images and patients behind a score.

    `positives` and `negatives` count images of the rarest score row (two classes: class 1 and class 0; more: of the
    classes of `find_mean_classes`, the fewest images of a class, and the fewest outside a class; of cuts those of
    `find_mean_cuts`, the fewest images from a cut on, and the fewest below);
    `positive_patients` those of the rarest positive class, or from the highest cut on.
    Noised counts do not contain the number of images of a class, only of its patients: both then count patients.
    `noise`: as in `Counts`; `class_noise`: in a class's number of patients. They describe the measurement, not the
    sample, so they are not compared. For masks (`evaluation.overlap`) both count patients, with and without the
    structure; `defined` = patients for whom the measure has a value, None if it has one for all. It depends on the
    model, so it is not compared either.
    """

    patients: int
    images: int
    positives: int
    negatives: int
    positive_patients: int
    noise: float = field(default=0.0, compare=False)
    class_noise: float = field(default=0.0, compare=False)
    defined: int | None = field(default=None, compare=False)

    def assessable(self, *, images: int = 20, patients: int = 5, noise: float = NOISE_SHARE) -> bool:
        """Whether there are at least this many images on either side and positive patients, and little noise.
        For masks: whether there are this many patients with the structure.

        noise: largest `class_noise` as a share of the smaller class. Up to 0.1 the 95 % interval contained the AUC of
        two classes in 97 % of simulated hospitals, and the mean error was below 0.01; of several classes, whose
        histograms share the noise, their mean in about 80 % (benchmarks/studies/noised_scores.py).
        """
        if self.defined is not None:
            return self.positive_patients >= patients
        smaller_class = min(self.positives, self.negatives)
        return (
            smaller_class >= images and self.positive_patients >= patients and self.class_noise <= noise * smaller_class
        )


def compute_support(counts: Counts) -> Support:
    """The number of images and patients behind a score of these counts: by cut, where classes are ordered."""
    if counts.has_cuts:
        return _join_supports([compute_cut_support(counts, k) for k in np.flatnonzero(find_mean_cuts(counts)).tolist()])
    return compute_classes_support(counts)


def compute_classes_support(counts: Counts) -> Support:
    """The same behind a mean over classes, whether they are ordered or not."""
    if counts.classes > 2:
        each = [compute_class_support(counts, c) for c in np.flatnonzero(find_mean_classes(counts)).tolist()]
        return _join_supports(each)
    images = counts.sample.sum(axis=-1)
    return Support(
        patients=counts.patients,
        images=int(counts.confusion[0].sum()),
        positives=counts.class_patients[1] if counts.noise else int(images[:, 1].min()),
        negatives=counts.class_patients[0] if counts.noise else int(images[:, 0].min()),
        positive_patients=counts.class_patients[1],
        noise=counts.noise,
        class_noise=counts.noise * math.sqrt(BINS),
    )


def _join_supports(each: Sequence[Support]) -> Support:
    """The support of a mean over classes or cuts: that of the rarest."""
    return replace(
        each[0],
        positives=min(support.positives for support in each),
        negatives=min(support.negatives for support in each),
        positive_patients=min(support.positive_patients for support in each),
    )


def compute_class_support(counts: Counts, label: int) -> Support:
    """The same behind a score of one of more than two classes against the rest."""
    return _compute_side_support(counts, counts.class_patients[label], int(counts.confusion[0, label].sum()))


def compute_cut_support(counts: Counts, cut: int) -> Support:
    """The same behind a score of one cut, 0 = below grade 1. A patient reaches it with one image from it on."""
    patients = sum(counts.class_patients[cut + 1 :])
    return _compute_side_support(counts, patients, int(counts.confusion[0, cut + 1 :].sum()))


def _compute_side_support(counts: Counts, patients: int, images: int) -> Support:
    """The support of a score that tells these patients and images from all others."""
    total = int(counts.confusion[0].sum())
    return Support(
        patients=counts.patients,
        images=total,
        positives=patients if counts.noise else images,
        negatives=counts.patients - patients if counts.noise else total - images,
        positive_patients=patients,
        noise=counts.noise,
        class_noise=counts.noise * math.sqrt(BINS),
    )


def find_mean_classes(counts: Counts) -> NDArray[np.bool_]:
    """(C,): the classes over which a mean is taken, in the sample and in every copy.

    Both of two. Of more, those that can be assessed: a class with three patients would swing the mean. If fewer than
    two can be, those that the sample holds, and the mean is not assessable.
    """
    if counts.classes == 2:
        return np.ones(2, dtype=np.bool_)
    is_present = np.asarray(counts.confusion[0].sum(axis=-1) > 0, dtype=np.bool_)
    enough = np.array([compute_class_support(counts, c).assessable() for c in range(counts.classes)], dtype=np.bool_)
    return is_present & enough if (is_present & enough).sum() > 1 else is_present


def find_mean_cuts(counts: Counts) -> NDArray[np.bool_]:
    """(C - 1,): the cuts over which a mean is taken: those that can be assessed; if none can be, those with images on
    either side, and the mean is not assessable; if there are none, all, and the mean has no value.
    """
    each = [compute_cut_support(counts, k) for k in range(counts.classes - 1)]
    enough = np.array([support.assessable() for support in each], dtype=np.bool_)
    has_both = np.array([min(support.positives, support.negatives) > 0 for support in each], dtype=np.bool_)
    return enough if enough.any() else has_both if has_both.any() else np.ones_like(has_both)
