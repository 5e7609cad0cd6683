"""Quantiles by noisy comparisons: right without noise, bounded by one patient, and the noise that is booked."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privacy.dp import entropy
from privacy.dp.events import Gaussian, SelfComposed
from privacy.dp.quantiles import noisy_quantile

VALUES = st.lists(st.floats(0.1, 20.0), max_size=40)
SHARES = st.sampled_from([0.1, 0.25, 0.5, 0.75])
BOUNDS = {"low": 0.1, "high": 20.0}


@given(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=40), SHARES)
def test_without_noise_it_is_the_quantile_to_the_last_range(values, share) -> None:
    """A slow second way: no value of a fine grid below the answer's range has more than this share of values below."""
    told = noisy_quantile(torch.tensor(values), quantile=share, comparisons=10, noise_multiplier=0.0, **BOUNDS).value
    half = (BOUNDS["high"] / BOUNDS["low"]) ** (2.0**-11) * (1 + 1e-6)
    single = torch.tensor(values).double()
    below = int((single < told / half).sum())
    above = int((single < told * half).sum())
    assert below <= share * len(values) + 1e-9 and (above > share * len(values) - 1e-9 or told * half >= 20.0)


@given(VALUES, st.floats(0.1, 20.0), SHARES)
def test_one_patient_moves_a_comparison_by_its_sensitivity_at_most(values, patient, share) -> None:
    """Of each sum that gets noise, whoever is added, wherever the comparison is."""

    def sums(members: list[float]) -> list[float]:
        return [sum((value < at) - share for value in members) for at in (0.05, 0.3, 1.0, 5.0, 30.0)]

    most = max(abs(a - b) for a, b in zip(sums(values), sums([*values, patient]), strict=True))
    assert most <= max(share, 1 - share) + 1e-12


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("patients", [0, 1, 30])
def test_each_comparison_has_the_noise_that_is_booked(monkeypatch, share, patients) -> None:
    """As many draws as the event counts, each of the multiplier times the sensitivity, whoever is there."""
    drawn: list[float] = []

    def record(shape: tuple[int, ...], std: float, source: object) -> torch.Tensor:
        drawn.append(std)
        return torch.zeros(shape, dtype=torch.float64)

    monkeypatch.setattr(entropy, "draw_gaussian", record)
    answer = noisy_quantile(torch.full((patients,), 2.0), quantile=share, comparisons=7, noise_multiplier=3.0, **BOUNDS)
    assert answer.event == SelfComposed(Gaussian(3.0), 7)
    assert drawn == [3.0 * max(share, 1 - share)] * 7
    assert BOUNDS["low"] < answer.value < BOUNDS["high"]


@given(st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -3.0, 1.0]), max_size=10))
def test_odd_values_are_no_error(values) -> None:
    told = noisy_quantile(torch.tensor(values), quantile=0.5, comparisons=3, noise_multiplier=1.0, **BOUNDS)
    assert BOUNDS["low"] < told.value < BOUNDS["high"]


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"shape.*quantile is 1.*\[low, high\].*comparisons is 0.*noise_multiplier"):
        noisy_quantile(torch.zeros(2, 2), quantile=1, low=2, high=1, comparisons=0, noise_multiplier=-1.0)
