"""One private gradient: clipped sums as Opacus and a loop have them, and noise that is drawn once for all tensors."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus.optimizers import DPOptimizer
from torch import nn

from privacy.dp.dpsgd import private_gradient
from privacy.dp.entropy import draw_gaussian, draw_gaussians
from privacy.dp.moments import SLACK

SHAPES = {"w": (3, 4), "b": (3,), "one": (), "last": (2, 1, 5)}


def by_opacus(params, parts, clip: float, expected: float) -> dict[str, torch.Tensor]:
    rule = DPOptimizer(
        torch.optim.SGD(list(params.values()), lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=expected,
    )
    for number, part in enumerate(parts, start=1):
        rule.zero_grad()
        for name, p in params.items():
            p.grad_sample = part[name]
        rule.signal_skip_step(number < len(parts))
        rule.pre_step()
    return {name: p.grad for name, p in params.items()}


def by_hand(parts, clip: float, expected: float) -> dict[str, torch.Tensor]:
    found = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for part in parts:
        for u in range(len(part["w"])):
            own = {name: value[u].double() for name, value in part.items()}
            norm = math.sqrt(sum(float(value.square().sum()) for value in own.values()))
            for name, value in own.items():
                found[name] += value * min(1.0, clip / (norm + 1e-6)) / expected
    return found


def patients_of(parts) -> list[dict[str, torch.Tensor]]:
    return [{name: value[u] for name, value in part.items()} for part in parts for u in range(len(part["w"]))]


@pytest.mark.parametrize("clip", [0.3, 4.0, 1e4])
def test_a_private_gradient_without_noise_is_that_of_opacus_and_of_a_loop(clip):
    g = torch.Generator().manual_seed(0)
    params = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    parts = [{name: torch.randn(u, *shape, generator=g) for name, shape in SHAPES.items()} for u in (5, 1, 4)]
    released = private_gradient(params, patients_of(parts), clip=clip, noise=0.0, expected=7.0)
    theirs, exact = by_opacus(params, parts, clip, 7.0), by_hand(parts, clip, 7.0)
    for name, shape in SHAPES.items():
        assert released[name].shape == shape
        assert torch.allclose(released[name], theirs[name], rtol=1e-5, atol=1e-6)
        assert torch.allclose(released[name].double(), exact[name], rtol=1e-6, atol=1e-7)


def test_a_gradient_that_is_not_finite_counts_as_nothing_and_a_huge_one_is_clipped():
    params = {name: nn.Parameter(torch.zeros(2)) for name in ("a", "b")}
    patients = [{"a": torch.ones(2), "b": torch.ones(2)} for _ in range(9)]
    patients[1]["a"], patients[2]["b"] = torch.tensor([math.nan, 0.0]), torch.tensor([0.0, math.inf])
    patients[8]["b"] = torch.tensor([1e30, 0.0])  # its square is infinite in float32
    strays: list[int] = []
    released = private_gradient(params, patients, clip=1e4, noise=0.0, expected=1.0, strays=strays.append)
    assert strays == [2]
    assert released["a"].tolist() == [6.0, 6.0] and released["b"].tolist() == [10006.0, 6.0]


WIDE = st.floats(-(2.0**99), 2.0**99, width=32) | st.floats(-1.0, 1.0, width=32) | st.just(math.nan)
PATIENT = st.lists(WIDE, min_size=3, max_size=3)


@given(st.lists(PATIENT, min_size=1, max_size=12), st.floats(1e-4, 1e4), st.randoms(use_true_random=False), st.data())
def test_removing_a_patient_moves_the_sum_by_the_clip_at_most_and_no_order_moves_it(rows, clip, random_, data):
    """In float64, so that the one rounding of the result does not hide what the sum does."""
    params = {"w": nn.Parameter(torch.zeros(3, dtype=torch.float64))}

    def total(some: list[list[float]]) -> torch.Tensor:
        patients = [{"w": torch.tensor(row, dtype=torch.float32)} for row in some]
        return private_gradient(params, patients, clip=clip, noise=0.0, expected=1.0)["w"]

    gone = data.draw(st.integers(0, len(rows) - 1))
    whole, rest = total(rows), total(rows[:gone] + rows[gone + 1 :])
    assert float((whole - rest).norm()) <= clip * SLACK
    mixed = list(rows)
    random_.shuffle(mixed)
    assert torch.equal(total(mixed), whole)


def test_the_noise_of_all_tensors_is_that_of_each_alone_from_the_same_bytes():
    sizes, source = [12, 1, 0, 700, 5], random.Random(2).randbytes
    alone = [draw_gaussian((size,), 1.7, source) for size in sizes]
    assert torch.equal(draw_gaussians(sizes, 1.7, random.Random(2).randbytes), torch.cat(alone))
    params = {str(k): nn.Parameter(torch.zeros(size, 1)) for k, size in enumerate(sizes)}
    source = random.Random(2).randbytes
    released = private_gradient(params, [], clip=0.5, noise=3.4, expected=1.0, source=source)
    assert torch.allclose(torch.cat(list(released.values()))[:, 0], torch.cat(alone).float(), rtol=1e-6)


def test_a_patient_that_lacks_a_parameter_is_refused():
    params = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))}
    with pytest.raises(ValueError, match=r"needed are \['a', 'b'\]"):
        private_gradient(params, [{"a": torch.zeros(2)}], clip=1.0, noise=0.0, expected=1.0)
