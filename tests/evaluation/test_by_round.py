"""Scores of a round are scikit-learn's, on the same predictions, and its tables count each example once."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    roc_auc_score,
)

from evaluation.by_round import score_classes, score_findings, score_masks, score_numbers

SEEDS = st.integers(0, 10**6)


def draw(seed: int, most: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes and probabilities, with ties, of which sums are exact."""
    chance = np.random.default_rng(seed)
    y = chance.integers(0, classes, int(chance.integers(1, most)))
    p = chance.multinomial(32, chance.dirichlet(np.ones(classes)), len(y)) / 32
    return y, p


@given(SEEDS)
def test_two_classes_are_scored_as_scikit_learn_scores_them(seed):
    y, p = draw(seed, 40, 2)
    scores, tables = score_classes(y, p)
    assert (tables[0] == confusion_matrix(y, p.argmax(axis=1), labels=[0, 1])).all()
    if len({*y}) < 2:
        assert math.isnan(scores["AUC"])
        return
    assert math.isclose(scores["AUC"], roc_auc_score(y, p[:, 1]))
    assert math.isclose(scores["balanced accuracy"], balanced_accuracy_score(y, p.argmax(axis=1)))


@given(SEEDS, st.booleans())
def test_more_classes_are_scored_as_scikit_learn_scores_each_against_the_rest_or_each_cut(seed, ordered):
    y, p = draw(seed, 60, 4)
    scores, tables = score_classes(y, p, ordered=ordered)
    assert (tables[0] == confusion_matrix(y, p.argmax(axis=1), labels=range(4))).all()
    sides = [(y >= k, p[:, k:].sum(axis=1)) for k in (1, 2, 3)] if ordered else [(y == k, p[:, k]) for k in range(4)]
    each = [roc_auc_score(holds, score) for holds, score in sides if 0 < holds.sum() < len(y)]
    assert math.isnan(scores["AUC"]) if not each else math.isclose(scores["AUC"], np.mean(each), abs_tol=1e-9)


@given(SEEDS)
def test_findings_are_scored_each_where_it_is_known(seed):
    chance = np.random.default_rng(seed)
    states = chance.integers(0, 3, (int(chance.integers(1, 30)), 3))
    p = np.round(chance.random(states.shape), 1)
    scores, tables = score_findings(states, p)
    areas, accuracies = [], []
    for k in range(3):
        known = states[:, k] < 2
        truth, said = states[known, k], p[known, k] >= 0.5
        if known.any():
            assert (tables[k] == confusion_matrix(truth, said, labels=[0, 1])).all()
        if len({*truth}) == 2:
            areas.append(roc_auc_score(truth, p[known, k]))
            accuracies.append(balanced_accuracy_score(truth, said))
    assert math.isnan(scores["AUC"]) if not areas else math.isclose(scores["AUC"], np.mean(areas))
    said_mean = scores["balanced accuracy"]
    assert math.isnan(said_mean) if not accuracies else math.isclose(said_mean, np.mean(accuracies))


@given(SEEDS)
def test_numbers_are_scored_by_their_mean_absolute_error_and_have_no_table(seed):
    chance = np.random.default_rng(seed)
    truth, predicted = chance.normal(size=(2, int(chance.integers(1, 20))))
    scores, tables = score_numbers(truth, predicted)
    assert math.isclose(scores["MAE"], mean_absolute_error(truth, predicted)) and tables.size == 0


@given(SEEDS)
def test_masks_are_scored_by_the_dice_of_each_patient(seed):
    chance = np.random.default_rng(seed)
    patients = np.sort(chance.integers(0, 3, 6))
    truth, predicted = chance.integers(0, 3, (2, 6, 4, 4)) * chance.integers(0, 2, (2, 6, 1, 1))
    scores, tables = score_masks(truth, predicted, patients, 3)
    assert (tables[0] == confusion_matrix(truth.ravel(), predicted.ravel(), labels=[0, 1, 2])).all()
    means = []
    for structure in (1, 2):
        if not (truth == structure).any():
            continue
        each = []
        for who in set(patients.tolist()):
            pair = [(mask[patients == who] == structure).ravel() for mask in (truth, predicted)]
            if pair[0].any() or pair[1].any():
                each.append(f1_score(*pair, zero_division=0))
        means.append(np.mean(each))
    assert math.isnan(scores["Dice"]) if not means else math.isclose(scores["Dice"], np.mean(means))


def test_nothing_is_scored_of_nobody():
    nobody = np.zeros(0, np.int64)
    assert all(map(math.isnan, score_classes(nobody, np.zeros((0, 2))).scores.values()))
    assert all(map(math.isnan, score_findings(np.zeros((0, 2), np.int64), np.zeros((0, 2))).scores.values()))
    assert all(map(math.isnan, score_numbers(np.zeros(0), np.zeros(0)).scores.values()))
