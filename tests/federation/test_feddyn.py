"""FedDyn: the optimum of different quadratics, one site, algorithm 1 in a slow loop, what sites and server share."""

from __future__ import annotations

import copy

import pytest
import torch
from laws.test_identities import distance
from laws.test_oracles import NAMES, PARTICIPATION, ROUNDS, SITES, TASK, WORK, agree, asked, averaged, local_work, start

import reference
from consilium.testing import testbed
from federation.conversation import load_memory, load_newest_memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.feddyn import FedDyn
from federation.fedprox import FedProx
from federation.outcome import Outcome
from federation.parameters import section
from federation.questions import sample_sites
from federation.rehearsal import rehearse_forms
from federation.task import Task
from privacy.dp.access import Rows, open_access
from privacy.message import Call, Message, as_mapping

LINEAR = Task(testbed.Linear(), (2,), 2)
FULL = Work(optimizer="sgd", lr=0.2, batch=99, epochs=None, steps=5)


def run(algorithm, sites=SITES, task=TASK, work=WORK, rounds=ROUNDS, **options):
    return reference.trained(algorithm, sites, task, work, rounds=rounds, **options)


def quadratics(sizes, weights):
    """Least-squares sites with different Hessians and numbers of examples, and the optimum of their weighted losses."""
    g = torch.Generator().manual_seed(5)
    sites, xx, xy = {}, 0.0, 0.0
    for (name, n), scale in zip(sizes.items(), ((2.0, 0.3), (0.4, 1.8)), strict=False):
        x = torch.randn(n, 2, generator=g) * torch.tensor(scale)
        y = torch.randint(0, 2, (n,), generator=g)
        rows = Rows(x, y, torch.arange(n))
        sites[name] = {"train": rows, "validation": rows}
        ones = torch.cat([x, torch.ones(n, 1)], dim=1).double()
        weight = (n if weights == "size" else 1.0) / n
        xx, xy = xx + weight * ones.T @ ones, xy + weight * ones.T @ y.double()
    return sites, torch.linalg.solve(xx, xy)


def quickly(algorithm, sites, rounds, asked=None):
    """What is left after rounds in a bare loop, without a conversation: many rounds in little time."""
    at = {name: Site(name, LINEAR, FULL, open_access(rows, batch=99, seed=0)) for name, rows in sites.items()}
    initial = testbed.initial_parameters(algorithm, LINEAR, seed=1)
    state = algorithm.start(initial, {name: algorithm.introduce(site) for name, site in at.items()})
    memory = dict.fromkeys(at, Message())
    for r in range(1, rounds + 1):
        replies, call = {}, Call("law", r, "train", {})
        for name in asked(r) if asked else at:
            received = algorithm.send(state, name, call)
            replies[name], memory[name] = algorithm.train(at[name], received, memory[name], call)
        state = algorithm.merge(state, replies)
    return Outcome(state, {}, {}, {})


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_it_reaches_the_optimum_of_different_quadratics_and_fedavg_does_not(weights):
    """The plain mean of the sites' losses, or with weights: size that over all examples."""
    sites, optimum = quadratics({"a": 20, "b": 60}, weights)
    assert distance(quickly(FedDyn(alpha=0.5, weights=weights), sites, 40), optimum) < 1e-5
    assert distance(quickly(FedAvg(weights=weights), sites, 80), optimum) > 1e-2


def test_it_reaches_the_optimum_when_one_site_at_a_time_answers():
    sites, optimum = quadratics({"a": 30, "b": 30}, "uniform")
    found = quickly(FedDyn(alpha=0.5), sites, 120, lambda r: sample_sites(("a", "b"), 1, r))
    assert distance(found, optimum) < 1e-5


def test_one_site_is_local_training_to_the_end():
    sites, optimum = quadratics({"a": 30}, "uniform")
    assert distance(quickly(FedDyn(alpha=0.5), sites, 60), optimum) < 1e-5


@pytest.mark.parametrize("names", ["a", "abc"])
def test_the_first_round_goes_twice_as_far_as_fedprox(names):
    """g and h are 0: theta is mean + (mean - theta_0), where the mean is that of FedProx with mu = alpha."""
    sites = {name: SITES[name] for name in names}
    dynamic, _ = run(FedDyn(alpha=0.7), sites, rounds=1)
    prox, _ = run(FedProx(mu=0.7, weights="uniform"), sites, rounds=1)
    x0, there = dict(start().named_parameters()), section(prox.state.tensors, "model")
    found = section(dynamic.state.tensors, "model")
    for name, value in there.items():
        expected = 2 * value - x0[name].detach() if name in x0 else value
        assert torch.allclose(found[name].float(), expected.float(), atol=1e-5), name


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_OF_ALL], ids=["", "lost replies"])
def test_rounds_on_a_network_with_batch_norm(lost, weights):
    """Partial participation; as the authors' code keeps it: how far each site went from theta, added up."""
    alpha = 0.4
    sizes = {site: len(SITES[site]["train"].y) for site in NAMES}
    own_alpha = {s: alpha * (sum(sizes.values()) / 3 / sizes[s] if weights == "size" else 1.0) for s in NAMES}
    model = start()
    gone = {site: {n: torch.zeros_like(p) for n, p in model.named_parameters()} for site in NAMES}
    for r in range(1, ROUNDS + 1):
        present = [site for site in asked(r) if (r, site) not in lost]
        locals_ = []
        theta = {n: p.detach().clone() for n, p in model.named_parameters()}
        for site in present:
            own = copy.deepcopy(model)
            local_work(
                own,
                SITES[site]["train"],
                r,
                site,
                extra=lambda n, p, t=theta, s=site: own_alpha[s] * (p - t[n] + gone[s][n]),
            )
            gone[site] = {n: gone[site][n] + p.detach() - theta[n] for n, p in own.named_parameters()}
            locals_.append(own)
        model = averaged(locals_, [1] * len(locals_))
        with torch.no_grad():
            for n, p in model.named_parameters():
                p += sum(gone[site][n] for site in NAMES) / len(NAMES)
    outcome, _ = run(FedDyn(alpha=alpha, weights=weights), lost=lost, participation=PARTICIPATION)
    agree(section(outcome.state.tensors, "model"), model)


