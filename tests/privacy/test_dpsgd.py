"""One private gradient: clipped sums as Opacus and a loop have them, and noise that is drawn once for all tensors."""

from __future__ import annotations

import math
import random

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

from privacy.dp import dpsgd
from privacy.dp.dpsgd import private_gradient
from privacy.dp.entropy import gaussian, gaussians

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


@pytest.mark.parametrize("joined", [2**16, 12, 1])
@pytest.mark.parametrize("clip", [0.3, 4.0, 1e4])
def test_a_private_gradient_without_noise_is_that_of_opacus_and_of_a_loop(clip, joined, monkeypatch):
    monkeypatch.setattr(dpsgd, "JOINED", joined)  # all tensors in one block, in some, and each in its own
    g = torch.Generator().manual_seed(0)
    params = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    parts = [{name: torch.randn(u, *shape, generator=g) for name, shape in SHAPES.items()} for u in (5, 1, 4)]
    found = private_gradient(params, parts, clip=clip, noise=0.0, expected=7.0)
    theirs, exact = by_opacus(params, parts, clip, 7.0), by_hand(parts, clip, 7.0)
    for name, shape in SHAPES.items():
        assert found[name].shape == shape
        assert torch.allclose(found[name], theirs[name], rtol=1e-5, atol=1e-6)
        assert torch.allclose(found[name].double(), exact[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("joined", [2**16, 1])
def test_strays_are_told_once_for_each_part_and_count_as_nothing(joined, monkeypatch):
    monkeypatch.setattr(dpsgd, "JOINED", joined)
    params = {name: nn.Parameter(torch.zeros(2)) for name in ("a", "b")}
    whole = {"a": torch.ones(3, 2), "b": torch.ones(3, 2)}
    parts = [{name: value.clone() for name, value in whole.items()} for _ in range(3)]
    parts[0]["a"][1, 0], parts[0]["b"][2, 1], parts[2]["b"][0, 0] = math.nan, math.inf, 1e30  # whose square is infinite
    told: list[int] = []
    found = private_gradient(params, parts, clip=1e4, noise=0.0, expected=1.0, strays=told.append)
    assert sum(told) in (2, 3) and told[0] == 2
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert float(torch.cat(list(found.values())).norm()) <= (1 + 3 + 3) * 1e4


def test_the_noise_of_all_tensors_is_that_of_each_alone_from_the_same_bytes():
    sizes, source = [12, 1, 0, 700, 5], random.Random(2).randbytes
    alone = [gaussian((size,), 1.7, source) for size in sizes]
    assert torch.equal(gaussians(sizes, 1.7, random.Random(2).randbytes), torch.cat(alone))
    params = {str(k): nn.Parameter(torch.zeros(size, 1)) for k, size in enumerate(sizes)}
    part = {name: torch.zeros(0, *p.shape) for name, p in params.items()}
    source = random.Random(2).randbytes
    found = private_gradient(params, [part], clip=0.5, noise=3.4, expected=1.0, source=source)
    assert torch.equal(torch.cat(list(found.values()))[:, 0], torch.cat(alone).float())


def test_parts_that_lack_a_parameter_are_refused():
    params = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(2))}
    for parts in ([], [{"a": torch.zeros(1, 2)}]):
        with pytest.raises(ValueError, match=r"needed are \['a', 'b'\]"):
            private_gradient(params, parts, clip=1.0, noise=0.0, expected=1.0)
