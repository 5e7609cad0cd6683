"""Intervals: definitions, what is ignored, and how often they cover the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation import metrics
from evaluation.histograms import count_scores
from evaluation.intervals import interpolate_quantile, percentile_interval, t_interval


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
def test_t_interval_is_scipys(runs):
    estimate = t_interval(runs)
    assert estimate.n == len(runs)
    assert estimate.value == pytest.approx(np.mean(runs), abs=1e-9)
    if np.std(runs) > 1e-9:
        expected = stats.ttest_1samp(runs, 0).confidence_interval(0.95)
        assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_one_run_has_no_interval():
    estimate = t_interval([0.8])
    assert estimate.value == 0.8
    assert np.isnan([estimate.low, estimate.high]).all()


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.one_of(st.floats(0, 1), st.just(0.025), st.just(1.0))
)
def test_a_quantile_is_numpys_to_the_bit(values, share):
    assert interpolate_quantile(np.sort(values), share) == np.quantile(values, share)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60), st.integers(0, 5))
def test_copies_without_a_value_are_ignored_and_counted(drawn, missing):
    copies = np.array([0.5, *drawn, *[np.nan] * missing])
    estimate = percentile_interval(copies)
    assert (estimate.value, estimate.n, estimate.ignored) == (0.5, len(drawn), missing)
    assert min(drawn) <= estimate.low <= estimate.high <= max(drawn)
    assert (estimate.low, estimate.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


def test_without_copies_or_value_there_is_no_interval():
    assert np.isnan(percentile_interval(np.array([0.7])).low)
    assert np.isnan(percentile_interval(np.array([np.nan, 0.1, 0.2])).high)


@pytest.mark.parametrize("runs", [[], [0.1, float("nan")]])
def test_runs_that_failed_are_refused(runs):
    with pytest.raises(ValueError, match="all finite"):
        t_interval(runs)


def coverage(by_patient):
    """How often the 95 % interval of the AUC covers the true one, with 4 alike images of each of 60 patients."""
    truth = stats.norm.cdf(1.0 / np.sqrt(2 * (0.8**2 + 0.6**2)))
    rng = np.random.default_rng(11)
    hits = 0
    for seed in range(150):
        label = np.repeat(np.arange(60) % 2, 4)
        z = label * 1.0 + np.repeat(rng.normal(0, 0.8, 60), 4) + rng.normal(0, 0.6, 240)
        p = stats.norm.cdf(z - 0.5)
        unit = np.repeat(np.arange(60), 4) if by_patient else np.arange(240)
        counts = count_scores(label, np.c_[1 - p, p], unit, copies=150, seed=seed)
        estimate = percentile_interval(metrics.AUC.of(counts))
        hits += estimate.low <= truth <= estimate.high
    return hits / 150


def test_the_interval_covers_when_patients_are_drawn_and_not_when_images_are():
    """0.95 ± 2.5 standard errors of 150 trials, and a little for the percentile method with 30 patients a class."""
    assert 0.88 <= coverage(by_patient=True) <= 0.995
    assert coverage(by_patient=False) < 0.85
