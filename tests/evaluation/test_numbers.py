"""Scores of numbers: against second implementations, under a change of unit, order and sites, and with noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import numbers
from evaluation.agreement import Pairs, _find_limits, draw_agreement
from evaluation.choice import compute_optimism, select_primary
from evaluation.floors import add_floor
from evaluation.intervals import percentile_interval
from evaluation.numbers import (
    BINS,
    CENTRES,
    EDGES,
    GRID,
    Errors,
    Number,
    find_bins,
    from_histogram,
    from_tensors,
    list_number_measures,
    pool_errors,
    release_errors,
    sum_errors,
    to_tensors,
)
from evaluation.protocols import parse_evidence, pool_evidence
from evaluation.rows import MEDIAN, PRIVATE, rank_value
from evaluation.scoring import gain_rows, score_rows

VOLUME = Number("volume", "mL", 20.0, 220.0)
PLACE = st.integers(0, int(GRID)).map(lambda step: step / GRID)
ROWS = st.lists(st.tuples(PLACE, PLACE, st.integers(0, 5)), min_size=2, max_size=30)


def summed(rows, copies: int = 20, site: str = "a") -> Errors:
    true, predicted, patients = (np.array(part) for part in zip(*rows, strict=True))
    return sum_errors(true, predicted, patients, copies=copies, seed=1, site=site)


def values(errors: Errors, number: Number = VOLUME) -> dict[str, np.ndarray]:
    return {measure.name: measure.of(errors) for measure in list_number_measures(number)}


@given(ROWS)
def test_measures_are_those_of_single_values_in_the_unit(rows):
    true, predicted = (20 + 200 * np.array(part) for part in list(zip(*rows, strict=True))[:2])
    off, found = predicted - true, {name: value[0] for name, value in values(summed(rows)).items()}
    assert found["MAE"] == pytest.approx(np.abs(off).mean(), abs=1e-9)
    assert found["RMSE"] == pytest.approx(math.sqrt((off**2).mean()), abs=1e-6)
    assert found["bias"] == pytest.approx(off.mean(), abs=1e-9)
    for name, side in (("lower limit", -1), ("upper limit", 1)):
        assert found[name] == pytest.approx(off.mean() + side * 1.96 * off.std(ddof=1), abs=1e-4)
    if true.std() > 1e-3 and predicted.std() > 1e-3:
        assert found["correlation"] == pytest.approx(np.corrcoef(true, predicted)[0, 1], abs=1e-6)


@given(ROWS, st.floats(0.01, 1000), st.floats(-100, 100))
def test_another_unit_scales_errors_and_leaves_the_correlation(rows, factor, shift):
    errors = summed(rows)
    moved = values(errors, Number("volume", "L", factor * 20 + shift, factor * 220 + shift))
    for name, before in values(errors).items():
        scale = 1.0 if name == "correlation" else factor
        assert moved[name] == pytest.approx(scale * before, rel=1e-9, nan_ok=True)


@given(ROWS, st.randoms(use_true_random=False))
def test_neither_the_order_of_images_nor_the_names_of_patients_change_a_sum(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert np.array_equal(summed(shuffled).totals, summed(rows).totals)
    renamed = [(true, predicted, 7 - patient) for true, predicted, patient in rows]
    assert np.array_equal(summed(renamed).totals[0], summed(rows).totals[0])


@given(ROWS)
def test_a_copy_is_the_sum_over_its_patients(rows):
    """Each copy's sums are whole multiples of patients' own, and as many patients are drawn as there are."""
    errors = summed(rows, copies=5)
    patients = sorted({patient for *_, patient in rows})
    own = np.stack([summed([row for row in rows if row[2] == patient], copies=0).totals[0] for patient in patients])
    weights = numbers.draw_patient_weights(np.array(patients), 5, 1, "a")
    assert np.array_equal(errors.totals[1:], weights @ own)
    assert (weights.sum(axis=1) == len(patients)).all()


@given(ROWS, ROWS)
def test_pooled_sites_are_one_sample(first, second):
    other = [(true, predicted, patient + 10) for true, predicted, patient in second]
    pooled = pool_errors([summed(first), summed(other, site="b")])
    assert np.array_equal(pooled.totals[0], summed([*first, *other]).totals[0])
    assert pooled.patients == summed([*first, *other]).patients
    assert isinstance(pool_evidence([summed(first), summed(other)]), Errors)


@given(ROWS)
def test_what_is_sent_arrives(rows):
    errors = summed(rows)
    again = parse_evidence(to_tensors(errors), {}, copies=20, seed=0)
    assert isinstance(again, Errors) and np.array_equal(again.totals, errors.totals)
    assert (again.patients, again.images, again.noise) == (errors.patients, errors.images, 0.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.update(errors=t["errors"].float()), "float64"),
        (lambda t: t.update(tested=t["tested"][:1]), "tested"),
        (lambda t: t["errors"].__setitem__((0, numbers.ERROR), 1e9), "outside"),
        (lambda t: t["errors"].__setitem__((1, numbers.SQUARED), 0.0), "outside"),
        (lambda t: t["errors"].__setitem__((0, numbers.TRUE), math.nan), "not finite"),
        (lambda t: t["errors"].__setitem__((0, numbers.COUNT), 1.0), "images"),
        (lambda t: t.pop("tested"), "needed is"),
    ],
)
def test_sums_that_no_patients_could_give_are_refused(change, told):
    rows = [(0.1, 0.5, 0), (0.4, 0.2, 1), (0.9, 0.95, 2)]
    tensors = {name: tensor.clone() for name, tensor in to_tensors(summed(rows)).items()}
    change(tensors)
    with pytest.raises(ValueError, match=told):
        from_tensors(tensors)


@pytest.mark.parametrize("wrong", [[-0.1], [1.1]])
def test_a_place_outside_the_range_is_refused(wrong):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        sum_errors([0.5], wrong, [0], copies=0, seed=0)


def test_a_prediction_that_is_no_number_counts_as_the_middle():
    assert values(sum_errors([0.25], [math.nan], [0], copies=0, seed=0))["MAE"][0] == 50.0


def exact_histogram(votes):
    return (votes / votes.sum(axis=1, keepdims=True)).sum(axis=0)


@given(st.lists(st.tuples(PLACE, PLACE), min_size=1, max_size=30))
def test_without_noise_the_released_histogram_tells_the_error_within_half_a_bin(pairs):
    """Of patients with one image each: every error is at its bin's centre, so no further away than half the bin."""
    true, predicted = np.array(pairs).T
    histogram = release_errors(true, predicted, np.arange(len(true)), exact_histogram)
    told = from_histogram(histogram, noise=0.0, patients=len(true), images=len(true), copies=0, seed=0)
    half = np.diff(EDGES)[find_bins(predicted - true)] / 2
    found, off = values(told), predicted - true
    assert abs(found["MAE"][0] - 200 * np.abs(off).mean()) <= 200 * half.mean() + 1e-3
    assert abs(found["bias"][0] - 200 * off.mean()) <= 200 * half.mean() + 1e-3
    assert math.isnan(found["correlation"][0])


