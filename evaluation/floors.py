"""Baselines in every table: scores of a predictor that knows the hospital but not the image.

The majority-class baseline gives all images of a hospital one score, the share of positive images in its test set, and
the most common class, or of ordered classes the median one. Its AUC and balanced accuracy are 0.5 at each hospital;
over the pooled sample of all hospitals its AUC shows how much is gained by distinguishing the hospitals. It is a
generous baseline: the share is that of the test set, not of training. Of several findings it guesses each for itself.

The baseline of a number is the median guess: the median of the hospital's training labels for every image, which has
the least mean absolute error of all such guesses. The baseline of segmentation is the mean mask: every image gets the
same mask, the usual place of the structure in the hospital's own training masks. The hospital computes and scores both
like a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.findings import Findings, guess_shares
from evaluation.histograms import ODDS, Counts, pack_scores, predict_grades
from evaluation.numbers import Errors
from evaluation.overlap import Overlaps
from evaluation.protocols import Evidence, Table, own_model_table
from evaluation.rows import FLOORS, MAJORITY, MEAN_MASK, MEDIAN, ScoreRow
from evaluation.scale import cell_of


def majority_baseline(counts: Counts) -> Counts:
    """The same images, all with the sample's share of each class as score, or of what reaches each cut, and its most
    common class as prediction, or its median one.

    The bootstrap copies keep the sample's shares: the prediction does not change with the drawn patients.
    """
    truth = counts.confusion.sum(axis=-1)  # (1 + B, C)
    confusion = np.zeros_like(counts.confusion)
    shares = truth[:1] / max(truth[0].sum(), 1)
    confusion[..., int(predict_grades(shares)[0] if counts.has_cuts else truth[0].argmax())] = truth
    scores, totals = np.zeros(counts.shape, np.int64), counts.scores.sum(axis=-1)  # (1 + B, K, 2)
    bins = counts.shape[-1]
    for row, (other, this) in enumerate(totals[0]):
        share = max(this / max(other + this, 1), 0)
        place = int(cell_of(share)) if counts.scale == ODDS else min(int(share * bins), bins - 1)
        scores[:, row, :, place] = totals[:, row]
    return replace(counts, packed=pack_scores(scores), confusion=confusion)


def mean_mask(masks: Iterable[ArrayLike], shape: Sequence[int], classes: int) -> NDArray[np.uint8]:
    """One mask (*spatial) for all images: the class that a pixel has in more than half of the masks that contain the
    class, the likeliest of several, else background. Without masks it is empty.

    Args:
        masks: (*spatial) int, of each training image; 0 = background, 1 .. classes - 1. They are gone through once a
            class, so that memory does not follow their number.
        shape: of a mask. classes: with the background.
    """
    share, likeliest = np.full(shape, 0.5), np.zeros(shape, np.uint8)  # half is background, as the first of equals
    for c in range(1, classes):
        count, shown = np.zeros(shape, np.int32), 0
        for mask in masks:
            is_class = np.asarray(mask) == c
            count, shown = count + is_class, shown + bool(is_class.any())
        for place in range(shape[0] if shown else 0):
            more = count[place] / shown > share[place]
            likeliest[place][more], share[place][more] = c, count[place][more] / shown
    return likeliest


def drop_floors(rows: Iterable[ScoreRow]) -> list[ScoreRow]:
    """The rows of methods, without baselines."""
    return [row for row in rows if row.method not in FLOORS]


def add_floor(tables: Mapping[str, Table], scored: Mapping[str, Overlaps | Errors] | None = None) -> dict[str, Table]:
    """The tables of all methods, and the baseline at every site whose own model of a method was scored there.

    scored: the mean mask's overlaps, or the median guess's errors, by site, if methods give masks or numbers.
    """
    baseline: dict[tuple[str, str], Evidence] = {(site, site): evidence for site, evidence in (scored or {}).items()}
    is_number = any(isinstance(evidence, Errors) for evidence in baseline.values())
    name = MEDIAN if is_number else MEAN_MASK if baseline else MAJORITY
    for table in tables.values():
        for pair, evidence in own_model_table(table).items():
            if pair[0] == pair[1] and isinstance(evidence, Counts):
                baseline[pair] = majority_baseline(evidence)
            elif pair[0] == pair[1] and isinstance(evidence, Findings):
                baseline[pair] = guess_shares(evidence, majority_baseline)
    return {**tables, name: baseline} if baseline else dict(tables)
