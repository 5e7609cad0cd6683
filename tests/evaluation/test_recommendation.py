"""Which model a hospital should use: against slow sums, a simulation in which the truth is known, and at the edges."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from evaluation.recommendation import (
    COMMON,
    FLIP,
    SPREAD,
    SURE,
    Gain,
    Measured,
    OtherGains,
    Sums,
    Validated,
    mean_auc,
    measure_gains,
    recommend_model,
    sum_other_gains,
)


def hearing(others: list[dict[str, Gain]]) -> OtherGains:
    return sum_other_gains({str(number): one for number, one in enumerate(others)}, ["a"])["a"]


def two(score: np.ndarray) -> np.ndarray:
    return np.stack([1 - score, score], axis=1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(6, 30))
def test_the_area_is_scikit_learns_of_rows_repeated_as_often_as_they_weigh(seed, classes, n):
    random = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), random.integers(0, classes, n)])
    p = np.round(random.dirichlet(np.ones(classes), len(y)), 1)  # with ties
    weights = np.stack([np.ones(len(y)), random.integers(1, 3, len(y))], axis=1).astype(float)
    found = mean_auc(y, p, weights)
    for column in (0, 1):
        times = weights[:, column].astype(int)
        rows, q = np.repeat(y, times), np.repeat(p, times, axis=0)
        shown = [1] if classes == 2 else range(classes)
        expected = np.mean([roc_auc_score(rows == c, q[:, c]) for c in shown])
        assert found[column] == pytest.approx(expected)


def test_an_absent_class_is_left_out_and_one_class_alone_has_no_area():
    y, p = np.array([0, 0, 1, 1]), np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.3, 0.6, 0.1]])
    assert mean_auc(y, p, np.ones((4, 1)))[0] == 1.0
    assert math.isnan(mean_auc(y * 0, p, np.ones((4, 1)))[0])


def by_grid(own: Gain, others: list[Gain]) -> tuple[float, float]:
    """Mean and deviation of the true gain by summing over a grid of common and true gains."""
    m, g = np.meshgrid(np.linspace(-0.2, 0.2, 401), np.linspace(-0.25, 0.25, 501), indexing="ij")
    log = -((m / COMMON) ** 2) / 2 - ((g - m) / SPREAD) ** 2 / 2 - (own.value - g) ** 2 / (2 * own.variance)
    for one in others:
        log = log - (one.value - m) ** 2 / (2 * (one.variance + SPREAD**2))
    weight = np.exp(log - log.max())
    mean = float((weight * g).sum() / weight.sum())
    return mean, math.sqrt(float((weight * (g - mean) ** 2).sum() / weight.sum()))


@pytest.mark.parametrize("others", [[], [Gain(0.04, 0.001)], [Gain(0.04, 0.001), Gain(-0.01, 0.0004)]])
def test_what_is_expected_is_the_mean_over_all_common_and_true_gains(others):
    own = Gain(0.05, 0.0009)
    found = recommend_model(
        "a", Measured("local", {"fedavg": own}, 50, 10), hearing([{"fedavg": one} for one in others])
    )
    mean, sd = by_grid(own, others)
    assert found.gain == pytest.approx(mean, abs=1e-4)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * sd, rel=1e-2)


known = st.builds(Gain, st.floats(-1, 1), st.one_of(st.floats(1e-9, 10), st.just(math.inf)))
told = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=1), st.dictionaries(st.sampled_from("xyz"), known))


@given(told)
def test_what_is_heard_is_to_the_bit_the_sum_over_all_others(told):
    for site, found in sum_other_gains(told, [*"abcdefgh"]).items():
        others = [gains for other, gains in told.items() if other != site]
        assert found.hospitals == len(others)
        sums = {}
        for label in "xyz":
            held = [gains[label] for gains in others if label in gains and math.isfinite(gains[label].variance)]
            weights = [1 / (gain.variance + SPREAD**2) for gain in held]
            weighted = [gain.value * weight for gain, weight in zip(held, weights, strict=True)]
            sums |= {label: Sums(math.fsum(weighted), math.fsum(weights))} if held else {}
        assert found.sums == sums


class Counted(Gain):
    """A gain that counts how often it is looked at."""

    looks = 0

    def __getattribute__(self, name):
        Counted.looks += name == "value"
        return super().__getattribute__(name)


def test_the_work_of_hearing_is_linear_in_hospitals():
    looks = []
    for hospitals in (20, 200):
        Counted.looks = 0
        sum_other_gains(
            {str(n): {"x": Counted(0.1, 0.01)} for n in range(hospitals)}, [str(n) for n in range(hospitals)]
        )
        looks.append(Counted.looks)
    assert 0 < looks[1] == 10 * looks[0]


def test_a_hospital_that_measured_nothing_goes_by_the_others_and_one_that_is_sure_by_itself():
    nothing = Measured("local", {"fedavg": Gain(math.nan, math.inf)}, 3, 0)
    good = hearing([{"fedavg": Gain(0.05, 1e-4)}] * 8)
    assert recommend_model("a", nothing, good).method == "fedavg" and recommend_model("a", nothing, OtherGains()).stays
    sure = Measured("local", {"fedavg": Gain(-0.05, 1e-6)}, 4000, 900)
    assert recommend_model("a", sure, good).stays


def test_of_several_good_ones_the_largest_expected_gain_and_none_without_an_own_model():
    gains = {"sure": Gain(0.02, 1e-5), "larger": Gain(0.06, 4e-4), "wild": Gain(0.2, 0.5)}
    found = recommend_model("a", Measured("local", gains, 100, 30), OtherGains())
    assert (found.method, found.best, found.of) == ("larger", "larger", 4) and found.sure >= SURE
    assert recommend_model("a", Measured("", {}), OtherGains()) is None
    assert recommend_model("a", Measured("local", {}), OtherGains()) is None


def test_gains_are_of_the_best_own_model_on_the_same_patients():
    random = np.random.default_rng(0)
    y, patient = np.repeat(random.integers(0, 2, 60), 2), np.repeat(np.arange(60), 2)
    good = y + random.standard_normal(120)
    scores = {"weak": two(random.random(120)), "own": two(good), "same": two(good), "other": two(y + 0.0)}
    found = measure_gains(Validated(y, patient, scores), ["weak", "own"], seed=1)
    assert found.own == "own" and set(found.gains) == {"same", "other"} and found.patients == 60
    assert found.gains["same"].value == 0
    least = (0.25 / found.rarest) ** 2
    assert found.gains["same"].variance == pytest.approx(least), "a bootstrap alone would be sure of a tie"
    assert found.gains["other"].value == pytest.approx(1 - roc_auc_score(y, good))


def test_one_class_or_no_own_model_measures_nothing():
    y, patient = np.zeros(6, dtype=np.int64), np.arange(6)
    scores = {"own": two(np.arange(6) / 6), "other": two(np.arange(6) / 6)}
    assert measure_gains(Validated(y, patient, scores), ["own"], seed=0).gains["other"].variance == math.inf
    assert measure_gains(Validated(y, patient, scores), ["gone"], seed=0) == Measured("", {})


def test_where_models_are_alike_the_winner_is_not_believed():
    """Eight models as good as the own: the best of them looks better on validation, and rarely is recommended."""
    random, naive, expected, left = np.random.default_rng(3), [], [], 0
    for turn in range(60):
        y = np.repeat([0, 1], [40, 12])
        truth = y + random.standard_normal(52)
        scores = {f"m{k}": two(truth + 0.8 * random.standard_normal(52)) for k in range(9)}
        at_home = measure_gains(Validated(y, np.arange(52), scores), ["m0"], seed=turn)
        found = recommend_model("a", at_home, OtherGains())
        naive.append(max(gain.value for gain in at_home.gains.values()))
        expected.append(found.gain)
        left += not found.stays
    assert np.mean(naive) > 0.04 and np.mean(expected) < 0.4 * np.mean(naive)
    assert left < 0.5 * 60


def drawn_findings(seed: int, patients: int, findings: int = 3) -> Validated:
    """Two rows of each patient, three models, a fifth of the cells unknown, scores with ties."""
    random = np.random.default_rng(seed)
    states = random.integers(0, 2, (patients, findings)).repeat(2, axis=0)
    models = {
        label: np.round(1 / (1 + np.exp(-(skill * (2 * states - 1) + random.normal(size=states.shape)))), 1)
        for label, skill in (("local", 0.3), ("fedavg", 1.0), ("fenda", 0.6))
    }
    states[random.random(states.shape) < 0.2] = 2
    return Validated(states, np.arange(patients).repeat(2), models)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 25))
def test_gains_of_findings_are_those_of_a_slow_loop_over_drawn_patients(seed, patients):
    """Each finding where it is known; one that a draw has on one side only is left out of that draw's mean."""
    v = drawn_findings(seed, patients)
    at_home = measure_gains(v, ["local"], seed=3, copies=12)
    drawn = np.random.default_rng(3).multinomial(patients, np.full(patients, 1 / patients), 12)
    values = []
    for times in [np.ones(patients, int), *drawn]:
        weight, differences = times.repeat(2), []
        for k in range(3):
            rows = (v.y[:, k] != 2) & (weight > 0)
            if len({*v.y[rows, k]}) == 2:
                area = {
                    label: roc_auc_score(v.y[rows, k], p[rows, k], sample_weight=weight[rows])
                    for label, p in v.probabilities.items()
                }
                differences.append(area["fedavg"] - area["local"])
        values.append(np.mean(differences) if differences else math.nan)
    sides = [[len({*v.patient[v.y[:, k] == state]}) for state in (0, 1)] for k in range(3)]
    rarer = [min(pair) for pair in sides if min(pair)]
    copies = [value for value in values[1:] if math.isfinite(value)]
    gain = at_home.gains["fedavg"]
    if not rarer or len(copies) < 2:
        assert math.isinf(gain.variance)
        return
    assert at_home.rarest == int(statistics.harmonic_mean([*map(Fraction, rarer)]))
    if at_home.rarest:
        assert gain.value == pytest.approx(values[0], abs=1e-9)
        assert gain.variance == pytest.approx(np.var(copies) + (FLIP / at_home.rarest) ** 2, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 25), st.integers(2, 4))
def test_findings_that_are_one_label_again_and_again_are_recommended_as_that_label(seed, patients, times):
    random = np.random.default_rng(seed)
    y, who = random.integers(0, 2, patients), np.arange(patients)
    models = {label: random.random(patients) for label in ("local", "fedavg")}
    as_label = Validated(y, who, {label: two(p) for label, p in models.items()})
    as_findings = Validated(
        y[:, None].repeat(times, 1), who, {label: p[:, None].repeat(times, 1) for label, p in models.items()}
    )
    told = [
        recommend_model("a", measure_gains(each, ["local"], seed=1), OtherGains()) for each in (as_label, as_findings)
    ]
    assert (told[0] is None) == (told[1] is None)
    if told[0] is not None and told[1] is not None:
        assert told[0].method == told[1].method
        assert told[0].gain == pytest.approx(told[1].gain, abs=1e-9)
        assert told[0].sure == pytest.approx(told[1].sure, abs=1e-9)