@given(st.floats(-1, 1))
def test_each_error_is_in_the_bin_between_whose_edges_it_lies(error):
    place = int(find_bins(np.array([error]))[0])
    assert EDGES[place] <= error <= EDGES[place + 1] and EDGES[place] < CENTRES[place] < EDGES[place + 1]


@given(st.lists(st.tuples(PLACE, PLACE, st.integers(0, 3)), min_size=4, max_size=30))
def test_one_patient_adds_one_to_the_histogram_however_many_images_there_are(rows):
    true, predicted, patients = (np.array(part) for part in zip(*rows, strict=True))
    seen = []
    release_errors(true, predicted, patients, lambda votes: (seen.append(votes), exact_histogram(votes))[1])
    assert exact_histogram(seen[0]).sum() == pytest.approx(len(set(patients.tolist())))
    assert seen[0].shape == (len(set(patients.tolist())), BINS)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(0.5, 5))
def test_noised_errors_are_possible_ones(seed, noise):
    noised = np.random.default_rng(seed).normal(0, noise, BINS) + 50 * (np.arange(BINS) == BINS // 2)
    errors = from_histogram(noised, noise=noise, patients=50, images=100, copies=30, seed=seed)
    assert errors.totals[:, numbers.COUNT] == pytest.approx(100.0)
    found = values(errors)
    for name in ("MAE", "RMSE", "bias"):
        assert (np.abs(found[name]) <= 200).all() and (found[name][0] >= 0 or name == "bias")
    again = parse_evidence(
        {"error_bins": torch.from_numpy(noised).float()},
        {"noise": noise, "patients": 50, "images": 100},
        copies=30,
        seed=seed,
    )
    assert isinstance(again, Errors) and again.noise == noise


@pytest.mark.parametrize(
    "facts", [{"noise": -1.0}, {"patients": 0}, {"images": 3}, {"noise": "much"}, {"patients": True}]
)
def test_facts_that_cannot_be_are_refused(facts):
    known = {"noise": 1.0, "patients": 5, "images": 5, "copies": 2, "seed": 0, **facts}
    with pytest.raises(ValueError, match=next(iter(facts))):
        from_histogram(np.zeros(BINS), **known)


def test_noise_neither_moves_the_error_nor_makes_its_interval_too_short():
    """300 hospitals of 60 patients, with the noise of 2 patients in each bin; draws are seeded."""
    random, off, inside = np.random.default_rng(0), [], []
    truth = np.abs(random.normal(0.02, 0.08, 100_000)).mean()
    for seed in range(300):
        true = random.uniform(0.3, 0.7, 60)
        predicted = np.clip(true + random.normal(0.02, 0.08, 60), 0, 1)
        noised = exact_histogram(np.eye(BINS)[find_bins(predicted - true)]) + random.normal(0, 2, BINS)
        errors = from_histogram(noised, noise=2.0, patients=60, images=60, copies=200, seed=seed)
        score = percentile_interval(numbers.compute_mean(errors))
        off.append(score.value - truth)
        inside.append(score.low <= truth <= score.high)
    assert abs(np.mean(off)) < 0.01 and 0.9 < np.mean(inside) <= 1.0
    assert np.std(off) == pytest.approx(np.hypot(numbers.NOISE_SPREAD * 2 / 60, 0.006), rel=0.15)


def tables(better: float = 0.5, sites: str = "ab"):
    """A reference, and a method whose errors are `better` times as large, on the same patients."""
    made: dict[str, dict[tuple[str, str], Errors]] = {"reference": {}, "method": {}}
    for number, site in enumerate(sites):
        random = np.random.default_rng(number)
        true, off, patients = random.uniform(0.3, 0.7, 60), random.normal(0, 0.1, 60), np.arange(60) // 2
        for name, factor in (("reference", 1.0), ("method", better)):
            made[name][site, site] = sum_errors(true, true + factor * off, patients, copies=200, seed=3, site=site)
    return made


def test_a_gain_is_positive_where_errors_are_smaller():
    rows = score_rows(tables(), reference="reference", measures=list_number_measures(VOLUME))
    row = next(row for row in rows if row.method == "method" and row.measure == "MAE" and row.protocol == PRIVATE)
    assert row.gain_low > 0 and row.gain == pytest.approx(row.value, rel=0.02) and row.assessable
    assert all(math.isnan(row.gain) for row in rows if row.measure in numbers.AGREEMENT)
    ranked = {row.measure for row in gain_rows(tables(), reference="reference", measures=list_number_measures(VOLUME))}
    assert ranked == {"MAE", "RMSE", "correlation"}


def test_the_best_is_the_one_with_the_smallest_error_and_luck_is_measured_the_same_way():
    measures = list_number_measures(VOLUME)
    rows = [row for row in score_rows(tables(), measures=measures) if row.measure == "MAE" and row.sites == ("a",)]
    assert max(rows, key=rank_value).method == "method"
    mae = select_primary(measures)
    turned = replace(mae, of=lambda errors: -mae.of(errors), higher_is_better=True)
    luck = compute_optimism(tables(0.99), ["a"], mae)["a"]
    assert luck == compute_optimism(tables(0.99), ["a"], turned)["a"]


def test_the_median_guess_stands_beside_methods():
    floor = {"a": summed([(0.1, 0.5, 0), (0.9, 0.5, 1)])}
    assert set(add_floor(tables(), floor)) == {"reference", "method", MEDIAN}


@given(ROWS)
def test_the_lines_of_the_figure_are_the_measures_of_the_table(rows):
    true, predicted, _ = (np.array(part) for part in zip(*rows, strict=True))
    found = {name: value[0] for name, value in values(summed(rows, copies=0)).items()}
    drawn = _find_limits(200 * (predicted - true))
    assert drawn == pytest.approx([found["lower limit"], found["bias"], found["upper limit"]], abs=1e-4)


def test_a_figure_says_in_words_what_it_shows():
    pairs = Pairs(np.array([0.125, 0.5, 0.875]), np.array([0.25, 0.5, 0.75]))
    html = draw_agreement({"fedavg": pairs}, VOLUME).html
    assert "fedavg: bias 0, limits −49 to 49" in html and "volume (mL)" in html


def test_few_images_or_patients_are_not_assessable():
    few = sum_errors(np.full(30, 0.5), np.full(30, 0.4), np.arange(30) % 4, copies=5, seed=0)
    rows = score_rows({"m": {("a", "a"): few}}, measures=list_number_measures(VOLUME))
    assert not any(row.assessable for row in rows)
