"""IOP-FL inside: what travels is FedAvg's, tau = 1 is the newest local model, and equation 4 as it is read, by hand."""

from __future__ import annotations

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.parameters import section
from federation.task import Task
from personalize.fedavg_local import FedAvgLocal
from personalize.iopfl import IopFL
from privacy.dp.access import Rows

LOST = frozenset({(1, "a"), (3, "b")})


KINDS = pytest.mark.parametrize(
    ("task", "sites"),
    [(reference.CNN, reference.IMAGES), (testbed.make_task(), reference.TABLES)],
    ids=["images", "tables"],
)


def run(algorithm, task=reference.CNN, sites=reference.IMAGES, lost=LOST, work=reference.ADAM, **schedule):
    """`reference.recorded_training`, by default with absent sites and lost replies; of states only the models."""
    schedule = {"rounds": 5, "participation": reference.PARTICIPATION, **schedule}
    states, replies, found = reference.recorded_training(algorithm, task, sites, lost, work, **schedule)
    return [section(state, "model") for state in states], replies, found


@KINDS
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_what_travels_is_fedavgs_bit_for_bit(task, sites, weights):
    states, replies, _ = run(IopFL(weights=weights), task, sites)
    expected, sent, _ = run(FedAvg(weights=weights), task, sites)
    assert len(states) == 6 and all(testbed.are_equal(one, two) for one, two in zip(states, expected, strict=True))
    assert replies.keys() == sent.keys() and all(testbed.are_equal(replies[key], sent[key]) for key in sent)


@KINDS
def test_tau_1_is_the_newest_local_model_bit_for_bit(task, sites):
    ours, local = run(IopFL(tau=1.0), task, sites)[2], run(FedAvgLocal(weights="uniform"), task, sites)[2]
    assert all(testbed.are_equal(ours[site], local[site]) for site in sites)


@KINDS
@pytest.mark.parametrize("tau", [0.9, 0.3])
def test_a_slow_loop_gives_the_same_models_with_sites_away_and_replies_lost(task, sites, tau):
    """Buffers are averaged along; counters take the maximum. What a lost reply held is nowhere in P."""
    states, sent, found = run(IopFL(tau=tau), task, sites)
    assert any((r, "a") not in sent for r in range(1, 6))
    for site in sites:
        personal = None
        for r in range(1, 6):
            if (r, site) not in sent:
                continue
            personal = dict(states[r - 1]) if personal is None else personal
            for name, w in sent[r, site].items():
                mixed = (1 - tau) * personal[name].double() + tau * w.double()
                personal[name] = mixed if w.is_floating_point() else torch.maximum(personal[name], w)
        assert testbed.are_close(found[site], {n: v.to(found[site][n].dtype) for n, v in personal.items()}, 1e-6), site
        assert not testbed.are_equal(found[site], states[-1])


def test_where_all_sites_are_alike_p_is_the_global_models_moving_average():
    rows = testbed.make_table(4)
    work = Work(optimizer="sgd", lr=0.3, batch=24, epochs=None, steps=1)
    states, _, found = run(
        IopFL(tau=0.6), testbed.make_task(), dict.fromkeys("abc", rows), frozenset(), work, participation=1.0
    )
    average = states[0]
    for state in states[1:]:
        average = {name: 0.4 * average[name] + 0.6 * state[name] for name in state}
    assert all(testbed.are_close(model, average, 1e-6) for model in found.values())
    assert not testbed.are_close(found["a"], states[-1], 1e-3)


def test_two_rounds_of_two_sites_by_hand():
    """One full-batch SGD step a round from w: w_k = w - lr grad F_k(w); w is the plain mean of both, not by size."""
    task = Task(testbed.Linear(), (1,), 2)
    x = {"a": torch.tensor([[1.0]]), "b": torch.tensor([[1.0], [3.0], [2.0]])}
    y = {"a": torch.tensor([1]), "b": torch.tensor([0, 1, 1])}
    rows = {s: Rows(x[s], y[s], torch.arange(len(y[s]))) for s in x}
    work = Work(optimizer="sgd", lr=0.1, batch=8)
    sites = {s: {"train": r, "validation": r} for s, r in rows.items()}
    _, _, found = run(IopFL(tau=0.75), task, sites, frozenset(), work, rounds=2, participation=1.0)
    start = testbed.initial_parameters(FedAvg(), task, seed=1)
    w, b = float(start["head.weight"][0]), float(start["head.bias"][0])
    personal = {"a": (w, b), "b": (w, b)}
    for _ in range(2):
        stepped = {}
        for s in x:
            residual = [w * float(v) + b - float(t) for v, t in zip(x[s], y[s], strict=True)]
            slope = sum(r * float(v) for r, v in zip(residual, x[s], strict=True)) / len(residual)
            stepped[s] = (w - 0.1 * slope, b - 0.1 * sum(residual) / len(residual))
            personal[s] = tuple(0.25 * p + 0.75 * q for p, q in zip(personal[s], stepped[s], strict=True))
        w, b = ((stepped["a"][i] + stepped["b"][i]) / 2 for i in range(2))
    for s in x:
        assert found[s]["head.weight"][0].item() == pytest.approx(personal[s][0], abs=1e-6)
        assert found[s]["head.bias"][0].item() == pytest.approx(personal[s][1], abs=1e-6)


def test_a_site_that_never_took_part_diagnoses_with_what_it_receives():
    states, _, found = run(IopFL(), lost=frozenset((r, "a") for r in range(1, 6)), participation=1.0)
    assert testbed.are_equal(found["a"], states[-1])


@pytest.mark.parametrize("tau", [0.0, -0.1, 1.1, float("nan")])
def test_tau_outside_its_range_is_refused_by_name(tau):
    with pytest.raises(ValueError, match="tau must be in"):
        IopFL(tau=tau)


def test_it_makes_sense_everywhere():
    assert IopFL().complaints(reference.CNN.network(), reference.ADAM, True) == []
