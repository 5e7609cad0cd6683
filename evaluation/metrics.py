"""Metrics from histograms of scores and from confusion counts, over any leading axes, and what a score rests on.

Array functions come first, then how many images and patients are behind a score, then the measures of the report, each
a number per copy of `Counts`. A ratio whose denominator counts no image is NaN: a score that cannot be computed is not
zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.histograms import ODDS, Counts, Floats, Ints
from evaluation.votes import BINS


def auc(scores: Ints | Floats) -> Floats:
    """Area under the ROC curve as the Mann-Whitney statistic, ties counting half (Hanley and McNeil 1982).

    Images of one bin are tied: the value differs from the unbinned one by at most half the share of pairs within a bin.

    Args:
        scores: (..., 2, bins), images of (other, this) class.

    Returns:
        (...,), NaN where one of the two is absent.
    """
    other, this = scores[..., 0, :], scores[..., 1, :]
    twice_below = 2 * np.cumsum(other, axis=-1) - other  # 2 * those in lower bins + those in the same bin
    wins = (this * twice_below).sum(axis=-1)
    return ratio(wins, 2 * this.sum(axis=-1) * other.sum(axis=-1))


def roc_curve(scores: Ints) -> tuple[Floats, Floats]:
    """False and true positive rate, each (..., bins + 1), for thresholds from above the last bin down to 0."""
    reached = np.cumsum(scores[..., ::-1], axis=-1)
    rates = ratio(reached, scores.sum(axis=-1, keepdims=True))
    rates = np.concatenate([np.zeros_like(rates[..., :1]), rates], axis=-1)
    return rates[..., 0, :], rates[..., 1, :]


def class_recalls(confusion: Ints | Floats) -> Floats:
    """(..., C): the share of images of each true class that was recognised; NaN for an absent class."""
    return ratio(np.diagonal(confusion, axis1=-2, axis2=-1), confusion.sum(axis=-1))


def accuracy(confusion: Ints) -> Floats:
    """Share of images that were recognised, (...,)."""
    return ratio(np.trace(confusion, axis1=-2, axis2=-1), confusion.sum(axis=(-2, -1)))


def sensitivity(confusion: Ints) -> Floats:
    """Recall of the positive one of two classes, (...,)."""
    return np.asarray(class_recalls(confusion)[..., 1])


def specificity(confusion: Ints) -> Floats:
    """Recall of the negative one of two classes, (...,)."""
    return np.asarray(class_recalls(confusion)[..., 0])


def quadratic_kappa(confusion: Ints | Floats) -> Floats:
    """Agreement of ordered classes beyond chance, (...,): 1 - sum(w O) / sum(w E) with w = (i - j)^2 (Cohen 1968).

    O are the images by [true, predicted] class, E those that the margins alone would give. NaN where E has no
    disagreement, as with one class only.
    """
    grade = np.arange(confusion.shape[-1])
    weight = (grade[:, None] - grade) ** 2
    true, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    expected = ratio(true[..., :, None] * predicted[..., None, :], confusion.sum(axis=(-2, -1))[..., None, None])
    return 1 - ratio((weight * confusion).sum(axis=(-2, -1)), (weight * expected).sum(axis=(-2, -1)))


def mean_grade_error(confusion: Ints | Floats) -> Floats:
    """How many grades predictions of ordered classes are off, (...,): the mean of |true - predicted|."""
    grade = np.arange(confusion.shape[-1])
    distance = np.abs(grade[:, None] - grade)
    return ratio((distance * confusion).sum(axis=(-2, -1)), confusion.sum(axis=(-2, -1)))


def brier_score(scores: Ints, centre: Floats | None = None) -> Floats:
    """Mean squared difference of probability and truth (Brier 1950), (...,).

    Every probability is replaced by its bin's centre, which changes the value by less than 1 / bins. centre: of each
    bin; None: bins are all there are from 0 to 1.
    """
    centre = _bin_centres(scores.shape[-1]) if centre is None else centre
    squares = scores[..., 1, :] * (1 - centre) ** 2 + scores[..., 0, :] * centre**2
    return ratio(squares.sum(axis=-1), scores.sum(axis=(-2, -1)))


def calibration_error(scores: Ints, *, groups: int = 16) -> Floats:
    """Expected calibration error over equally wide groups of bins (Naeini et al. 2015), (...,).

    The mean over images of |share of this class in the image's group - mean probability there|.

    Raises:
        ValueError: the bins cannot be grouped evenly.
    """
    bins = scores.shape[-1]
    if groups < 1 or bins % groups:
        raise ValueError(f"{bins} bins cannot form {groups} equal groups; give a divisor of {bins}")
    grouped = (*scores.shape[:-2], groups, bins // groups)
    this, images = scores[..., 1, :], scores.sum(axis=-2)
    gap = this.reshape(grouped).sum(axis=-1) - (images * _bin_centres(bins)).reshape(grouped).sum(axis=-1)
    return ratio(np.abs(gap).sum(axis=-1), images.sum(axis=-1))


def ratio(numerator: NDArray[np.generic], denominator: NDArray[np.generic]) -> Floats:
    """Quotient, NaN where the denominator is 0."""
    top, bottom = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    result: Floats = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom != 0)
    return result


def _bin_centres(bins: int) -> Floats:
    """The probability at the centre of each bin, (bins,)."""
    return (np.arange(bins) + 0.5) / bins


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
        return join_supports([compute_cut_support(counts, k) for k in np.flatnonzero(find_mean_cuts(counts)).tolist()])
    return compute_classes_support(counts)


def compute_classes_support(counts: Counts) -> Support:
    """The same behind a mean over classes, whether they are ordered or not."""
    if counts.classes > 2:
        each = [compute_class_support(counts, c) for c in np.flatnonzero(find_mean_classes(counts)).tolist()]
        return join_supports(each)
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


def join_supports(each: Sequence[Support]) -> Support:
    """The support of a mean over classes or cuts: that of the rarest."""
    return replace(
        each[0],
        positives=min(support.positives for support in each),
        negatives=min(support.negatives for support in each),
        positive_patients=min(support.positive_patients for support in each),
    )


def compute_class_support(counts: Counts, place: int) -> Support:
    """The same behind a score of one of more than two classes against the rest."""
    return _compute_side_support(counts, counts.class_patients[place], int(counts.confusion[0, place].sum()))


def compute_cut_support(counts: Counts, place: int) -> Support:
    """The same behind a score of one cut, 0 = below grade 1. A patient reaches it with one image from it on."""
    patients = sum(counts.class_patients[place + 1 :])
    return _compute_side_support(counts, patients, int(counts.confusion[0, place + 1 :].sum()))


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
    """(C - 1,): the cuts over which a mean is taken, as `select_assessable` has it."""
    return select_assessable([compute_cut_support(counts, k) for k in range(counts.classes - 1)])


def select_assessable(each: Sequence[Support]) -> NDArray[np.bool_]:
    """Those that can be assessed; if none can be, those with images on either side, and their mean is not assessable;
    if there are none, all, and the mean has no value.
    """
    enough = np.array([support.assessable() for support in each], dtype=np.bool_)
    has_both = np.array([min(support.positives, support.negatives) > 0 for support in each], dtype=np.bool_)
    return enough if enough.any() else has_both if has_both.any() else np.ones_like(has_both)


@dataclass(frozen=True)
class Measure:
    """A metric with its name, of `Counts`, of `overlap.Overlaps` or of `numbers.Errors`: `of` gives (1 + B,), the
    sample's value and its copies'; `rests`, the support of the sample's value. ranked: whether a model can gain in it.
    """

    name: str
    of: Callable[[Any], Floats]
    higher_is_better: bool = True
    rests: Callable[[Any], Support] = compute_support
    ranked: bool = True


def _balanced_accuracy(counts: Counts) -> Floats:
    """(1 + B,): mean recall over the classes of `find_mean_classes`."""
    return np.asarray(class_recalls(counts.confusion)[:, find_mean_classes(counts)].mean(axis=-1))


def _mean_auc(counts: Counts) -> Floats:
    """(1 + B,): the AUC of class 1, or the mean over the classes of `find_mean_classes`, or over the cuts of
    `find_mean_cuts`.
    """
    each = auc(counts.used_scores[0])
    if counts.classes == 2:
        return np.asarray(each.mean(axis=-1))
    return np.asarray(each[:, find_mean_cuts(counts) if counts.has_cuts else find_mean_classes(counts)].mean(axis=-1))


def _summed_brier(counts: Counts) -> Floats:
    """(1 + B,): the Brier score summed over score rows, which of cuts is the ranked probability score (Epstein 1969);
    NaN for noised counts.
    """
    if counts.scale == ODDS:
        return _all_nan(counts)
    scores, bins = counts.used_scores
    return np.asarray(brier_score(scores, _bin_centres(counts.shape[-1])[bins]).sum(axis=-1))


def _mean_calibration_error(counts: Counts) -> Floats:
    """(1 + B,): the calibration error, mean over score rows; NaN for noised counts."""
    if counts.scale == ODDS:
        return _all_nan(counts)
    groups = counts.shape[-1] if counts.shape[-1] % 16 else 16
    return np.asarray(calibration_error(counts.scores, groups=groups).mean(axis=-1))


def _all_nan(counts: Counts) -> Floats:
    """Of noised counts: their bins are too wide to tell how large a probability was."""
    return np.full(1 + counts.copies, np.nan)


BALANCED_ACCURACY = Measure("balanced accuracy", _balanced_accuracy, rests=compute_classes_support)
ACCURACY = Measure("accuracy", lambda counts: accuracy(counts.confusion))
AUC = Measure("AUC", _mean_auc)
BRIER = Measure("Brier score", _summed_brier, higher_is_better=False)
RANKED_PROBABILITY = Measure("ranked probability score", _summed_brier, higher_is_better=False)
CALIBRATION = Measure("calibration error", _mean_calibration_error, higher_is_better=False)
SENSITIVITY = Measure("sensitivity", lambda counts: sensitivity(counts.confusion))
SPECIFICITY = Measure("specificity", lambda counts: specificity(counts.confusion))
KAPPA = Measure("quadratic kappa", lambda counts: quadratic_kappa(counts.confusion))
GRADE_ERROR = Measure("MAE in grades", lambda counts: mean_grade_error(counts.confusion), higher_is_better=False)
MEASURES = (AUC, BALANCED_ACCURACY, ACCURACY)
"""Of labels, as pages and tables show them: first the one by which models are recommended, and compared in words and in
figures, of two classes and of more; as Dice is of masks and the mean absolute error of numbers.
"""
FURTHER = (SENSITIVITY, SPECIFICITY, BRIER, RANKED_PROBABILITY, CALIBRATION)
"""A second table: scores at the threshold 0.5, and scores of the probabilities themselves."""
