"""Randomness from bytes: the right distributions, and nothing that a seed could repeat."""

from __future__ import annotations

import pytest
import torch
from fixed_bytes import bytes_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privacy.dp.entropy import draw_choices, draw_gaussian, draw_integers, draw_uniform, make_generator


def test_torch_keeps_32_bits_of_a_seed_which_is_why_noise_does_not_come_from_it():
    one, other = (torch.Generator().manual_seed(seed) for seed in (1, 1 + 2**32))
    assert torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=other))


def test_uniform_numbers_are_uniform_and_never_reach_their_ends():
    values = draw_uniform((40_000,), bytes_of(0))
    assert stats.kstest(values.numpy(), "uniform").pvalue > 0.01
    assert float(values.min()) > 0 and float(values.max()) < 1
    assert draw_uniform((2,), lambda n: b"\x00" * n)[0] > 0 and draw_uniform((2,), lambda n: b"\xff" * n)[0] < 1
    lowest, highest = (
        draw_uniform((1,), lambda n: b"\x00" * 7 + b"\x80"),
        draw_uniform((1,), lambda n: b"\xff" * 7 + b"\x7f"),
    )
    assert 0 < float(lowest) < 2**-50 and 1 - 2**-50 < float(highest) < 1


@pytest.mark.parametrize("std", [0.0, 0.5, 17.0])
def test_gaussian_noise_has_its_standard_deviation_and_shape(std):
    noise = draw_gaussian((200, 300), std, bytes_of(1))
    assert noise.shape == (200, 300) and noise.dtype == torch.float64
    assert float(noise.std()) == pytest.approx(std, rel=0.01)
    if std:
        assert stats.kstest(noise.ravel().numpy() / std, "norm").pvalue > 0.01


@given(st.floats(0, 1), st.integers(0, 300))
def test_a_poisson_sample_takes_each_with_the_same_probability(q, n):
    taken = draw_choices(n, q, bytes_of(2))
    assert taken.shape == (n,)
    assert q < 1 or bool(taken.all())
    assert q > 0 or not bool(taken.any())
    if n:
        assert abs(int(taken.sum()) - q * n) <= 6 * (n * q * (1 - q)) ** 0.5 + 1e-9


def test_choices_stay_below_their_bound_and_reach_every_value():
    below = torch.tensor([[1], [2], [7]])
    found = draw_integers((3, 4000), below, bytes_of(3))
    for row, bound in zip(found, below[:, 0].tolist(), strict=True):
        assert sorted(set(row.tolist())) == list(range(bound))
        assert stats.chisquare(torch.bincount(row, minlength=bound).numpy()).pvalue > 0.01 or bound == 1


def test_a_generator_for_views_has_all_of_its_state_from_the_source():
    one, same, other = (torch.rand(1000, generator=make_generator(bytes_of(seed))) for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert stats.kstest(one.numpy(), "uniform").pvalue > 0.01


@pytest.mark.chance(1e-12, "fifty numbers are drawn twice")
def test_without_a_source_nothing_repeats():
    assert not torch.equal(draw_gaussian((50,), 1.0), draw_gaussian((50,), 1.0))


@pytest.mark.parametrize("std", [-1.0, float("nan"), float("inf")])
def test_noise_that_is_no_number_is_refused(std):
    with pytest.raises(ValueError, match="std must be finite"):
        draw_gaussian((2,), std)
    with pytest.raises(ValueError, match="sampling probability must be in"):
        draw_choices(3, -0.1)
