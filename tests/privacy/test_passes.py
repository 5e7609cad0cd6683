"""bfloat16 and channels-last: what they may change is rounding and speed, never names, types or meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import methods
from consilium.testing import testbed
from federation.descent import Work
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.rounds import Schedule
from federation.task import Output, Task
from privacy.dp.access import Batch, PlainAccess, Rows, open_access
from privacy.dp.passes import PLAIN, Passes, to_float32

BF16, LAST = Passes("bf16"), Passes(channels_last=True)
ADAM, SGD = Work(lr=0.02, batch=8), Work(optimizer="sgd", lr=0.05, batch=8)
NETWORKS = [
    Task(Cnn(widths=(8, 16), norm="batch"), (1, 16, 16), 2),
    Task(Cnn(widths=(8, 16), norm="group"), (1, 16, 16), 2),
    Task(Cam(widths=(8, 8, 8, 8)), (1, 32, 32), 2),
    Task(ResNet18(width=8, small=True), (3, 32, 32), 2),
    Task(UNet(width=4, levels=1), (1, 16, 16), 2, "segmentation"),
]


def named(task: Task) -> str:
    return f"{task.model.name}-{getattr(task.model, 'norm', '')}"


def opened(task: Task, passes: Passes) -> PlainAccess:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(12, *task.inputs, generator=made)
    y = (x > 0.0)[:, 0].long() if task.kind == "segmentation" else (x.mean(dim=(1, 2, 3)) > 0).long()
    return open_access({"train": Rows(x, y, torch.arange(12))}, batch=12, seed=0, passes=passes)


def gradients(task: Task, passes: Passes) -> tuple[torch.Tensor, float]:
    torch.manual_seed(0)
    module, access = task.network().train(), opened(task, passes)
    found = access.gradient(module, task.objective, access.draw())
    assert {g.dtype for g in found.gradient.values()} == {torch.float32}
    assert all(g.is_contiguous() for g in found.gradient.values())
    return torch.cat([g.flatten() for g in found.gradient.values()]), found.loss


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / one.norm())


@pytest.mark.parametrize("task", NETWORKS, ids=named)
def test_a_gradient_in_bfloat16_is_the_same_to_its_rounding(task):
    (one, loss), (other, there) = gradients(task, PLAIN), gradients(task, BF16)
    deep = len(list(task.network().modules())) > 40  # rounding adds up from layer to layer, and turns maxima around
    assert 1e-5 < apart(one, other) < (0.5 if deep else 0.1), "0 would say that nothing was rounded"
    assert there == pytest.approx(loss, rel=0.02)


@pytest.mark.parametrize("task", NETWORKS, ids=named)
def test_a_gradient_with_channels_last_is_the_same(task):
    (one, loss), (other, there) = gradients(task, PLAIN), gradients(task, LAST)
    assert apart(one, other) < 1e-3
    assert there == pytest.approx(loss, rel=1e-4)


def test_channels_last_reaches_the_convolutions_and_plain_does_not():
    task, seen = NETWORKS[0], []
    for passes in (PLAIN, LAST):
        torch.manual_seed(0)
        module, access = task.network(), opened(task, passes)
        convolution = [part for part in module.modules() if isinstance(part, nn.Conv2d)][1]
        convolution.register_forward_hook(
            lambda _, given, out: seen.append(out.is_contiguous(memory_format=torch.channels_last))
        )
        access.gradient(module, task.objective, access.draw())
    assert seen == [False, True]


def test_float32_is_the_module_itself_so_no_bit_can_change():
    module = nn.Linear(2, 2)
    assert PLAIN.forward(module, torch.device("cpu")) is module


def test_losses_get_float32_and_weights_stay_so():
    task, seen = NETWORKS[0], set()
    torch.manual_seed(0)
    module, access = task.network(), opened(task, BF16)

    def objective(forward, batch: Batch) -> torch.Tensor:
        output = forward(batch.x)
        assert isinstance(output, Output)
        seen.update(part.dtype for part in (output.logits, output.features))
        return task.model.losses(output, batch.y)

    access.gradient(module, objective, access.draw())
    assert seen == {torch.float32}
    assert {p.dtype for p in module.state_dict().values() if p.is_floating_point()} == {torch.float32}
    assert (
        to_float32((torch.zeros(1, dtype=torch.bfloat16), 3, torch.ones(1, dtype=torch.int64)))[0].dtype
        == torch.float32
    )


def test_on_a_processor_volumes_pass_in_float32():
    """Gradients in bfloat16 were NaN or not, by what lay in memory before, where a side has two voxels."""
    task = Task(UNet(width=4, levels=2), (1, 8, 16, 16), 2, "segmentation")
    (one, loss), (other, there) = gradients(task, PLAIN), gradients(task, BF16)
    assert loss == there and torch.equal(one, other) and bool(one.isfinite().all())


def test_a_measure_is_not_rounded():
    task = NETWORKS[0]
    torch.manual_seed(0)
    module = task.network()
    values = [opened(task, passes).measure(module, task.validation, "train") for passes in (PLAIN, BF16)]
    assert values[0] == values[1]


@pytest.mark.repeats(10)
@pytest.mark.parametrize(
    ("algorithm", "work"), methods.with_work(methods.fit(testbed.mask_task()), ADAM, SGD), ids=lambda value: None
)
def test_every_method_learns_in_bfloat16_and_sends_the_same_names_and_types(algorithm, work):
    task, sites, told = testbed.mask_task(), {"a": testbed.make_scenes(1), "b": testbed.make_scenes(2, shift=0.1)}, []
    for passes in ({}, {"precision": "bf16", "channels_last": True}):
        own = replace(work, **passes)
        crew = testbed.make_federation(algorithm, sites, task=task, work=own)
        outcome = testbed.train(algorithm, crew, task=task, work=own, schedule=Schedule(rounds=1))
        told.append({name: (t.dtype, t.shape) for name, t in outcome.state.tensors.items()})
        told.append({name: (t.dtype, t.shape) for name, t in testbed.newest_model(crew["a"]).items()})
        assert all(bool(torch.isfinite(t).all()) for t in outcome.state.tensors.values() if t.is_floating_point())
    assert told[0] == told[2] and told[1] == told[3]
