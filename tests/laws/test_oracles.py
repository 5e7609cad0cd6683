"""Methods against slow implementations written from the papers, with everything at once that could go wrong.

Three sites, a network with batch norm, partial participation, server learning rates, lost replies.
"""

from __future__ import annotations

import copy

import pytest
import torch

from consilium.testing import testbed
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.models.cnn import Cnn
from federation.parameters import section
from federation.questions import sample_sites
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from federation.task import Task
from privacy.dp.access import Batch, Rows
from privacy.dp.batches import batches_per_epoch, iterate_minibatches

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
WORK = Work(optimizer="sgd", lr=0.05, batch=4, epochs=2)
ROUNDS = 4
PARTICIPATION = 0.67


def images(seed: int, n: int) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, 8, 8, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


SITES = {"a": images(1, 9), "b": images(2, 14), "c": images(3, 6)}
NAMES = tuple(SITES)


def local_work(model, rows, round_, site, *, extra=lambda name, p: 0.0):
    """Plain SGD over the same mini-batches; `extra` is added to each gradient. Returns the number of steps."""
    seed = derive_seed(0, site, round_, "train")
    stream = iterate_minibatches(rows.y, batch=4, balance=False, generator=torch.Generator().manual_seed(seed))
    model.train()
    steps = 2 * batches_per_epoch(len(rows.y), 4)
    with use_seed(seed):
        for _ in range(steps):
            index = next(stream)
            loss = TASK.objective(model, Batch(rows.x[index], rows.y[index])).mean()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for (name, p), g in zip(model.named_parameters(), grads, strict=True):
                    p -= 0.05 * (g + extra(name, p))
    return steps


def start():
    model = TASK.network()
    model.load_state_dict(dict(initial_parameters(FedAvg(), TASK, seed=1)))
    return model


def averaged(models, weights):
    total = sum(weights)
    states = [m.state_dict() for m in models]
    result = copy.deepcopy(models[0])
    result.load_state_dict(
        {
            name: torch.stack([s[name] for s in states]).amax(0)
            if not states[0][name].is_floating_point()
            else sum(w / total * s[name].double() for w, s in zip(weights, states, strict=True)).float()
            for name in states[0]
        }
    )
    return result


def asked(round_):
    return sample_sites(NAMES, round(PARTICIPATION * len(NAMES)), derive_seed(0, "participation", round_))


def ours(algorithm, lost=frozenset()):
    crew = testbed.make_federation(algorithm, SITES, task=TASK, work=WORK)
    schedule = Schedule(rounds=ROUNDS, participation=PARTICIPATION, quorum=0.3)
    outcome = testbed.train(
        algorithm, crew, task=TASK, work=WORK, schedule=schedule, engine=testbed.LossyEngine(InProcess(crew), lost)
    )
    return section(outcome.state.tensors, "model")


def agree(found, model):
    expected = model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].float(), value.float(), atol=2e-5), name


def test_who_is_asked_changes_from_round_to_round():
    assert len({asked(r) for r in range(1, 12)}) == 3


@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_fedavg_and_fedprox(mu, weights):
    model = start()
    for r in range(1, ROUNDS + 1):
        locals_, sizes = [], []
        for site in asked(r):
            own, w_t = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
            local_work(own, SITES[site]["train"], r, site, extra=lambda n, p, w=w_t: mu * (p - w[n]))
            locals_.append(own)
            sizes.append(len(SITES[site]["train"].y) if weights == "size" else 1)
        model = averaged(locals_, sizes)
    algorithm = FedProx(mu=mu, weights=weights) if mu else FedAvg(weights=weights)
    agree(ours(algorithm), model)


@pytest.mark.parametrize("global_lr", [1.0, 0.6])
@pytest.mark.parametrize("lost", [frozenset(), frozenset({(2, "a"), (2, "b"), (3, "c")})], ids=["", "lost replies"])
def test_scaffold_option_2(global_lr, lost):
    """x <- x + eta_g mean(y_i - x); c <- c + |S|/N mean(dc_i); a lost reply is a site that was not there."""
    model = start()
    parts = [n for n, _ in model.named_parameters()]
    c = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    c_i = {site: {n: v.clone() for n, v in c.items()} for site in NAMES}
    for r in range(1, ROUNDS + 1):
        present = [site for site in asked(r) if (r, site) not in lost]
        locals_, shifts = [], []
        x = {n: p.detach().clone() for n, p in model.named_parameters()}
        for site in present:
            own = copy.deepcopy(model)
            drift = {n: c[n] - c_i[site][n] for n in parts}
            steps = local_work(own, SITES[site]["train"], r, site, extra=lambda n, p, d=drift: d[n])
            y = dict(own.named_parameters())
            plus = {n: c_i[site][n] - c[n] + (x[n] - y[n].detach()) / (steps * 0.05) for n in parts}
            shifts.append({n: plus[n] - c_i[site][n] for n in parts})
            c_i[site] = plus
            locals_.append(own)
        merged = averaged(locals_, [1] * len(locals_))
        with torch.no_grad():
            for n, p in merged.named_parameters():
                p.copy_(x[n] + global_lr * (p - x[n]))
        model = merged
        share = len(present) / len(NAMES)
        c = {n: c[n] + share * sum(s[n] for s in shifts) / len(shifts) for n in parts}
    agree(ours(Scaffold(global_lr=global_lr), lost), model)


def test_a_sites_own_settings_reach_its_training():
    """Site b holds itself still by a strong proximal term of its own; the others are plain FedAvg."""
    crew = testbed.make_federation(
        FedProx(mu=0.0), SITES, task=TASK, work=WORK, per_site=lambda s: FedProx(mu=18.0 if s == "b" else 0.0)
    )
    outcome = testbed.train(FedProx(mu=0.0), crew, task=TASK, work=WORK, schedule=Schedule(rounds=1))
    model, locals_ = start(), []
    for site in NAMES:
        own, w_t = copy.deepcopy(model), {n: p.detach().clone() for n, p in model.named_parameters()}
        mu = 18.0 if site == "b" else 0.0
        local_work(own, SITES[site]["train"], 1, site, extra=lambda n, p, w=w_t, m=mu: m * (p - w[n]))
        locals_.append(own)
    agree(section(outcome.state.tensors, "model"), averaged(locals_, [len(SITES[s]["train"].y) for s in NAMES]))
