"""pFedMe: where it is FedAvg, the envelope's slope on a quadratic, and a slow implementation from the paper."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.parameters import section
from federation.rehearsal import rehearse_events
from federation.task import Task
from personalize.pfedme import PFedMe
from privacy.dp.access import Rows, open_access
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.protection import Protection
from privacy.message import Call, Message


@pytest.mark.parametrize("kind", reference.KINDS)
def test_one_inner_step_that_w_follows_all_the_way_is_fedavg(kind):
    """K = 1, eta lambda = 1: theta starts at w, where the penalty has no slope, and w goes where theta is."""
    ours, _ = reference.run(PFedMe(K=1, lam=2.0, eta=0.5), kind)
    average, _ = reference.run(FedAvg(weights="uniform"), kind)
    reference.agree(section(ours.state.tensors, "model"), section(average.state.tensors, "model"))


@pytest.mark.repeats(4)
@pytest.mark.parametrize("beta", [1.0, 0.6, 1.5])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_it_is_algorithm_1(kind, weights, beta):
    task, sites = reference.KINDS[kind]
    lr, lam, eta, inner = 0.05, 4.0, 0.1, 3
    model = reference.network(task)
    personal = {}
    for r in range(1, reference.ROUNDS + 1):
        locals_ = []
        for site in reference.present(r):
            theta, w = copy.deepcopy(model), copy.deepcopy(model)
            for x, y in reference.batches(sites[site]["train"], r, site):
                for _ in range(inner):
                    slopes = reference.slopes(theta, x, y)
                    with torch.no_grad():
                        for t, g, c in zip(theta.parameters(), slopes, w.parameters(), strict=True):
                            t -= lr * (g + lam * (t - c))
                with torch.no_grad():
                    for c, t in zip(w.parameters(), theta.parameters(), strict=True):
                        c -= eta * lam * (c - t)
            for c, t in zip(w.buffers(), theta.buffers(), strict=True):
                c.copy_(t)
            personal[site] = theta
            locals_.append(w)
        shares = [len(sites[s]["train"].y) if weights == "size" else 1 for s in reference.present(r)]
        mean, old = reference.averaged(locals_, shares).state_dict(), model.state_dict()
        learnt = {n for n, _ in model.named_parameters()}
        model = reference.network(
            task, {n: (1 - beta) * old[n] + beta * v if n in learnt else v for n, v in mean.items()}
        )
    outcome, crew = reference.run(PFedMe(lam=lam, eta=eta, beta=beta, K=inner, weights=weights), kind)
    reference.agree(section(outcome.state.tensors, "model"), model.state_dict())
    for site in reference.NAMES:
        reference.agree(testbed.newest_model(crew[site]), personal[site].state_dict())


def test_theta_solves_the_envelope_of_a_quadratic():
    """One parameter pair, f(t) = |X t - y|^2 / 2n: theta* = (H + lambda)^-1 (X'y/n + lambda w) in closed form."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(12, 2, generator=g), torch.randint(0, 2, (12,), generator=g)
    rows = Rows(x, y, torch.arange(12))
    task = Task(testbed.Linear(), (2,), 2)
    work = Work(optimizer="sgd", lr=0.2, batch=12, epochs=None, steps=1)
    site = Site("a", task, work, open_access({"train": rows}, batch=12, seed=0))
    algorithm = PFedMe(lam=3.0, eta=0.1, K=200)
    initial = testbed.initial_parameters(algorithm, task, seed=1)
    reply, memory = algorithm.train(
        site, Message({f"model/{n}": v for n, v in initial.items()}), Message(), Call("r", 1, "train", {})
    )
    ones = torch.cat([x, torch.ones(12, 1)], dim=1).double()
    h = ones.T @ ones / 12
    for out in range(2):
        w = torch.cat([initial["head.weight"][out], initial["head.bias"][out : out + 1]]).double()
        theta = torch.linalg.solve(h + 3.0 * torch.eye(3), ones.T @ y.double() / 12 + 3.0 * w)
        for expected, tensors in (
            (theta, section(memory.tensors, "personal")),
            (w - 0.1 * 3.0 * (w - theta), section(reply.tensors, "model")),
        ):
            found = torch.cat([tensors["head.weight"][out], tensors["head.bias"][out : out + 1]]).double()
            assert torch.allclose(found, expected, atol=1e-5)


def test_a_site_that_never_took_part_diagnoses_with_the_shared_model():
    w = {"head.weight": torch.ones(1)}
    received = Message({"model/head.weight": w["head.weight"]})
    assert testbed.are_equal(PFedMe().model(None, received, Message()), w)  # type: ignore[arg-type]


def test_private_training_books_k_looks_at_each_sample_of_patients():
    protection = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, cut="c")
    algorithm, task = PFedMe(K=3), testbed.make_task()
    initial = testbed.initial_parameters(algorithm, task, seed=1)
    seen = rehearse_events(algorithm, task, reference.SGD, initial, protection)
    one = Part("c", "train", PoissonSampled(0.4, SelfComposed(Gaussian(1.1), 3)))
    assert seen.training == SelfComposed(one, 2 * round(1 / 0.4))


def test_what_would_not_work_is_refused_by_name():
    with pytest.raises(ValueError, match=r"beta must be > 0, found 0.*; K must be >= 1, found 0"):
        PFedMe(beta=0.0, K=0)
    with pytest.raises(ValueError, match=r"eta \* lam must be <= 1"):
        PFedMe(lam=15.0, eta=0.1)
    module = testbed.make_task().network()
    assert PFedMe().complaints(module, reference.SGD, True) == []
    (adam,) = PFedMe().complaints(module, reference.ADAM, False)
    assert "adam" in adam and "pfedme: {optimizer: sgd" in adam
    (fast,) = PFedMe().complaints(module, replace(reference.SGD, lr=0.2), False)
    assert "lr * lam < 2" in fast