def test_h_is_the_mean_of_the_sites_gradients_whatever_was_lost():
    """So coordinator and sites stay in step: of each site's memory, what belongs to its last merged round counts."""
    lost = frozenset({(2, "b"), (3, "a"), (5, "c")})
    outcome, crew = run(FedDyn(alpha=0.4), lost=lost, rounds=5)
    memories = [load_memory(h.disk, outcome.merged[name]).tensors for name, h in crew.items()]
    h = section(outcome.state.tensors, "h")
    for name, value in h.items():
        mean = sum(m[f"gradient/{name}"] for m in memories) / len(crew)
        assert torch.allclose(value, mean, atol=1e-5), name
    assert max(float(v.abs().max()) for v in h.values()) > 1e-3
    committed = load_newest_memory(crew["c"].disk).tensors
    assert not torch.allclose(h["head.weight"], committed["gradient/head.weight"], atol=1e-5)


def test_a_linear_and_a_quadratic_step_by_hand():
    """One number, two full-batch steps of size 0.5 at two sites, two rounds."""
    task = Task(testbed.Linear(), (1,), 2)
    x, y = {"a": 1.0, "b": 3.0}, {"a": 1, "b": 0}
    sites = {s: dict.fromkeys(("train", "validation"), _one(x[s], y[s])) for s in x}
    work = Work(optimizer="sgd", lr=0.05, batch=1, epochs=None, steps=2)
    initial = testbed.initial_parameters(FedDyn(), task, seed=1)
    theta = [float(initial["head.weight"][0]), float(initial["head.bias"][0])]
    g, h = {"a": [0.0, 0.0], "b": [0.0, 0.0]}, [0.0, 0.0]
    for _ in range(2):
        end = {}
        for s in x:
            w = list(theta)
            for _ in range(2):
                residual = w[0] * x[s] + w[1] - y[s]
                slope = [residual * x[s], residual]
                w = [w[i] - 0.05 * (slope[i] - g[s][i] + 0.3 * (w[i] - theta[i])) for i in (0, 1)]
            g[s] = [g[s][i] - 0.3 * (w[i] - theta[i]) for i in (0, 1)]
            end[s] = w
        h = [h[i] - 0.3 / 2 * sum(end[s][i] - theta[i] for s in x) for i in (0, 1)]
        theta = [sum(end[s][i] for s in x) / 2 - h[i] / 0.3 for i in (0, 1)]
    outcome, _ = run(FedDyn(alpha=0.3), sites, task, work, rounds=2)
    found = section(outcome.state.tensors, "model")
    assert float(found["head.weight"][0]) == pytest.approx(theta[0], abs=1e-5)
    assert float(found["head.bias"][0]) == pytest.approx(theta[1], abs=1e-5)


def _one(x, y):
    return Rows(torch.tensor([[x]]), torch.tensor([y]), torch.arange(1))


def test_a_site_gets_and_sends_no_more_than_with_fedavg():
    algorithm = FedDyn()
    outcome, _ = run(algorithm, rounds=1)
    names = set(TASK.network().state_dict())
    message = algorithm.send(outcome.state, "a", None)
    assert set(message.tensors) == {f"model/{n}" for n in names}
    assert message.facts == {"scale": 1.0}
    reply = rehearse_forms(algorithm, TASK, WORK, start().state_dict()).reply
    assert {name.split("/", 1)[1] for name in reply.tensors} == names


def test_weights_by_size_release_n_in_the_introduction_and_uniform_ones_do_not():
    outcome, _ = run(FedDyn(weights="size"), rounds=1)
    scales = as_mapping(outcome.state.facts["scales"])
    sizes = {site: len(SITES[site]["train"].y) for site in NAMES}
    mean = sum(sizes.values()) / 3
    assert scales == {site: pytest.approx(mean / n) for site, n in sizes.items()}
    outcome, _ = run(FedDyn(), rounds=1)
    assert set(as_mapping(outcome.state.facts["scales"]).values()) == {1.0}


def test_alpha_zero_is_refused():
    with pytest.raises(ValueError, match=r"alpha must be > 0 .*found 0"):
        FedDyn(alpha=0)
