from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harmonize.structure import FLOOR, WINDOW, structure_change


def picture(seed: int = 0, n: int = 2, side: int = 24) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    coarse = torch.nn.functional.interpolate(torch.randn(n, 1, 6, 6, generator=g), size=side, mode="bilinear")
    return (0.2 * coarse + 0.02 * torch.randn(n, 1, side, side, generator=g)).clamp(-0.9, 0.9).double()


@settings(max_examples=20, deadline=None)
@given(gain=st.floats(0.5, 2.0), level=st.floats(-0.3, 0.3), seed=st.integers(0, 100))
def test_a_rising_line_changes_no_structure_and_a_falling_one_turns_it_round(
    gain: float, level: float, seed: int
) -> None:
    x = picture(seed)
    assert float(structure_change(x, x)) == pytest.approx(0.0, abs=1e-9)
    assert float(structure_change(gain * x + level, x)) == pytest.approx(0.0, abs=0.02)
    assert float(structure_change(-gain * x + level, x)) == pytest.approx(2.0, abs=0.05)


def test_it_is_the_weighted_correlation_of_each_window_written_out() -> None:
    x, y = picture(1, n=1, side=12), picture(2, n=1, side=12)
    top = bottom = 0.0
    for i in range(12 - WINDOW + 1):
        for j in range(12 - WINDOW + 1):
            a, b = (one[0, 0, i : i + WINDOW, j : j + WINDOW].flatten() for one in (x, y))
            own, theirs = float(a.var(correction=0)), float(b.var(correction=0))
            both = float(((a - a.mean()) * (b - b.mean())).mean())
            here = own / (own + FLOOR) - both / ((own + FLOOR) * (theirs + FLOOR)) ** 0.5
            top, bottom = top + own**0.5 * here, bottom + own**0.5
    assert float(structure_change(y, x)) == pytest.approx(top / bottom, rel=1e-6)


def test_a_lesion_that_is_wiped_out_or_turned_bright_costs_more_than_one_that_is_kept() -> None:
    x = picture(3, n=1, side=32)
    gland, lesion = x.clone(), x.clone()
    lesion[..., 12:18, 12:18] -= 0.4
    bright = gland.clone()
    bright[..., 12:18, 12:18] += 0.4
    kept, gone, turned = (float(structure_change(one, lesion)) for one in (0.7 * lesion + 0.1, gland, bright))
    assert kept < 0.02 < 0.2 < gone < turned


def test_flat_images_have_a_value_and_a_slope() -> None:
    flat, x = torch.zeros(1, 1, 16, 16, requires_grad=True), torch.zeros(1, 1, 16, 16)
    found = structure_change(flat, x)
    found.backward()
    assert float(found.detach()) == 0.0
    assert flat.grad is not None
    assert bool(torch.isfinite(flat.grad).all())
    moved = torch.full((1, 1, 16, 16), 0.3, requires_grad=True)
    structure_change(moved, picture(4, n=1, side=16).float()).backward()
    assert moved.grad is not None
    assert bool(torch.isfinite(moved.grad).all())
