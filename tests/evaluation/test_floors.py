"""The majority guess, against the same numbers computed from labels alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from evaluation.floors import add_floor, majority_baseline
from evaluation.histograms import count_scores
from evaluation.metrics import ACCURACY, AUC, BALANCED_ACCURACY
from evaluation.rows import MAJORITY
from evaluation.scoring import score_rows


def counted(labels, seed=0, classes=2, copies=5):
    g = np.random.default_rng(seed)
    p = g.random((len(labels), classes))
    return count_scores(labels, p / p.sum(axis=1, keepdims=True), np.arange(len(labels)), copies=copies, seed=seed)


@given(st.lists(st.integers(0, 1), min_size=3, max_size=30).filter(lambda y: 0 < sum(y) < len(y)))
def test_it_scores_what_always_guessing_the_majority_scores(labels):
    floor = majority_baseline(counted(labels))
    assert ACCURACY.of(floor)[0] == pytest.approx(max(np.mean(labels), 1 - np.mean(labels)))
    assert AUC.of(floor)[0] == BALANCED_ACCURACY.of(floor)[0] == 0.5


def test_copies_are_those_of_the_patients_that_were_drawn():
    labels = [0, 0, 0, 1, 1]
    given_, floor = counted(labels), majority_baseline(counted(labels))
    assert np.array_equal(floor.confusion.sum(axis=-1), given_.confusion.sum(axis=-1))
    assert np.array_equal(floor.scores.sum(axis=-1), given_.scores.sum(axis=-1))
    truth = given_.confusion.sum(axis=-1)
    assert np.allclose(ACCURACY.of(floor), truth[:, 0] / truth.sum(axis=1), equal_nan=True)


def test_overall_it_is_worth_what_telling_the_hospitals_apart_is_worth():
    ill, well = [1] * 9 + [0], [0] * 8 + [1] * 2
    tables = add_floor({"m": {("a", "a"): counted(ill, 1), ("b", "b"): counted(well, 2), ("a", "b"): counted(well, 3)}})
    rows = {(r.method, r.protocol, r.measure, r.sites): r.value for r in score_rows(tables)}
    told = np.array([0.9] * 10 + [0.2] * 10)
    assert rows[MAJORITY, "overall", "AUC", ("a", "b")] == pytest.approx(roc_auc_score(ill + well, told))
    assert rows[MAJORITY, "overall", "accuracy", ("a", "b")] == pytest.approx(accuracy_score(ill + well, told > 0.5))
    assert rows[MAJORITY, "private", "AUC", ("a",)] == 0.5
    assert (MAJORITY, "public", "AUC", ("a", "b")) not in rows


def test_more_classes_than_two():
    labels = [0, 1, 2, 2, 2]
    floor = majority_baseline(counted(labels, classes=3))
    assert ACCURACY.of(floor)[0] == pytest.approx(3 / 5) and AUC.of(floor)[0] == 0.5
