"""The discrete Gaussian sampler: its distribution, its exact decisions, and a literal second implementation."""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.dp.discrete_gaussian import LARGEST_SIGMA, decide, draw_below, draw_discrete_gaussian


def bernoulli_exp(gamma: Fraction, rng: random.Random) -> bool:
    """Canonne, Kamath, Steinke, algorithm 1, with fractions."""
    if gamma > 1:
        while gamma > 1:
            if not bernoulli_exp(Fraction(1), rng):
                return False
            gamma -= 1
        return bernoulli_exp(gamma, rng)
    k = 1
    while Fraction(rng.randrange(10**18), 10**18) < gamma / k:
        k += 1
    return k % 2 == 1


def slow_sample(sigma: Fraction, rng: random.Random) -> int:
    """Algorithms 2 and 3, one number at a time."""
    t = math.floor(sigma) + 1
    while True:
        u = rng.randrange(t)
        if not bernoulli_exp(Fraction(u, t), rng):
            continue
        v = 0
        while bernoulli_exp(Fraction(1), rng):
            v += 1
        size, negative = u + t * v, rng.random() < 0.5
        if negative and size == 0:
            continue
        if bernoulli_exp((size - sigma**2 / t) ** 2 / (2 * sigma**2), rng):
            return -size if negative else size


def probabilities(sigma: float, reach: int) -> np.ndarray:
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return weights / weights.sum()


def p_value(drawn: np.ndarray, sigma: float) -> float:
    """Of a chi-square test against the distribution, with its tails in one bin each."""
    reach = max(2, math.ceil(3 * sigma))
    p = probabilities(sigma, 40 * reach)
    middle = len(p) // 2
    bins = [p[: middle - reach].sum(), *p[middle - reach : middle + reach + 1], p[middle + reach + 1 :].sum()]
    cut = np.clip(drawn, -reach - 1, reach + 1) + reach + 1
    observed, expected = np.bincount(cut, minlength=len(bins)), np.array(bins) * len(drawn)
    kept = expected > 5
    return float(stats.chi2.sf(((observed - expected)[kept] ** 2 / expected[kept]).sum(), kept.sum() - 1))


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 2.5, 17.0, 300.25])
def test_samples_have_the_distribution(sigma: float) -> None:
    drawn = draw_discrete_gaussian(200_000, sigma, random.Random(5).randbytes)
    assert p_value(drawn, sigma) > 1e-3


def test_a_wrong_sigma_is_seen_by_that_test() -> None:
    drawn = draw_discrete_gaussian(200_000, 2.5, random.Random(5).randbytes)
    assert p_value(drawn, 2.55) < 1e-3


@pytest.mark.parametrize("sigma", [0.7, 3.0])
def test_the_literal_algorithm_has_the_same_distribution(sigma: float) -> None:
    rng = random.Random(3)
    slow = [slow_sample(Fraction(sigma), rng) for _ in range(4000)]
    fast = draw_discrete_gaussian(4000, sigma, random.Random(4).randbytes)
    assert p_value(np.array(slow), sigma) > 1e-3
    assert stats.ks_2samp(slow, fast).pvalue > 1e-3


def test_large_sigmas_have_the_moments_of_a_gaussian() -> None:
    drawn = draw_discrete_gaussian(200_000, 2.0**40, random.Random(6).randbytes) / 2.0**40
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


@given(st.fractions(min_value=0, max_value=30), st.integers(-2, 2), st.integers(0, 2**32))
@settings(max_examples=200)
def test_decisions_are_exact_next_to_the_boundary(gamma: Fraction, step: int, seed: int) -> None:
    """A word whose 64 bits are those of exp(-g), or next to them, is decided as high precision says."""
    with localcontext() as context:
        context.prec = 120
        target = (-(Decimal(gamma.numerator) / Decimal(gamma.denominator))).exp()
        word = min(max(int(target * 2**64) + step, 0), 2**64 - 1)
        more = random.Random(seed).randbytes(8)
        first = word.to_bytes(8, "little")
        drawn = [first, *[more] * 8]
        said = bool(decide(np.array([float(gamma)]), lambda index: gamma, lambda n: drawn.pop(0))[0])
        digits = Decimal(word) + Decimal(int.from_bytes(more * 1, "little")) / 2**64
        if abs(digits / 2**64 - target) > Decimal(2) ** -120:
            assert said == (digits / 2**64 < target)


@given(st.integers(1, 2**62), st.integers(0, 2**32))
@settings(max_examples=50)
def test_whole_numbers_below_a_limit(limit: int, seed: int) -> None:
    drawn = draw_below(50, limit, random.Random(seed).randbytes)
    assert drawn.dtype == np.int64 and drawn.min() >= 0 and drawn.max() < limit


def test_no_noise_is_zeros_and_sigmas_that_cannot_be_drawn_are_refused() -> None:
    assert not draw_discrete_gaussian(3, 0.0).any() and len(draw_discrete_gaussian(0, 1.0)) == 0
    for sigma in (-1.0, math.nan, math.inf, 2 * LARGEST_SIGMA):
        with pytest.raises(ValueError, match="sigma must be"):
            draw_discrete_gaussian(3, sigma)
