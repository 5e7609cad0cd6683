"""APPLE: laws, a step by hand, and a slow implementation of several rounds with absent sites and lost replies."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch.func import functional_call

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import average_models, section
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize.apple import Apple
from privacy.dp.access import Rows
from privacy.message import Call, Message


@dataclass(frozen=True, kw_only=True)
class OneHot(Apple):
    """Only the own core counts, and that stays so."""

    eta_2: float = 0.0

    def send(self, state, site, call):
        sent = super().send(state, site, call)
        return Message(sent.tensors, {"p_0": {name: float(name == site) for name in sent.facts["p_0"]}})


@pytest.mark.parametrize("work", [reference.BRIEF, Work(optimizer="adam", lr=0.02, batch=5)])
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_with_p_frozen_on_the_own_core_it_is_local_training_bit_for_bit(task, sites, work):
    _, apple = reference.trained(OneHot(), sites, task, work, rounds=3)
    _, alone = reference.trained(Local(), sites, task, work, rounds=3)
    for name in sites:
        assert testbed.are_equal(testbed.newest_model(apple[name]), testbed.newest_model(alone[name]))


def test_with_p_at_p_0_the_model_is_fedavgs_merge_of_the_same_cores():
    outcome, crew = reference.trained(Apple(eta_2=0.0))
    cores = [section(outcome.state.tensors, f"core/{name}") for name in reference.UNEVEN]
    merge = average_models(cores, [len(rows["train"].y) for rows in reference.UNEVEN.values()])
    for hospital in crew.values():
        assert testbed.are_close(testbed.newest_model(hospital), merge, 1e-6)


def test_one_step_at_p_0_moves_the_mixture_by_the_squared_shares_times_the_gradients():
    work = Work(optimizer="sgd", lr=0.5, batch=99, epochs=None, steps=1)
    _, apple = reference.trained(Apple(eta_2=0.0), work=work, rounds=1)
    _, alone = reference.trained(Local(), work=work, rounds=1)
    start = initial_parameters(FedAvg(), testbed.make_task(), seed=1)
    n = {name: len(rows["train"].y) for name, rows in reference.UNEVEN.items()}
    p = {name: n[name] / sum(n.values()) for name in n}
    found = testbed.newest_model(apple["a"])
    for key, w in start.items():
        step = sum(p[name] ** 2 * (testbed.newest_model(alone[name])[key] - w) for name in reference.UNEVEN)
        assert torch.allclose(found[key], w + step, atol=1e-6)
        assert not torch.allclose(
            found[key], w + sum(p[s] * (testbed.newest_model(alone[s])[key] - w) for s in reference.UNEVEN), atol=1e-4
        )


def test_one_step_on_two_sites_by_hand():
    """f = (w x - y)^2 / 2 with one example each, for each of two outputs; p_0 = (1/2, 1/2)."""
    x, y = {"a": 1.0, "b": 2.0}, {"a": 1, "b": 0}
    rows = {s: Rows(torch.tensor([[x[s]]]), torch.tensor([y[s]]), torch.zeros(1, dtype=torch.int64)) for s in x}
    sites = {s: {"train": r, "validation": r} for s, r in rows.items()}
    task = Task(testbed.Linear(), (1,), 2)
    work = Work(optimizer="sgd", lr=0.5, batch=2, epochs=None, steps=1)
    outcome, crew = reference.trained(Apple(eta_2=0.25, mu=3.0), sites, task, work, rounds=2)
    start = initial_parameters(FedAvg(), task, seed=1)
    begin = [[float(start["head.weight"][o]), float(start["head.bias"][o])] for o in (0, 1)]
    core, p = dict.fromkeys(x, begin), {s: {"a": 0.5, "b": 0.5} for s in x}
    for r in range(2):
        now = dict(core)
        for s in x:
            mixed = [[sum(p[s][j] * now[j][o][k] for j in x) for k in (0, 1)] for o in (0, 1)]
            residual = [w * x[s] + b - y[s] for w, b in mixed]
            grad = [[e * x[s], e] for e in residual]
            along = {j: sum(grad[o][k] * now[j][o][k] for o in (0, 1) for k in (0, 1)) for j in x}
            core[s] = [[now[s][o][k] - 0.5 * p[s][s] * grad[o][k] for k in (0, 1)] for o in (0, 1)]
            pull = 3.0 * 0.001 ** (r / 16)
            p[s] = {j: p[s][j] - 0.25 * (along[j] + pull * (p[s][j] - 0.5)) for j in x}
    for s in x:
        found = section(outcome.state.tensors, f"core/{s}")["head.weight"].flatten().tolist()
        assert found == pytest.approx([core[s][o][0] for o in (0, 1)], abs=1e-5)
        assert load_newest_memory(crew[s].disk).tensors["p"].tolist() == pytest.approx([p[s]["a"], p[s]["b"]], abs=1e-5)
        expected = [sum(p[s][j] * core[j][o][0] for j in x) for o in (0, 1)]
        assert testbed.newest_model(crew[s])["head.weight"].flatten().tolist() == pytest.approx(expected, abs=1e-5)


def slow(algorithm, task, sites, lost, rounds):
    """Rounds as the slides tell them, with everybody's cores in one place; returns each site's final model."""
    first = initial_parameters(algorithm, task, seed=1)
    nets = {s: reference.network(task, first) for s in sites}
    names = [name for name, _ in nets["a"].named_parameters()]
    core = {s: {n: first[n].clone() for n in names} for s in sites}
    total = sum(len(rows["train"].y) for rows in sites.values())
    p_0 = torch.tensor([len(sites[s]["train"].y) / total for s in sorted(sites)])
    p, known, wants = {s: p_0.clone() for s in sites}, {s: {} for s in sites}, {s: set(sites) for s in sites}
    for r in range(1, rounds + 1):
        new = {}
        for s in reference.present(r, lost):
            known[s] |= {j: core[j] for j in wants[s]}
            own, p_s = {n: v.clone() for n, v in core[s].items()}, p[s].clone()
            s_r = algorithm.mu * (0.0 if r - 1 >= algorithm.L else (math.cos(math.pi * (r - 1) / algorithm.L) + 1) / 2)
            for x, y in reference.batches(sites[s]["train"], r, s, reference.BRIEF):
                leaves = [v.requires_grad_() for v in (*own.values(), p_s)]
                parts = {j: own if j == s else known[s][j] for j in sites}
                mixed = {n: sum(p_s[k] * parts[j][n] for k, j in enumerate(sorted(sites))) for n in names}
                output = functional_call(nets[s], mixed, (x,))
                loss = torch.nn.functional.cross_entropy(output.logits, y)
                *grads, along = torch.autograd.grad(loss, leaves)
                own = {n: (own[n] - 0.1 * g).detach() for n, g in zip(names, grads, strict=True)}
                p_s = (p_s - algorithm.eta_2 * (along + s_r * (p_s - p_0))).detach()
            new[s], p[s] = own, p_s
            ranked = sorted((-abs(float(p_s[k])), j) for k, j in enumerate(sorted(sites)) if j != s)
            wants[s] = {j for _, j in ranked[: algorithm.M or len(sites)]}
        core |= new
    final = {}
    for s in sites:
        known[s] |= {j: core[j] for j in wants[s]}
        parts = {j: core[s] if j == s else known[s][j] for j in sites}
        mixed = {n: sum(p[s][k] * parts[j][n] for k, j in enumerate(sorted(sites))) for n in names}
        final[s] = {**nets[s].state_dict(), **mixed}
    return final


@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_LATER], ids=["", "lost replies"])
@pytest.mark.parametrize("M", [None, 1])
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_several_rounds_against_a_slow_implementation(task, sites, M, lost):
    algorithm = Apple(eta_2=0.05, mu=0.5, schedule="cosine", L=3, M=M)
    _, crew = reference.trained(algorithm, sites, task=task, rounds=5, lost=lost, participation=reference.PARTICIPATION)
    expected = slow(algorithm, task, sites, lost, 5)
    for s, hospital in crew.items():
        reference.agree(testbed.newest_model(hospital), expected[s])


def test_with_m_a_site_downloads_everything_once_and_then_only_what_it_asked_for():
    algorithm = Apple(M=1, eta_2=0.1)
    outcome, _ = reference.trained(algorithm, rounds=2)
    (wanted,) = outcome.state.facts["asked"]["a"]
    again = algorithm.send(outcome.state, "a", Call("law", 3, "train", dict.fromkeys(reference.UNEVEN, 2)))
    assert {name.split("/")[1] for name in again.tensors} == {wanted}
    late = algorithm.send(outcome.state, "a", Call("law", 3, "train", {"b": 2, "c": 2}))
    assert {name.split("/")[1] for name in late.tensors} == {"a", "b", "c"}


def test_independent_cores_differ_before_the_first_round_and_common_ones_do_not():
    task, states = testbed.make_task(), {}
    for cores in ("independent", "common"):
        algorithm = Apple(cores=cores)
        crew = testbed.make_federation(algorithm, reference.UNEVEN, task=task, work=reference.BRIEF)
        said = {s: h(Call("law", 0, "introduce", {}), Message()) for s, h in crew.items()}
        parts = {s: replace(m, facts=m.facts["algorithm"]) for s, m in said.items()}
        state = algorithm.start(initial_parameters(algorithm, task, seed=1), parts)
        states[cores] = algorithm.send(state, "a", Call("law", 1, "train", {})).tensors
    for cores, sent in states.items():
        same = torch.equal(sent["core/a/head.weight"], sent["core/b/head.weight"])
        assert same == (cores == "common")
    _, crew = reference.trained(Apple(cores="independent"), reference.IMAGES, task=reference.CNN, rounds=2)
    assert all(torch.isfinite(value).all() for value in testbed.newest_model(crew["a"]).values())


def test_p_stays_at_home_in_the_notes_and_a_core_that_climbs_is_told():
    algorithm = Apple(eta_2=2.0, mu=0.0)
    outcome, crew = reference.trained(algorithm, rounds=3)
    assert not any(name.startswith("p") for name in outcome.state.tensors)
    for s, hospital in crew.items():
        memory = load_newest_memory(hospital.disk)
        notes = memory.facts["notes"]["3"]
        p = dict(zip(sorted(reference.UNEVEN), memory.tensors["p"].tolist(), strict=True))
        assert {j: notes[f"p/{j}"] for j in reference.UNEVEN} == p
        assert notes["own core climbs its loss (p_ii <= 0)"] == float(p[s] <= 0)


def test_the_pull_holds_p_at_p_0():
    spread = {}
    for mu in (0.0, 15.0):
        _, crew = reference.trained(Apple(eta_2=0.05, mu=mu, L=1000), rounds=3)
        n = torch.tensor([float(len(rows["train"].y)) for rows in reference.UNEVEN.values()])
        spread[mu] = sum(float((load_newest_memory(h.disk).tensors["p"] - n / n.sum()).norm()) for h in crew.values())
    assert spread[15.0] < 0.3 * spread[0.0]


def test_settings_out_of_range_are_all_named_at_once():
    with pytest.raises(ValueError, match=r"eta_2 .* -1.*mu .* -2.*L .* 0.*M .* 0"):
        Apple(eta_2=-1, mu=-2, L=0, M=0)


def test_schedules_fall_from_one_to_zero_in_l_rounds():
    for kind in ("exponential", "cosine"):
        s = [Apple(schedule=kind, L=4)._s(r) for r in range(6)]
        assert s[0] == 1.0 and s[4] == s[5] == 0.0
        assert all(late < early for early, late in itertools.pairwise(s[:5]))
    assert Apple(schedule="cosine", L=4)._s(2) == pytest.approx(0.5)
    assert Apple(L=3)._s(1) == pytest.approx(0.1)
