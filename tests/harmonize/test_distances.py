"""Distances between sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm

from harmonize.distances import frechet, sliced_wasserstein


def _set(n, d, seed, shift=0.0, scale=1.0):
    return shift + scale * torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


sizes = st.integers(2, 30)
seeds = st.integers(0, 1000)


@settings(max_examples=40)
@given(sizes, sizes, st.integers(1, 12), seeds)
def test_frechet_equals_the_textbook_formula(n, m, d, seed):
    a, b = _set(n, d, seed).double(), _set(m, d, seed + 1, 0.5, 1.5).double()
    s, t = (np.atleast_2d(np.cov(x.numpy(), rowvar=False)) for x in (a, b))
    half = np.real(sqrtm(s + 1e-12 * np.eye(d)))  # the root needs a ridge where n < d
    root = np.real(sqrtm(half @ t @ half + 1e-12 * np.eye(d)))
    slow = float((a.mean(0) - b.mean(0)).square().sum()) + float(np.trace(s + t - 2 * root))
    assert frechet(a, b) == pytest.approx(slow, rel=1e-4, abs=2e-4)


@settings(max_examples=20)
@given(sizes, st.integers(1, 50), seeds)
def test_frechet_of_a_shifted_set_is_the_squared_shift(n, d, seed):
    a = _set(n, d, seed).double()
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet(a, a + 0.5) == pytest.approx(0.25 * d, rel=1e-9)
    assert frechet(a, 3 * (a - a.mean(0)) + a.mean(0)) == pytest.approx(4 * float(a.var(0).sum()), rel=1e-9)


@settings(max_examples=15)
@given(st.integers(1, 6), st.integers(1, 6), seeds)
def test_sliced_wasserstein_equals_the_area_between_quantiles(n, m, seed):
    a, b = _set(n, 12, seed).reshape(n, 3, 2, 2), _set(m, 12, seed + 1).reshape(m, 3, 2, 2)
    directions = torch.randn(12, 7, generator=torch.Generator().manual_seed(seed))
    directions = directions / directions.norm(dim=0)
    # with every row repeated to a common multiple, the distance is the mean gap of the sorted values
    rows = [x.flatten(1).repeat_interleave(60 // len(x), 0) @ directions for x in (a, b)]
    slow = (rows[0].sort(0).values - rows[1].sort(0).values).abs().mean()
    assert sliced_wasserstein(a, b, projections=7, seed=seed) == pytest.approx(float(slow), abs=1e-5)


@pytest.mark.parametrize("distance", [frechet, lambda a, b: sliced_wasserstein(a, b, seed=0)])
def test_distances_are_symmetric_do_not_mind_order_and_grow(distance):
    a, near, far = _set(40, 6, 0), _set(30, 6, 1, 0.3), _set(30, 6, 2, 3.0)
    assert distance(a, near) == pytest.approx(distance(near, a))
    assert distance(a.flip(0), near) == pytest.approx(distance(a, near))
    assert distance(a, near) < distance(a, far)


def test_what_cannot_be_compared_is_told_at_once():
    with pytest.raises(ValueError, match=r"frechet: a has shape \(1, 3\).*b is not finite"):
        frechet(torch.zeros(1, 3), torch.full((3, 3), torch.nan))
    with pytest.raises(ValueError, match="a has 3 numbers a row and b has 4"):
        frechet(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="projections is 0"):
        sliced_wasserstein(torch.zeros(2, 3), torch.zeros(2, 3), projections=0, seed=0)
