"""What leaves under differential privacy: one patient changes it by no more than is booked, whoever else is there."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import noised
from evaluation.classes import Classes
from evaluation.findings import release_findings
from evaluation.histograms import count_class_patients, count_scores
from evaluation.metrics import (
    ACCURACY,
    AUC,
    BALANCED_ACCURACY,
    GRADE_ERROR,
    KAPPA,
    auc,
    compute_support,
    find_mean_classes,
)
from evaluation.noised import Bounds, class_bounds, project_within_bounds
from evaluation.numbers import release_errors
from evaluation.scale import LEVELS, TREE
from evaluation.scoring import label_measures
from evaluation.votes import BINS, bins_from, class_votes, release_histograms, split_noise
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Composed, Gaussian, SelfComposed
from privacy.dp.mechanisms import vote_histogram


def hospital(seed, classes, patients=30, images=4, separation=1.5):
    """labels, probabilities (n, C), patients, whose images may be of several classes."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), rng.integers(1, images + 1, patients))
    y = rng.integers(0, classes, len(who))
    logits = rng.normal(0, 1, (len(who), classes))
    logits[np.arange(len(who)), y] += separation
    p = np.exp(logits)
    return y, p / p.sum(axis=1, keepdims=True), who


class Recorded:
    """The mechanism: it records what was told and with how much noise, and answers with histograms given beforehand, so
    that two data sets are asked the same questions.
    """

    def __init__(self, seed):
        self.rng, self.exact, self.noise = np.random.default_rng(seed), [], []

    def __call__(self, found, deviation):
        exact = vote_histogram(torch.from_numpy(found), noise_multiplier=0.0).value.numpy()
        self.exact.append(exact)
        self.noise.append(deviation)
        return self.rng.uniform(0, 5, exact.shape)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 3, 5]), st.booleans(), st.integers(1, 30), st.floats(0.1, 20))
def test_one_patient_changes_all_that_leaves_by_no_more_than_is_booked(seed, classes, ordered, patients, noise):
    """sum over histograms of (change / noise)^2 <= 1 / noise^2: the release costs no more than one histogram would."""
    y, p, who = hospital(seed, classes, patients + 1)
    fewer = who != np.random.default_rng(seed).integers(0, patients + 1)
    told = Recorded(seed), Recorded(seed)
    for one, chosen in zip(told, (np.ones_like(fewer), fewer), strict=True):
        rows = y[chosen], p[chosen], who[chosen]
        declared = {"class_patients": [9] * classes, "number": 20, "ordered": ordered}
        release_histograms(*rows, noise=noise, add_noise=one, **declared)
    assert told[0].noise == told[1].noise
    changes = [np.linalg.norm(a - b) for a, b in zip(told[0].exact, told[1].exact, strict=True)]
    assert max(changes) <= 1 + 1e-9
    spent = sum((change / deviation) ** 2 for change, deviation in zip(changes, told[0].noise, strict=True))
    assert spent <= (1 + 1e-9) / noise**2


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_all_of_it_costs_what_one_histogram_costs(classes, ordered):
    told = Recorded(0)
    declared = {"class_patients": [9] * classes, "number": 30, "ordered": ordered}
    release_histograms(*hospital(0, classes), noise=1.5, add_noise=told, **declared)
    events = [Composed(tuple(map(Gaussian, told.noise)))]
    assert compute_cost(events, 1e-5).epsilon == pytest.approx(compute_cost([Gaussian(1.5)], 1e-5).epsilon, rel=1e-6)
    how = split_noise(1.5, classes, ordered=ordered)
    rows = _rows(classes, ordered)
    after = 1 if classes == 2 else rows + 1 if ordered else rows + 2  # histograms after the scale
    assert told.noise[: LEVELS * rows] == [how.scale] * (len(told.noise) - after)
    assert SelfComposed(Gaussian(how.scale), LEVELS) != Gaussian(how.scale)


def _rows(classes, ordered):
    """Score rows."""
    return classes - 1 if ordered or classes == 2 else classes


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4]))
def test_bins_follow_from_what_was_told_only(seed, classes):
    """Whoever receives the levels knows the bins in which patients were counted."""
    y, p, who = hospital(seed, classes)
    told = Recorded(seed)
    found = release_histograms(y, p, who, noise=1.0, class_patients=[20] * classes, number=30, add_noise=told)
    bins = bins_from(found.levels, 30, [20] * classes)
    expected = Recorded(seed)
    expected(class_votes(y, p, who, bins), 1.0)
    rows = 1 if classes == 2 else classes
    assert np.array_equal(told.exact[LEVELS * rows], expected.exact[0])


def adding(seed):
    rng = np.random.default_rng(seed)

    def told(found, deviation):
        exact = vote_histogram(torch.from_numpy(found), noise_multiplier=0.0).value.numpy()
        return exact + deviation * rng.standard_normal(exact.shape)

    return told


