"""Mechanisms: what one patient can change, how much noise there is, and what the event says of it."""

from __future__ import annotations

import math
import random
from itertools import permutations

import pytest
import torch
from dp_accounting import get_epsilon_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.dp.events import Gaussian, Pure
from privacy.dp.mechanisms import analytic_gaussian, bounded_mean, flip_probabilities, noisy_max, vote_histogram

ANY = st.floats(allow_nan=True, allow_infinity=True)
BOUNDS = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda b: b[0] < b[1])


def source():
    return random.Random(0).randbytes


def mean_of(values, low, high, count, noise=0.0):
    tensor = torch.tensor(values, dtype=torch.float64)
    return bounded_mean(tensor, low=low, high=high, count=count, noise_multiplier=noise, source=source()).value


@pytest.mark.parametrize(("epsilon", "sigma"), [(10, 0.500), (3, 1.391), (1, 3.731)])
def test_the_analytic_gaussian_has_the_known_multipliers_and_costs_what_was_asked(epsilon, sigma):
    _, event = analytic_gaussian(torch.zeros(1), sensitivity=2.0, epsilon=epsilon, delta=1e-5)
    assert isinstance(event, Gaussian)
    assert event.noise_multiplier == pytest.approx(sigma, abs=6e-4)
    assert get_epsilon_gaussian(event.noise_multiplier, 1e-5) == pytest.approx(epsilon, rel=1e-7)
    assert get_epsilon_gaussian(event.noise_multiplier, 1e-5) <= epsilon


@given(st.floats(0.01, 50), st.floats(1e-12, 0.5))
def test_delta_of_the_analytic_gaussian_by_its_own_formula_is_not_above_the_asked(epsilon, delta):
    sigma = analytic_gaussian(torch.zeros(1), sensitivity=1.0, epsilon=epsilon, delta=delta).event.noise_multiplier
    a, b = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    spent = stats.norm.cdf(a) - math.exp(epsilon + stats.norm.logcdf(b))
    assert spent <= delta * (1 + 1e-6)
    assert spent == pytest.approx(delta, rel=1e-4)


def test_the_noise_has_the_stated_deviation_and_its_shape_is_gaussian():
    n = 40_000
    noisy, event = analytic_gaussian(
        torch.full((n,), 7.0, dtype=torch.float64), sensitivity=0.3, epsilon=1.0, delta=1e-5, source=source()
    )
    wanted = 0.3 * event.noise_multiplier
    assert stats.kstest(((noisy - 7.0) / wanted).numpy(), "norm").pvalue > 1e-3
    assert float(noisy.std()) == pytest.approx(wanted, rel=4 / math.sqrt(2 * n))
    histogram, event = vote_histogram(torch.ones(3, n), noise_multiplier=2.5, source=source())
    assert event == Gaussian(2.5)
    assert float(histogram.std()) == pytest.approx(2.5, rel=4 / math.sqrt(2 * n))
    draw = source()
    means = torch.tensor(
        [
            bounded_mean(torch.ones(5), low=-100, high=100, count=50, noise_multiplier=1.2, source=draw).value
            for _ in range(4000)
        ]
    )
    assert float(means.std()) == pytest.approx(1.2 * 100 / 50, rel=4 / math.sqrt(2 * 4000))


def test_float32_stays_float32_and_is_rounded_once():
    value = torch.rand(100)
    noisy, _ = analytic_gaussian(value, sensitivity=1.0, epsilon=1.0, delta=1e-5, source=source())
    exact, _ = analytic_gaussian(value.double(), sensitivity=1.0, epsilon=1.0, delta=1e-5, source=source())
    assert noisy.dtype == torch.float32
    assert torch.equal(noisy, exact.float())


@given(st.lists(ANY, max_size=8), ANY, BOUNDS, st.integers(1, 5))
def test_one_patient_moves_a_bounded_mean_by_half_the_range_over_the_count_at_most(values, one, bounds, count):
    low, high = bounds
    without, with_ = (mean_of(v, low, high, count) for v in (values, [*values, one]))
    assert all(low <= mean <= high for mean in (without, with_))
    assert abs(with_ - without) <= (high - low) / 2 / count + 1e-9 * (1 + abs(low) + abs(high))


@given(st.lists(st.floats(0, 2), min_size=1, max_size=20))
def test_a_bounded_mean_without_noise_of_as_many_patients_as_declared_is_their_mean(values):
    assert mean_of(values, 0.0, 2.0, len(values)) == pytest.approx(sum(values) / len(values), abs=1e-12)
    assert mean_of(values[::-1], 0.0, 2.0, len(values)) == mean_of(values, 0.0, 2.0, len(values))


def test_a_value_that_is_not_finite_counts_as_the_middle_and_nobody_at_all_still_gets_noise():
    assert mean_of([math.nan, math.inf, -math.inf], 1.0, 3.0, 3) == 2.0
    assert mean_of([], 1.0, 3.0, 3) == 2.0
    assert mean_of([], 1.0, 3.0, 3, noise=0.5) != 2.0
    assert bool((vote_histogram(torch.zeros(0, 4), noise_multiplier=1.0).value != 0).all())
    assert bool((vote_histogram(torch.zeros(3, 4), noise_multiplier=1.0).value != 0).all())


