"""Mixup: batches and their losses are blended, beside a slow loop, and for every method as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import methods
from consilium.testing import testbed
from federation.algorithm import find_work_problems
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.fedsgd import FedSGD
from federation.rounds import Schedule
from federation.task import Output
from personalize.dp_head import DpHead
from privacy.dp.access import Batch, Draw, Gradient, PlainAccess, Rows, open_access
from privacy.dp.mixup import blend_rows
from privacy.dp.passes import Passes
from privacy.settings_error import SettingsError

ALPHA = 0.4


def table(seed: int = 0, n: int = 12) -> dict[Any, Rows]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=torch.float64)
    rows = Rows(x, (x[:, 0] > 0).long(), torch.arange(n) // 2)
    return {"train": rows, "validation": rows, "test": rows}


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(1)
        self.w = nn.Parameter(torch.randn(2, 4, generator=g, dtype=torch.float64))
        self.passes = 0

    def forward(self, x: Tensor) -> Output:
        self.passes += 1
        return Output(x @ self.w.T, x)


TASK = testbed.make_task()


def slow_gradient(w: Tensor, x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[float, Tensor]:
    """Loss and gradient of softmax regression on a mixed batch, row by row."""
    partner = torch.randperm(len(x), generator=generator).tolist()
    share = np.random.default_rng(int(torch.randint(2**62, (), generator=generator))).beta(alpha, alpha)
    loss, slope = 0.0, torch.zeros_like(w)
    for row, other in enumerate(partner):
        image = [share * a + (1 - share) * b for a, b in zip(x[row].tolist(), x[other].tolist(), strict=True)]
        logits = [sum(a * b for a, b in zip(line, image, strict=True)) for line in w.tolist()]
        p = [np.exp(each) / sum(np.exp(value) for value in logits) for each in logits]
        for weight, label in ((share, int(y[row])), (1 - share, int(y[other]))):
            loss -= weight * float(np.log(p[label])) / len(x)
            for c in range(len(p)):
                slope[c] += weight * (p[c] - (c == label)) * torch.tensor(image, dtype=w.dtype) / len(x)
    return loss, slope


@pytest.mark.parametrize("training", [True, False])
def test_a_gradient_is_that_of_a_slow_loop_and_takes_one_pass(training: bool):
    splits, module = table(), Linear().train(training)
    access, twin = (open_access(splits, batch=5, seed=3, mixup=alpha) for alpha in (ALPHA, 0.0))
    for _ in range(3):
        plain = twin.draw()
        expected = slow_gradient(module.w.detach(), plain.x, plain.y, ALPHA, twin.generator)
        draw, before = access.draw(), module.passes
        made = access.gradient(module, TASK.objective, draw)
        assert module.passes == before + 1
        assert made.loss == pytest.approx(expected[0], rel=1e-9)
        assert torch.allclose(made.gradient["w"], expected[1], rtol=1e-9, atol=1e-12)
        again = access.gradient(module, TASK.objective, draw)
        assert torch.equal(again.gradient["w"], made.gradient["w"]), "a draw that is used twice is blended once"


def test_rows_in_chunks_have_their_own_partners(monkeypatch: pytest.MonkeyPatch):
    splits, module, made = table(n=12), Linear().eval(), []
    for chunk in (64, 5):
        monkeypatch.setattr("privacy.dp.access.CHUNK", chunk)
        access = open_access(splits, batch=12, seed=3, mixup=ALPHA)
        made.append(access.gradient(module, TASK.objective, access.draw()).gradient["w"])
    assert torch.allclose(made[0], made[1])


def test_batch_norms_and_dropout_are_those_of_one_step():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2)).double()

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Output:
            return Output(self.body(x), x)

    module, access = Whole().train(), open_access(table(), batch=6, seed=0, mixup=ALPHA)
    draw = access.draw()
    assert draw.blend is not None
    before = body[1].num_batches_tracked.item()
    torch.manual_seed(1)
    access.gradient(module, TASK.objective, draw)
    assert body[1].num_batches_tracked.item() == before + 1
    torch.manual_seed(1)
    seen: list[Tensor] = []

    def losses(forward: Callable[..., Any], batch: Batch) -> Tensor:
        seen.append(forward(batch.x).logits)
        return seen[-1].sum(dim=1)

    access.gradient(module, losses, draw)
    assert len(seen) == 2 and seen[0] is seen[1]


def test_without_it_nothing_changes_and_with_it_all_follows_from_the_seed():
    splits = table()
    plain, zero = open_access(splits, batch=5, seed=3), open_access(splits, batch=5, seed=3, mixup=0.0)
    for _ in range(4):
        left, right = plain.draw(), zero.draw()
        assert left.blend is None is right.blend
        assert torch.equal(left.x, right.x) and torch.equal(left.y, right.y)
    assert torch.equal(plain.generator.get_state(), zero.generator.get_state())
    draws = [open_access(splits, batch=5, seed=seed, mixup=ALPHA).draw() for seed in (3, 3, 4)]
    assert torch.equal(draws[0].x, draws[1].x) and not torch.equal(draws[0].x, draws[2].x)
    assert draws[0].blend is not None and draws[1].blend is not None
    assert torch.equal(draws[0].blend.y, draws[1].blend.y) and draws[0].blend.share == draws[1].blend.share


def test_only_batches_are_blended():
    splits = table()
    access = open_access(splits, batch=5, seed=0, mixup=ALPHA)
    assert access.draw().blend is not None
    whole = access.draw(full=True)
    assert whole.blend is None and torch.equal(whole.x, splits["train"].x)
    module = Linear().eval()
    plain = open_access(splits, batch=5, seed=0).measure(module, TASK.validation, "validation")
    assert access.measure(module, TASK.validation, "validation") == plain


def test_views_are_made_before_rows_are_blended():
    splits = table()
    access = open_access(splits, batch=5, seed=0, mixup=ALPHA, augment=lambda x, y, _: (x + 100, y))
    assert float(access.draw().x.min()) > 90


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_drawn_from_the_beta_distribution(alpha: float):
    g, x, y = torch.Generator().manual_seed(0), torch.zeros(2, 1), torch.zeros(2)
    shares = np.array([blend_rows(x, y, alpha, g)[1].share for _ in range(4000)])
    assert shares.mean() == pytest.approx(0.5, abs=0.03)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


def test_a_single_row_is_its_own_partner():
    x, y = torch.tensor([[3.0, 5.0]]), torch.tensor([1])
    made, blend = blend_rows(x, y, ALPHA, torch.Generator().manual_seed(0))
    assert torch.allclose(made, x) and torch.equal(blend.y, y)


@pytest.mark.repeats(8)
@pytest.mark.parametrize("algorithm", methods.fit(TASK), ids=lambda one: one.name)
def test_each_gradient_of_every_method_is_the_blend_of_those_of_both_labels(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch
):
    work = replace(
        methods.work_of(algorithm, Work(lr=0.02, batch=5), Work(optimizer="sgd", lr=0.05, batch=5)), mixup=0.7
    )
    compute, blended = PlainAccess.gradient, 0

    def compared(access: PlainAccess, module: nn.Module, objective: Any, draw: Any, aux: Any = None) -> Gradient:
        nonlocal blended
        made = compute(access, module, objective, draw, aux)
        if isinstance(draw, Draw) and draw.blend is not None:
            blended += 1
            share = draw.blend.share
            alone = [replaced_labels(draw, y) for y in (draw.y, draw.blend.y)]
            own, partner = (compute(access, module, objective, each, aux) for each in alone)
            assert made.loss == pytest.approx(share * own.loss + (1 - share) * partner.loss, rel=1e-4, abs=1e-6)
            for name, value in made.gradient.items():
                expected = share * own.gradient[name] + (1 - share) * partner.gradient[name]
                assert torch.allclose(value, expected, rtol=1e-3, atol=1e-5), name
        return made

    monkeypatch.setattr(PlainAccess, "gradient", compared)
    splits = {name: testbed.make_table(seed, n=14) for seed, name in enumerate("abc")}
    crew = testbed.make_federation(algorithm, splits, task=TASK, work=work)
    testbed.train(algorithm, crew, task=TASK, work=work, schedule=Schedule(rounds=2))
    assert bool(blended) == (not find_work_problems(algorithm, TASK, work))


def replaced_labels(draw: Draw, y: Tensor) -> Draw:
    return Draw(draw.x, y, draw.patient)


def test_half_precision_passes_are_blended_as_well():
    access = open_access(table(), batch=5, seed=0, mixup=ALPHA, passes=Passes("bf16"))
    made = access.gradient(Linear(), TASK.objective, access.draw())
    assert bool(made.gradient["w"].isfinite().all())


# Refusals.


def test_private_training_refuses_it_with_the_reason():
    (sentence,) = Work(mixup=0.2).private_problems
    assert "blends images of different patients" in sentence and "say mixup: 0" in sentence
    assert len(Work(mixup=0.2, precision="bf16").private_problems) == 2
    assert Work().private_problems == []


def test_masks_refuse_it():
    (problem,) = find_work_problems(FedAvg(), testbed.mask_task(), Work(mixup=0.2))
    assert problem.path == "mixup" and "where their masks differ no class is right" in problem.message
    scenes = testbed.make_scenes(1)
    with pytest.raises(ValueError, match="mixup needs a label an example"):
        open_access(scenes, batch=4, seed=0, mixup=0.2)


@pytest.mark.parametrize("method", [FedSGD(), DpHead()], ids=lambda one: one.name)
def test_a_method_without_batches_refuses_it(method: Any):
    (problem,) = find_work_problems(method, TASK, Work(mixup=0.2))
    assert problem.path == "mixup" and f"{method.name} has none" in problem.message
    assert f"method_work: {{{method.name}: {{mixup: 0}}}}" in problem.message


@pytest.mark.parametrize("alpha", [-0.1, 101.0])
def test_its_range_is_told(alpha: float):
    with pytest.raises(SettingsError, match=r"mixup must be in \[0, 100\], found"):
        Work(mixup=alpha)
