"""A start on public pictures: what it changes, and that it is all that it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.parameters import read_parameters
from federation.pretraining import Pretrained, pretrain_network, start_task_with
from federation.randomization import build_disturbance
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize.fenda import Fenda

TASK = Task(Cnn(widths=(8, 8), norm="group"), (1, 16, 16), 2)


def spots(n: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures with a dark middle where the label is 1, from 0 to 3."""
    y = torch.arange(n) % 2
    x = 1.5 + 0.3 * torch.randn(n, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    x[:, :, 5:11, 5:11] -= y.view(-1, 1, 1, 1) * 1.0
    return x.clamp(0, 3), y


@pytest.fixture(scope="module")
def params():
    x, y = spots()
    return pretrain_network(TASK, Pretrained(on="spots", epochs=30, lr=1e-2, strength=0.5), x, y, low=0.0, high=3.0)


def test_a_start_knows_the_pictures_and_is_the_same_each_time(params):
    x, y = spots()
    module = start_task_with(TASK, params).network()
    assert (TASK.probabilities(module, x).argmax(dim=1) == y).float().mean() > 0.9
    how = Pretrained(on="spots", epochs=1, strength=1.0)
    again = [pretrain_network(TASK, how, x, y, low=0.0, high=3.0) for _ in range(2)]
    assert all(torch.equal(again[0][name], again[1][name]) for name in again[0])
    other = pretrain_network(TASK, replace(how, seed=1), x, y, low=0.0, high=3.0)
    assert not all(torch.equal(again[0][name], other[name]) for name in other)


def test_methods_begin_with_it_in_every_network_of_theirs(params):
    """Nothing else differs: names, shapes, and what the task equals."""
    task = start_task_with(TASK, params)
    assert task == TASK and hash(task) == hash(TASK)
    assert all(torch.equal(part, params[name]) for name, part in initial_parameters(FedAvg(), task, seed=0).items())
    twins = initial_parameters(Fenda(), task, seed=0)
    assert twins.keys() == initial_parameters(Fenda(), TASK, seed=0).keys()
    stem = [part for name, part in twins.items() if name.endswith("stem.0.conv.weight")]
    assert len(stem) == 2 and all(torch.equal(part, params["stem.0.conv.weight"]) for part in stem)
    another = Fenda(local=Cnn(widths=(16, 8), norm="group"))  # for which these weights are not made
    assert initial_parameters(another, task, seed=0).keys() == initial_parameters(another, TASK, seed=0).keys()


def test_a_fresh_head_is_drawn_at_random_for_other_classes():
    x, y = spots()
    found = pretrain_network(TASK, Pretrained(on="spots", epochs=1, head="fresh"), x, y, low=0.0, high=3.0)
    assert found and not any(name.startswith("head.") for name in found)
    three = replace(TASK, classes=3)
    made = read_parameters(start_task_with(three, found).network())
    assert made["head.weight"].shape[0] == 3 and torch.equal(made["stem.0.conv.weight"], found["stem.0.conv.weight"])


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 12, 12), (1, 6, 12, 12)])
def test_disturbed_pictures_stay_in_their_range_and_are_drawn_from_the_generator(shape):
    x, y = 3 * torch.rand(5, *shape), torch.arange(5)
    disturb = build_disturbance(1.0, 0.0, 3.0)
    found, labels = disturb(x, y, torch.Generator().manual_seed(0))
    again, _ = disturb(x, y, torch.Generator().manual_seed(0))
    assert found.shape == x.shape and found.dtype == x.dtype and torch.equal(labels, y)
    assert bool(((found >= 0) & (found <= 3)).all()) and torch.equal(found, again)
    assert bool(((found - x).abs().flatten(1).mean(dim=1) > 0.01).all())
    same, _ = build_disturbance(0.0, 0.0, 3.0)(x, y, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(-1)) for a, b in zip(same, x, strict=True))


def test_settings_that_cannot_work_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)pictures.*epochs.*lr.*batch.*strength"):
        Pretrained(on="x", pictures=1, epochs=0, lr=0.0, batch=1, strength=-1.0)