@given(st.lists(st.lists(ANY, min_size=3, max_size=3), max_size=6), st.lists(ANY, min_size=3, max_size=3))
def test_one_patient_moves_a_histogram_by_one_at_most(rows, row):
    votes = torch.tensor([*rows, row], dtype=torch.float64)
    without, with_ = (vote_histogram(v, noise_multiplier=0.0).value for v in (votes[:-1], votes))
    moved = with_ - without
    assert bool(moved.isfinite().all())
    assert float(moved.norm()) <= 1 + 1e-12
    usable = all(0 <= entry < math.inf for entry in row) and any(row)
    assert float(moved.abs().sum()) == pytest.approx(1.0 if usable else 0.0, abs=1e-12)


def test_a_histogram_is_the_sum_of_every_patients_shares():
    votes = torch.tensor([[1, 3, 0], [0, 0, 5], [0, 0, 0], [2, 2, 0]])
    assert vote_histogram(votes, noise_multiplier=0.0).value.tolist() == [0.75, 1.25, 1.0]


def permute_and_flip(taken):
    """Exact probabilities by the algorithm as it is told: every order, candidate after candidate."""
    answer = [0.0] * len(taken)
    orders = list(permutations(range(len(taken))))
    for order in orders:
        reached = 1.0
        for place in order:
            answer[place] += reached * taken[place] / len(orders)
            reached *= 1 - taken[place]
    return answer


def exactly(scores, **settings):
    return permute_and_flip(flip_probabilities(torch.tensor(scores, dtype=torch.float64), **settings).tolist())


def test_a_noisy_maximum_comes_as_often_as_the_algorithm_says():
    settings = {"sensitivity": 0.5, "epsilon": 1.2, "monotone": False}
    scores, draw, n = [1.0, 1.6, 0.2], source(), 6000
    found = [noisy_max(torch.tensor(scores), source=draw, **settings).value for _ in range(n)]
    wanted = exactly(scores, **settings)
    assert stats.chisquare([found.count(i) for i in range(3)], [n * p for p in wanted]).pvalue > 1e-3
    # Flip probability of a score 0.6 below the largest, by hand: exp(-1.2 / (2 * 0.5) * 0.6).
    assert flip_probabilities(torch.tensor(scores), **settings)[0] == pytest.approx(math.exp(-0.72), rel=1e-6)


def test_a_noisy_maximum_is_no_worse_than_the_exponential_mechanism():
    scores = [1.0, 1.6, 0.2, 0.0]
    flipped = exactly(scores, sensitivity=0.5, epsilon=1.0, monotone=False)
    weights = [math.exp(s / (2 * 0.5)) for s in scores]
    exponential = [w / sum(weights) for w in weights]
    assert sum(flipped) == pytest.approx(1.0)
    gain = [sum(s * p for s, p in zip(scores, ps, strict=True)) for ps in (flipped, exponential)]
    assert gain[0] > gain[1]


@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.floats(0.1, 4),
    st.booleans(),
)
def test_neighbours_of_a_noisy_maximum_differ_by_exp_epsilon_at_most(scores, moves, epsilon, monotone):
    # Moves of 0..1 are monotone with sensitivity 1; the same moves scaled to -1..1 are not.
    moved = [s + (m if monotone else 2 * m - 1) for s, m in zip(scores, moves, strict=True)]
    settings = {"sensitivity": 1.0, "epsilon": epsilon, "monotone": monotone}
    for p, q in zip(exactly(scores, **settings), exactly(moved, **settings), strict=True):
        assert abs(math.log(p) - math.log(q)) <= epsilon + 1e-9


def test_a_noisy_maximum_needs_the_factor_of_two_where_scores_move_both_ways():
    # What the test above would find if `monotone` were claimed wrongly.
    settings = {"sensitivity": 1.0, "epsilon": 1.0, "monotone": True}
    p, q = exactly([0.0, 3.0, -9.0], **settings), exactly([1.0, 2.0, -9.0], **settings)
    assert abs(math.log(p[0]) - math.log(q[0])) > 1.1


def test_a_noisy_maximum_is_booked_as_pure_and_one_candidate_needs_no_choice():
    assert noisy_max(torch.tensor([3.0]), sensitivity=1.0, epsilon=0.5) == (0, Pure(0.5))


def test_every_wrong_argument_is_named_at_once():
    with pytest.raises(ValueError, match=r"sensitivity is 0(?s:.*)epsilon is nan(?s:.*)delta is 1(?s:.*)int64"):
        analytic_gaussian(torch.zeros(1).long(), sensitivity=0, epsilon=math.nan, delta=1)
    with pytest.raises(ValueError, match="value is not finite"):
        analytic_gaussian(torch.tensor([math.nan]), sensitivity=1, epsilon=1, delta=1e-5)
    with pytest.raises(ValueError, match=r"noise_multiplier is -1(?s:.*)\[low, high\](?s:.*)count is 0(?s:.*)shape"):
        bounded_mean(torch.zeros(2, 2), low=1, high=1, count=0, noise_multiplier=-1)
    with pytest.raises(ValueError, match=r"noise_multiplier is inf(?s:.*)shape \(2, 0\)"):
        vote_histogram(torch.zeros(2, 0), noise_multiplier=math.inf)
    with pytest.raises(ValueError, match=r"sensitivity is -1(?s:.*)epsilon is inf(?s:.*)shape \(0,\)"):
        noisy_max(torch.zeros(0), sensitivity=-1, epsilon=math.inf)
    with pytest.raises(ValueError, match="not finite somewhere"):
        noisy_max(torch.tensor([0.0, math.inf]), sensitivity=1, epsilon=1)
