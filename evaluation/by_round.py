"""Scores and confusion of the model after one round, on a hospital's validation patients: how training went, by round.

They are exact, of a few patients, and without intervals: nothing is compared by them. The AUC is that of
`evaluation.recommendation`, Dice that of `evaluation.masks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.findings import UNKNOWN
from evaluation.histograms import Floats, Ints
from evaluation.masks import dice, is_any_of
from evaluation.metrics import AUC
from evaluation.numbers import MAE
from evaluation.overlap import DICE
from evaluation.recommendation import Validated, score_models

BALANCED = "balanced accuracy"


class RoundScores(NamedTuple):
    """scores: measure -> value, NaN where it is not defined. tables: (T, C, C) numbers of examples, or of pixels, by
    true and predicted class; of several findings a table each, absent and there; of a number none, (0, 0, 0).
    """

    scores: dict[str, float]
    tables: Ints


def score_classes(y: NDArray[Any], probabilities: Floats, *, ordered: bool = False) -> RoundScores:
    """AUC, balanced accuracy, and one table by the most probable class.

    Args:
        y: (n,) classes. probabilities: (n, C). ordered: whether each class is more than the one before; the AUC is then
            the mean over cuts.
    """
    table = count_pairs(y, probabilities.argmax(axis=1), probabilities.shape[1])
    area = _mean_area(Validated(y, np.arange(len(y)), {"": probabilities}, ordered))
    return RoundScores({AUC.name: area, BALANCED: balance_accuracy(table)}, table[None])


def score_findings(states: Ints, probabilities: Floats) -> RoundScores:
    """The mean AUC over the findings that some have and others lack, the mean of their balanced accuracies, and a table
    of each finding at 0.5, over the examples where it is known.

    Args:
        states: (n, K), as in `evaluation.findings`. probabilities: (n, K).
    """
    tables = []
    for truth, scores in zip(states.T, probabilities.T, strict=True):
        known = truth != UNKNOWN
        tables.append(count_pairs(truth[known] == 1, scores[known] >= 0.5, 2))
    accuracies = [balance_accuracy(table) for table in tables if table.sum(axis=1).all()]
    balanced = float(np.mean(accuracies)) if accuracies else float("nan")
    area = _mean_area(Validated(states, np.arange(len(states)), {"": probabilities}))
    return RoundScores({AUC.name: area, BALANCED: balanced}, np.stack(tables))


def score_numbers(truth: Floats, predicted: Floats) -> RoundScores:
    """The mean absolute error, in the unit of the numbers (n,); a number has no table."""
    error = float(np.abs(predicted - truth).mean()) if len(truth) else float("nan")
    return RoundScores({MAE: error}, np.zeros((0, 0, 0), np.int64))


def score_masks(
    truth: Ints,
    predicted: Ints,
    patients: Ints,
    classes: int,
    ignored: int | None = None,
    structures: Sequence[Sequence[int]] | None = None,
) -> RoundScores:
    """Dice of each patient and structure, the mean over patients and then over the structures that patients have; and
    one table of pixels.

    Args:
        truth, predicted: (n, *spatial), 0 = background. patients: (n,) of each image. classes: with the background.
        ignored, structures: as in `evaluation.masks.score_masks`.
    """
    means, known = [], np.ones(truth.shape, np.bool_) if ignored is None else truth != ignored
    for numbers in [(number,) for number in range(1, classes)] if structures is None else structures:
        true_masks, model_masks = is_any_of(truth, numbers), is_any_of(predicted, numbers) & known
        if true_masks.any():
            each = [dice(true_masks[patients == who], model_masks[patients == who]) for who in np.unique(patients)]
            means.append(float(np.nanmean(each)))
    return RoundScores(
        {DICE.name: float(np.mean(means)) if means else float("nan")},
        count_pairs(truth[known], predicted[known], classes)[None],
    )


def count_pairs(truth: NDArray[Any], predicted: NDArray[Any], classes: int) -> Ints:
    """(classes, classes) how often each true class, the row, was predicted as each class, the column."""
    pairs = truth.astype(np.int64) * classes + predicted.astype(np.int64)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes).astype(np.int64)


def balance_accuracy(table: Ints) -> float:
    """The mean, over the classes that there are, of the share that was predicted as them; NaN of an empty table."""
    sizes = table.sum(axis=1)
    return float((table.diagonal()[sizes > 0] / sizes[sizes > 0]).mean()) if sizes.any() else float("nan")


def _mean_area(validated: Validated) -> float:
    """The AUC; NaN where there are not both sides of any class, cut or finding."""
    return score_models(validated).get("", float("nan")) if len(validated.y) else float("nan")
