"""Scores of methods that were trained several times: means, and intervals over patients and over trainings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evaluation.grid import count_decided_gains
from evaluation.histograms import count_scores
from evaluation.metrics import AUC, BRIER
from evaluation.protocols import score_private
from evaluation.rows import PRIVATE, select_wider
from evaluation.scoring import gain_rows, score_rows

MEASURES = (AUC, BRIER)
SITES = ("a", "b")
IMAGES = 60


def trainings(number: int, first: int = 0):
    """Tables of a method's trainings: other scores of the same patients and labels."""
    labels = {site: np.random.default_rng(place).integers(0, 2, IMAGES) for place, site in enumerate(SITES)}
    patient = np.arange(IMAGES) // 3
    tables = []
    for seed in range(first, first + number):
        rng, table = np.random.default_rng(100 + seed), {}
        for site, y in labels.items():
            p = 1 / (1 + np.exp(-2 * (y - 0.5) + rng.normal(0, 1, IMAGES)))
            table[site, site] = count_scores(y, np.c_[1 - p, p], patient, copies=40, seed=3, site=site)
        tables.append(table)
    return tables


def values_of(table, measure):
    return {site: score.estimate.value for site, score in score_private(table, measure).items()}


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_scores_are_means_and_both_intervals_are_those_of_slow_formulas(number, measure):
    ours, theirs = trainings(number), trainings(number, 10)
    tables, repeats = {"m": ours[0], "local": theirs[0]}, {"m": ours[1:], "local": theirs[1:]}
    rows = score_rows(tables, reference="local", measures=MEASURES, repeats=repeats)
    sign = 1 if measure.higher_is_better else -1
    t = stats.t.ppf(0.975, number - 1) / math.sqrt(number)
    for row in rows:
        if (row.method, row.protocol, row.measure) != ("m", PRIVATE, measure.name):
            continue
        (site,) = row.sites
        mine = np.array([values_of(table, measure)[site] for table in ours])
        gain = sign * (mine - np.array([values_of(table, measure)[site] for table in theirs]))
        copies = np.mean([score_private(table, measure)[site].copies for table in ours], axis=0)
        assert row.trainings == number
        assert row.value == pytest.approx(mine.mean())
        assert (row.low, row.high) == pytest.approx(np.nanquantile(copies[1:], [0.025, 0.975]))
        assert (row.trained_low, row.trained_high) == pytest.approx(
            (mine.mean() - t * mine.std(ddof=1), mine.mean() + t * mine.std(ddof=1))
        )
        assert row.gain == pytest.approx(gain.mean())
        assert (row.gain_trained_low, row.gain_trained_high) == pytest.approx(
            (gain.mean() - t * gain.std(ddof=1), gain.mean() + t * gain.std(ddof=1))
        )
    means = {row.measure: row.mean for row in gain_rows(tables, reference="local", measures=MEASURES, repeats=repeats)}
    each = [
        sign * (values_of(our, measure)[s] - values_of(their, measure)[s])
        for our, their in zip(ours, theirs, strict=True)
        for s in SITES
    ]
    assert means[measure.name] == pytest.approx(np.mean(each))


def test_with_one_training_nothing_changes():
    tables = {"m": trainings(1)[0], "local": trainings(1, 10)[0]}
    rows = score_rows(tables, reference="local")
    assert rows == score_rows(tables, reference="local", repeats={"m": (), "local": ()})
    assert all(row.trainings == 1 and row.widest == (row.low, row.high) for row in rows if math.isfinite(row.low))


def test_equal_trainings_have_no_spread_and_gains_over_a_method_trained_once_are_paired_with_it():
    table, local = trainings(1)[0], trainings(1, 10)[0]
    once = score_rows({"m": table, "local": local}, reference="local")
    thrice = score_rows({"m": table, "local": local}, reference="local", repeats={"m": [table, table]})
    for one, many in zip(once, thrice, strict=True):
        assert (many.value, many.low, many.gain) == pytest.approx((one.value, one.low, one.gain), nan_ok=True)
        if one.method == "m" and math.isfinite(one.value):
            assert many.trained_high - many.trained_low == pytest.approx(0, abs=1e-12)


ends = st.floats(-1, 1) | st.just(math.nan)


@given(ends, ends, ends, ends)
def test_the_wider_interval_is_one_of_both_and_none_is_wider(a, b, c, d):
    first, second = (a, b), (c, d)
    wider = select_wider(first, second)
    assert wider in (first, second) or any(map(math.isnan, wider))
    if not any(map(math.isnan, (a, b, c, d))):
        assert wider[1] - wider[0] == max(b - a, d - c)
    if math.isnan(c) or math.isnan(d):
        assert wider is first


def test_a_gain_that_other_trainings_do_not_show_is_not_decided():
    row = next(row for row in score_rows({"m": trainings(1)[0], "local": trainings(1, 10)[0]}, reference="local"))
    sure = replace(row, method="m", protocol=PRIVATE, gain=0.1, gain_low=0.05, gain_high=0.15)
    unsure = replace(sure, trainings=3, gain_trained_low=-0.1, gain_trained_high=0.3)
    assert count_decided_gains([sure], row.measure) == {"m": (1, 0, 1)}
    assert count_decided_gains([unsure], row.measure) == {"m": (0, 0, 1)}
