"""Methods that must coincide, and the optimum that SCAFFOLD reaches and FedAvg does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.local import Local
from federation.parameters import section
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from federation.task import Task
from personalize.fedper import FedPer
from privacy.dp.access import Batch, Rows, open_access

WORK = Work(optimizer="adam", lr=0.02, batch=5, epochs=2)
SITES = {
    "a": testbed.make_table(1),
    "b": testbed.make_table(2, shift=0.7),
    "c": testbed.make_table(3, n=10, shift=-0.4),
}


def run(algorithm, sites=SITES, work=WORK, task=None, rounds=4, **options):
    task = task or testbed.make_task()
    hospitals = testbed.make_federation(algorithm, sites, task=task, work=work)
    outcome = testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=rounds, **options))
    return outcome, hospitals


def test_fedprox_without_proximal_term_is_fedavg():
    average, _ = run(FedAvg())
    prox, _ = run(FedProx(mu=0.0))
    assert testbed.are_equal(average.state.tensors, prox.state.tensors)


def test_a_strong_proximal_term_holds_sites_at_the_start():
    work = Work(optimizer="sgd", lr=1e-3, batch=5)
    free, _ = run(FedProx(mu=0.0), work=work, rounds=1)
    held, _ = run(FedProx(mu=900.0), work=work, rounds=1)
    start = testbed.initial_parameters(FedAvg(), testbed.make_task(), seed=1)
    moved = [sum(float((section(o.state.tensors, "model")[n] - start[n]).norm()) for n in start) for o in (free, held)]
    assert moved[1] < 0.5 * moved[0]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("work", [WORK, Work(optimizer="sgd", lr=0.1, momentum=0.9, batch=5)])
def test_one_site_and_fedavg_is_local_training(work, keep):
    work = replace(work, keep_optimizer=keep)
    one = {"a": SITES["a"]}
    _, federated = run(FedAvg(), one, work)
    _, alone = run(Local(), one, work)
    assert testbed.are_equal(testbed.newest_model(federated["a"]), testbed.newest_model(alone["a"]))


def test_fedper_with_every_layer_shared_or_none_is_refused_but_a_split_is_not():
    network = testbed.make_task().network()
    assert FedPer().complaints(network, WORK, False) == []
    only_head = testbed.make_task(hidden=()).network()
    (text,) = FedPer().complaints(only_head, WORK, False)
    assert "no parameter" in text


def test_fedper_heads_differ_and_bodies_agree():
    _, hospitals = run(FedPer())
    a, b = testbed.newest_model(hospitals["a"]), testbed.newest_model(hospitals["b"])
    assert all(torch.equal(a[n], b[n]) for n in a if not n.startswith("head."))
    assert not torch.equal(a["head.weight"], b["head.weight"])


def quadratics() -> tuple[dict[str, dict[str, Rows]], torch.Tensor]:
    """Two least-squares sites with different Hessians and optima, and the optimum of their sum."""
    g = torch.Generator().manual_seed(5)
    sites, xx, xy = {}, 0.0, 0.0
    for name, scale in (("a", (2.0, 0.3)), ("b", (0.4, 1.8))):
        x = torch.randn(40, 2, generator=g) * torch.tensor(scale)
        y = torch.randint(0, 2, (40,), generator=g)
        rows = Rows(x, y, torch.arange(40))
        sites[name] = {"train": rows, "validation": rows}
        ones = torch.cat([x, torch.ones(40, 1)], dim=1).double()
        xx, xy = xx + ones.T @ ones / 40, xy + ones.T @ y.double() / 40
    return sites, torch.linalg.solve(xx, xy)


def distance(outcome, optimum) -> float:
    model = section(outcome.state.tensors, "model")
    found = torch.cat([model["head.weight"], model["head.bias"][:, None]], dim=1).double()
    return float((found - optimum).abs().max())


def test_scaffold_reaches_the_optimum_of_different_quadratics_and_fedavg_does_not():
    sites, optimum = quadratics()
    task = Task(testbed.Linear(), (2,), 2)
    work = Work(optimizer="sgd", lr=0.1, batch=40, epochs=None, steps=5)
    scaffold, _ = run(Scaffold(), sites, work, task, rounds=60)
    average, _ = run(FedAvg(), sites, work, task, rounds=60)
    assert distance(scaffold, optimum) < 1e-4
    assert distance(average, optimum) > 1e-2


def test_scaffold_with_one_local_step_is_fedavg():
    """With one full-batch step c_i is the local gradient and c their mean: the corrections cancel in the average."""
    sites, _ = quadratics()
    task = Task(testbed.Linear(), (2,), 2)
    work = Work(optimizer="sgd", lr=0.1, batch=40, epochs=None, steps=1)
    scaffold, _ = run(Scaffold(), sites, work, task, rounds=8)
    average, _ = run(FedAvg(weights="uniform"), sites, work, task, rounds=8)
    left, right = section(scaffold.state.tensors, "model"), section(average.state.tensors, "model")
    assert testbed.are_close(left, right, 1e-5)


def test_scaffold_refuses_adam_by_name():
    (text,) = Scaffold().complaints(testbed.make_task().network(), WORK, False)
    assert "adam" in text and "work" in text


def test_merge_weights_follow_the_number_of_examples():
    """A hand-computed step: two sites, one full-batch SGD step from a known start."""
    task = Task(testbed.Linear(), (1,), 2)
    x = {"a": torch.tensor([[1.0]]), "b": torch.tensor([[1.0], [3.0], [2.0]])}
    y = {"a": torch.tensor([1]), "b": torch.tensor([0, 1, 1])}
    sites = {
        s: {"train": Rows(x[s], y[s], torch.arange(len(y[s]))), "validation": Rows(x[s], y[s], torch.arange(len(y[s])))}
        for s in x
    }
    work = Work(optimizer="sgd", lr=0.5, batch=8)
    outcome, _ = run(FedAvg(), sites, work, task, rounds=1)
    start = testbed.initial_parameters(FedAvg(), task, seed=1)
    w, b = float(start["head.weight"][0]), float(start["head.bias"][0])
    stepped = {}
    for s in x:
        residual = [w * float(v) + b - float(t) for v, t in zip(x[s], y[s], strict=True)]
        n = len(residual)
        gw = sum(r * float(v) for r, v in zip(residual, x[s], strict=True)) / n
        stepped[s] = (w - 0.5 * gw, b - 0.5 * sum(residual) / n)
    expected = 0.25 * stepped["a"][0] + 0.75 * stepped["b"][0]
    assert section(outcome.state.tensors, "model")["head.weight"][0].item() == pytest.approx(expected, abs=1e-6)


def test_a_frozen_part_does_not_move_and_the_correction_reaches_the_gradient():
    access = open_access(SITES["a"], batch=5, seed=0)
    task = testbed.make_task()
    site = Site("a", task, Work(optimizer="sgd", lr=1.0, batch=5, epochs=None, steps=1), access)
    module = task.network()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    site.descend(
        module,
        lambda forward, batch: task.objective(forward, batch) * 0.0,
        trainable=lambda n: n.startswith("head."),
        correction=lambda w: {n: torch.ones_like(v) for n, v in w.items()},
    )
    for name, p in module.named_parameters():
        moved = before[name] - p.detach()
        assert torch.allclose(moved, torch.full_like(moved, 1.0 if name.startswith("head.") else 0.0), atol=1e-6)


def test_gradient_is_that_of_the_mean_loss_over_the_draw():
    access = open_access(SITES["a"], batch=7, seed=3)
    task = testbed.make_task()
    module = task.network()
    draw = access.draw()
    gradient = access.gradient(module, task.objective, draw).gradient
    loop = {n: torch.zeros_like(p) for n, p in module.named_parameters()}
    for i in range(len(draw.y)):
        loss = task.objective(module, Batch(draw.x[i : i + 1], draw.y[i : i + 1])).sum()
        for (n, _), g in zip(
            module.named_parameters(), torch.autograd.grad(loss, list(module.parameters())), strict=True
        ):
            loop[n] += g / len(draw.y)
    assert testbed.are_close(dict(gradient), loop, 1e-6)
    assert isinstance(module, nn.Module)
