"""Metrics from histograms against scikit-learn on the scores themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics as reference

from evaluation import metrics
from evaluation.histograms import count_scores

BINS = 1024


@st.composite
def binary(draw, centred=True):
    """Labels that hold both classes, and scores: on bin centres, so that binning loses nothing, or anywhere."""
    n = draw(st.integers(2, 60))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 1)))
    labels[:2] = 0, 1
    if centred:
        step = draw(st.sampled_from([1, 64]))  # coarse steps make ties
        scores = (draw(hnp.arrays(np.int64, n, elements=st.integers(0, BINS // step - 1))) * step + 0.5) / BINS
    else:
        scores = draw(hnp.arrays(np.float64, n, elements=st.floats(0, 1)))
    return labels, scores


def counted(labels, scores, **options):
    options = {"copies": 0, "seed": 0} | options
    return count_scores(labels, np.c_[1 - scores, scores], np.arange(len(labels)), **options)


@given(binary())
def test_auc_brier_and_roc_are_exact_on_bin_centres(sample):
    labels, scores = sample
    counts = counted(labels, scores).scores[0, 0]
    assert metrics.auc(counts) == pytest.approx(reference.roc_auc_score(labels, scores), abs=1e-12)
    assert metrics.brier_score(counts) == pytest.approx(reference.brier_score_loss(labels, scores), abs=1e-12)
    fpr, tpr = metrics.roc_curve(counts)
    their_fpr, their_tpr, _ = reference.roc_curve(labels, scores, drop_intermediate=False)
    assert {(round(a, 9), round(b, 9)) for a, b in zip(fpr, tpr, strict=True)} == {
        (round(a, 9), round(b, 9)) for a, b in zip(their_fpr, their_tpr, strict=True)
    }
    assert np.trapezoid(tpr, fpr) == pytest.approx(metrics.auc(counts), abs=1e-12)


@given(binary(centred=False))
def test_binning_moves_auc_by_at_most_half_the_tied_pairs(sample):
    labels, scores = sample
    counts = counted(labels, scores).scores[0, 0]
    tied = (counts[0] * counts[1]).sum() / (counts[0].sum() * counts[1].sum())
    assert abs(metrics.auc(counts) - reference.roc_auc_score(labels, scores)) <= tied / 2 + 1e-12
    assert abs(metrics.brier_score(counts) - reference.brier_score_loss(labels, scores)) <= 1 / BINS


@given(binary(centred=False), st.integers(0, 20))
def test_auc_and_brier_of_bins_in_use_are_those_of_all_bins_to_the_bit(sample, copies):
    """Sums of whole numbers are exact, and so are those of squares of centres: there are 1,024 bins."""
    counts = counted(*sample, copies=copies)
    assert np.array_equal(metrics.AUC.of(counts), metrics.auc(counts.scores).mean(axis=-1), equal_nan=True)
    assert np.array_equal(metrics.BRIER.of(counts), metrics.brier_score(counts.scores).sum(axis=-1))


@given(binary(centred=False))
def test_threshold_metrics_equal_those_of_the_labels(sample):
    labels, scores = sample
    confusion = counted(labels, scores).confusion[0]
    called = (scores >= 0.5).astype(int)
    assert np.array_equal(confusion, reference.confusion_matrix(labels, called, labels=[0, 1]))
    assert metrics.class_recalls(confusion).mean() == pytest.approx(reference.balanced_accuracy_score(labels, called))
    assert metrics.accuracy(confusion) == pytest.approx(reference.accuracy_score(labels, called))
    assert metrics.sensitivity(confusion) == pytest.approx(reference.recall_score(labels, called))
    assert metrics.specificity(confusion) == pytest.approx(reference.recall_score(labels, called, pos_label=0))


@given(binary())
def test_auc_of_the_complement_and_of_exchanged_classes(sample):
    scores = counted(*sample).scores[0, 0]
    assert metrics.auc(scores[:, ::-1]) == pytest.approx(1 - metrics.auc(scores))
    assert metrics.auc(scores[::-1]) == pytest.approx(1 - metrics.auc(scores))
    assert metrics.auc(scores[::-1, ::-1]) == pytest.approx(metrics.auc(scores))


@given(binary(centred=False), st.sampled_from([8, 16, 64]))
def test_calibration_error_against_a_loop(sample, groups):
    labels, scores = sample
    expected = 0.0
    for group in range(groups):
        inside = np.floor(scores * groups).clip(max=groups - 1) == group
        if inside.any():
            expected += inside.mean() * abs(labels[inside].mean() - scores[inside].mean())
    got = metrics.calibration_error(counted(labels, scores).scores[0, 0], groups=groups)
    assert abs(got - expected) <= 0.5 / BINS + 1e-12


def test_calibration_needs_groups_that_divide_the_bins():
    with pytest.raises(ValueError, match="15 equal groups"):
        metrics.calibration_error(np.ones((2, BINS), int), groups=15)


def test_leading_axes_are_each_alone():
    rng = np.random.default_rng(0)
    scores, confusion = rng.integers(0, 4, (3, 5, 2, 32)), rng.integers(1, 9, (3, 5, 4, 4))
    for name in ("auc", "brier_score", "calibration_error"):
        together = getattr(metrics, name)(scores)
        assert together.shape == (3, 5)
        assert together[2, 4] == getattr(metrics, name)(scores[2, 4])
    for name in ("accuracy", "sensitivity", "specificity"):
        together = getattr(metrics, name)(confusion)
        assert together.shape == (3, 5)
        assert together[2, 4] == getattr(metrics, name)(confusion[2, 4])


def test_an_absent_class_is_not_a_number_and_not_zero():
    counts = counted(np.zeros(5, int), np.linspace(0.1, 0.9, 5))
    assert np.isnan(metrics.AUC.of(counts)).all()
    assert np.isnan(metrics.BALANCED_ACCURACY.of(counts)).all()
    assert np.isnan(metrics.SENSITIVITY.of(counts)).all()
    assert metrics.SPECIFICITY.of(counts)[0] == 2 / 5


@given(st.integers(3, 5), st.integers(0, 2**31))
def test_many_classes_are_averaged_over_those_that_the_sample_holds(classes, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes - 1, 40)  # the last class never occurs
    labels[: classes - 1] = np.arange(classes - 1)
    p = (rng.dirichlet(np.ones(classes), 40) * 200).round() / 200 + 1e-9
    p /= p.sum(axis=1, keepdims=True)
    counts = count_scores(labels, p, np.arange(40), copies=5, seed=0, bins=2**13)
    each = [reference.roc_auc_score(labels == c, np.floor(p[:, c] * 2**13)) for c in range(classes - 1)]
    assert metrics.AUC.of(counts)[0] == pytest.approx(np.mean(each))
    expected = np.mean([(p.argmax(axis=1) == c)[labels == c].mean() for c in range(classes - 1)])
    assert metrics.BALANCED_ACCURACY.of(counts)[0] == pytest.approx(expected)
    assert metrics.BRIER.of(counts)[0] == pytest.approx(
        ((p - np.eye(classes)[labels]) ** 2).sum(axis=1).mean(), abs=1e-3
    )


def test_a_measure_of_a_copy_is_the_metric_of_the_copy():
    rng = np.random.default_rng(5)
    counts = counted(rng.integers(0, 2, 30), rng.random(30), copies=10)
    assert metrics.AUC.of(counts)[4] == metrics.auc(counts.scores[4, 0])
    assert metrics.BALANCED_ACCURACY.of(counts)[4] == metrics.class_recalls(counts.confusion[4]).mean()