def read(sample, *, noise=0.0, seed=0, copies=20, ordered=False):
    y, p, who = sample
    held = list(count_class_patients(y, who, p.shape[1], ordered=ordered))
    number = len(np.unique(who))
    declared = {"class_patients": held, "number": number, "ordered": ordered}
    found = release_histograms(*sample, noise=noise, add_noise=adding(seed), **declared)
    facts = {"noise": noise, "patients": number, "images": len(y), "class_patients": held}
    return noised.from_tensors(noised.to_tensors(found), facts, copies=copies, seed=1)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(3, 7), st.booleans(), st.floats(0, 10), st.integers(1, 4))
def test_counts_of_several_classes_keep_their_totals(seed, classes, ordered, noise, images):
    sample = hospital(seed, classes, 25, images)
    counts = read(sample, noise=noise, copies=3, ordered=ordered)
    assert counts.has_cuts == ordered and counts.scores.shape[1] == _rows(classes, ordered)
    assert counts.scores.min() >= 0 and counts.confusion.min() >= 0
    assert (counts.scores.sum(axis=(2, 3)) == len(sample[0])).all()
    true = counts.confusion.sum(axis=-1)
    positive = np.cumsum(true[:, ::-1], axis=1)[:, ::-1][:, 1:] if ordered else true
    assert np.array_equal(counts.scores[:, :, 1].sum(axis=-1), positive)
    assert counts.noise == pytest.approx(split_noise(noise, classes, ordered=ordered).own)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("classes", [3, 5])
def test_without_noise_several_classes_are_scored_as_by_exact_counts(classes, ordered):
    sample = hospital(1, classes, 400, 1)
    ours, theirs = read(sample, ordered=ordered), count_scores(*sample, copies=0, seed=0, ordered=ordered)
    assert np.array_equal(ours.confusion[0], theirs.confusion[0])
    assert auc(ours.scores[0]) == pytest.approx(auc(theirs.scores[0]), abs=0.01)
    for measure in (AUC, BALANCED_ACCURACY, ACCURACY, KAPPA, GRADE_ERROR):
        assert measure.of(ours)[0] == pytest.approx(measure.of(theirs)[0], abs=0.01)
    assert compute_support(ours) == compute_support(theirs)


@pytest.mark.parametrize("ordered", [False, True])
def test_with_noise_several_classes_are_told_about_as_they_are_and_each_by_itself(ordered):
    sample = hospital(2, 4, 1200, 1)
    ours = read(sample, noise=1.4, copies=100, ordered=ordered)
    theirs = count_scores(*sample, copies=0, seed=0, ordered=ordered)
    assert find_mean_classes(ours).all()
    for measure in label_measures({"m": {("a", "a"): ours}}, Classes(("a", "b", "c", "d"), ordered=ordered)):
        values, exact = measure.of(ours), measure.of(theirs)[0]
        assert values[0] == pytest.approx(exact, abs=0.08), measure.name
        assert 0 < np.std(values[1:]) < 0.08, measure.name


@given(st.integers(0, 10**6), st.integers(3, 7))
def test_numbers_of_classes_are_brought_within_what_is_declared(seed, classes):
    y, _, who = hospital(seed, classes, 15)
    held = tuple(len(np.unique(who[y == c])) for c in range(classes))
    bounds = class_bounds(15, held)
    found = project_within_bounds(np.random.default_rng(seed).normal(3, 10, (4, classes)), bounds, 15)
    assert found.sum(axis=-1) == pytest.approx(15)
    assert (found >= bounds.least - 1e-9).all() and (found <= bounds.most + 1e-9).all()
    kept = project_within_bounds(np.full(classes, 15 / classes), Bounds(np.zeros(classes), np.full(classes, 15.0)), 15)
    assert kept == pytest.approx(15 / classes)


def test_a_class_that_nobody_has_stays_without_patients():
    y, p, who = hospital(5, 4, 200, 1)
    some = y != 3
    counts = read((y[some], p[some], np.unique(who[some], return_inverse=True)[1]), noise=1.0)
    assert counts.class_patients[3] == 0 and not find_mean_classes(counts)[3]
    assert (counts.confusion[0, 3] == 0).all() and np.isfinite(AUC.of(counts)).all()
    assert counts.scores.shape[1] == 4 and TREE > BINS


@pytest.mark.parametrize("kind", ["two classes", "classes", "grades", "findings", "number"])
def test_a_release_about_nobody_is_noise_of_the_same_shapes_and_no_error(kind):
    """An error, or fewer numbers, would reveal that no patient is there, as counts are released beforehand."""
    shapes = []
    for patients in (0, 5):
        told = Recorded(1)
        classes = 2 if kind == "two classes" else 3
        y, p, who = (part[:patients] for part in hospital(3, classes))
        if kind == "number":
            release_errors(p[:, 0], p[:, 1], who, lambda votes, told=told: told(votes, 1.0))
        elif kind == "findings":
            states = (np.stack([y, y], axis=1) > 0).astype(np.int64)
            release_findings(states, p[:, :2], who, noise=1.0, numbers=[5, 6, 3, 3] * 2, add_noise=told)
        else:
            how = {"class_patients": [3] * classes, "number": 5, "ordered": kind == "grades"}
            release_histograms(y, p, who, noise=1.0, add_noise=told, **how)
        shapes.append([(len(exact), deviation) for exact, deviation in zip(told.exact, told.noise, strict=True)])
    assert shapes[0] == shapes[1] and shapes[0]
