"""Epsilon where one patient takes another's place: against closed forms and a slow second implementation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from privacy.dp import replacing
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Declared,
    Event,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
)
from privacy.dp.losses import LIBRARY
from privacy.dp.replacing import BY_GROUP, replaced_cost

DELTA = 1e-5
STEPS = SelfComposed(PoissonSampled(0.2, Gaussian(2.0)), 20)


def replaced(*events: Event, delta: float = DELTA) -> float:
    return replaced_cost(events, delta).epsilon


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0, 20.0])
def test_gaussian_noise_costs_what_half_of_it_costs_for_one_added_or_taken_away(noise):
    """Two patients' parts of norm 1 are 2 apart at most."""
    assert replaced(Gaussian(noise)) == pytest.approx(get_epsilon_gaussian(noise / 2, DELTA), rel=1e-6)
    assert replaced(*[Gaussian(noise)] * 4) == pytest.approx(get_epsilon_gaussian(noise / 4, DELTA), rel=1e-6)


def test_a_pure_epsilon_costs_twice_and_laplace_noise_half_its_multiplier():
    assert replaced(Pure(0.7)) == pytest.approx(1.4, rel=1e-3)
    assert replaced(Laplace(2.0)) == pytest.approx(compute_cost([Laplace(1.0)], DELTA).epsilon)
    once = math.log1p(0.1 * math.expm1(0.5))
    assert replaced(PoissonSampled(0.1, Laplace(2.0))) <= 2 * once + 1e-3


def slow_losses(q: float, noise: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Privacy losses of a Poisson-sampled Gaussian where +1 stands for one patient and -1 for the other, with the
    probability of each: one step's as a histogram on a fine grid, rounded up, and convolved with itself step by step.
    """
    grid, x = 2e-3, np.linspace(-1 - 12 * noise, 1 + 12 * noise, 2_000_001)
    p = (1 - q) * norm.pdf(x, 0, noise) + q * norm.pdf(x, 1, noise)
    r = (1 - q) * norm.pdf(x, 0, noise) + q * norm.pdf(x, -1, noise)
    mass = p * (x[1] - x[0])
    bins = np.ceil(np.log(p / r) / grid).astype(int)
    low = bins.min()
    one = np.bincount(bins - low, weights=mass)
    whole = one
    for _ in range(steps - 1):
        whole = np.convolve(whole, one)
    return (np.arange(len(whole)) + steps * low) * grid, whole


def slow_delta(losses: np.ndarray, chance: np.ndarray, epsilon: float) -> float:
    return float((chance * np.maximum(0, -np.expm1(epsilon - losses))).sum())


LONG = pytest.param(0.2, 2.0, 20, marks=pytest.mark.slow)


@pytest.mark.parametrize(("q", "noise", "steps"), [(0.2, 2.0, 1), LONG, (0.5, 3.0, 8), (0.05, 1.0, 5)])
def test_sampled_gaussian_noise_against_a_slow_second_accountant(q, noise, steps):
    found = replaced(SelfComposed(PoissonSampled(q, Gaussian(noise)), steps))
    known = slow_losses(q, noise, steps)
    slow = float(brentq(lambda e: slow_delta(*known, e) - DELTA, 0, 60))
    assert found == pytest.approx(slow, rel=0.01, abs=2e-3 * steps)


MIXED = [
    [Gaussian(2.0)],
    [STEPS],
    [STEPS, Gaussian(3.0), Pure(0.2)],
    [Part("c", "train", STEPS), Part("c", "test", Gaussian(1.5)), Gaussian(9.0)],
    [PoissonSampled(0.3, Laplace(3.0)), Laplace(4.0)],
]


@pytest.mark.parametrize("events", MIXED)
def test_it_lies_between_one_added_and_what_group_privacy_allows(events):
    once, other = compute_cost(events, DELTA).epsilon, replaced_cost(events, DELTA)
    assert once < other.epsilon <= replacing._by_group(events, DELTA).epsilon * 1.001
    assert other.delta == DELTA and LIBRARY in other.accountant


def test_who_goes_and_who_comes_can_be_in_different_splits():
    train, test = Gaussian(1.0), Gaussian(1.5)
    found = replaced(Part("c", "train", train), Part("c", "test", test))
    assert found == pytest.approx(replaced(train), rel=1e-6), "twice one split is dearer here than one of each"
    three = [Part("c", split, STEPS if split == "train" else Gaussian(2.0)) for split in ("train", "test")]
    pairs = [replaced(STEPS), replaced(Gaussian(2.0)), compute_cost([STEPS, Gaussian(2.0)], DELTA).epsilon]
    assert replaced(*three) == pytest.approx(max(pairs), rel=1e-3)


def test_what_costs_nothing_or_has_no_guarantee_is_the_same_for_all_neighbours():
    assert replaced(NOTHING, Declared("counts")) == 0
    assert math.isinf(replaced(NON_PRIVATE, Gaussian(1.0)))


def test_too_many_combinations_fall_back_to_group_privacy():
    events = [Part(f"c{n}", split, g) for n, (split, g) in itertools.product(range(7), SPLITS.items())]
    found = replaced_cost(events, DELTA)
    assert found.accountant == BY_GROUP and found.epsilon >= 2 * compute_cost(events, DELTA).epsilon


SPLITS = {"train": STEPS, "test": Gaussian(20.0)}


@settings(max_examples=25, deadline=None)
@given(st.floats(0.3, 30), st.floats(1e-9, 1e-3))
def test_group_privacy_of_a_gaussian_is_an_upper_bound(noise, delta):
    bound = replacing._by_group([Gaussian(noise)], delta)
    assert bound.accountant == BY_GROUP
    assert bound.epsilon >= get_epsilon_gaussian(noise / 2, delta) * (1 - 1e-9)
    eps, left = bound.epsilon / 2, delta / (1 + math.exp(bound.epsilon / 2))
    assert get_epsilon_gaussian(noise, left) <= eps * (1 + 1e-6)
