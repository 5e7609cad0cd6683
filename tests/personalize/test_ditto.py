"""Ditto: lambda = 0 is local training, w is FedAvg's, and a slow implementation from the paper."""

from __future__ import annotations

import copy

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.mlp import Mlp
from federation.parameters import section
from federation.task import Task
from personalize.ditto import Ditto
from personalize.twins import send, with_start
from privacy.message import Call

DROPOUT = Task(Mlp(hidden=(6,), dropout=0.4), (4,), 2)


@pytest.mark.parametrize("work", [reference.ADAM, reference.SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_lambda_0_is_local_training_bit_for_bit_whoever_is_away(kind, work):
    _, ours = reference.run(Ditto(lam=0.0), kind, work)
    _, local = reference.run(Local(), kind, work)
    for site in reference.NAMES:
        assert testbed.are_equal(testbed.newest_model(ours[site]), testbed.newest_model(local[site])), site


def test_dropout_breaks_neither_law():
    ours, crew = reference.run(Ditto(lam=0.0), "mlp", reference.ADAM, task=DROPOUT)
    average, _ = reference.run(FedAvg(), "mlp", reference.ADAM, task=DROPOUT)
    _, local = reference.run(Local(), "mlp", reference.ADAM, task=DROPOUT)
    assert all(
        testbed.are_equal(testbed.newest_model(crew[s]), testbed.newest_model(local[s])) for s in reference.NAMES
    )
    assert testbed.are_equal(section(ours.state.tensors, "model"), section(average.state.tensors, "model"))


@pytest.mark.parametrize("kind", reference.KINDS)
def test_the_shared_model_is_fedavgs_bit_for_bit_whatever_lambda_is(kind):
    ours, _ = reference.run(Ditto(lam=0.7), kind, reference.ADAM)
    average, _ = reference.run(FedAvg(), kind, reference.ADAM)
    assert testbed.are_equal(section(ours.state.tensors, "model"), section(average.state.tensors, "model"))


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_it_is_algorithm_1(kind, weights):
    task, sites = reference.KINDS[kind]
    w = reference.network(task)
    v = {site: reference.network(task) for site in sites}
    for r in range(1, reference.ROUNDS + 1):
        locals_, w_t = [], [p.detach().clone() for p in w.parameters()]
        for site in reference.present(r):
            own = copy.deepcopy(w)
            for x, y in reference.batches(sites[site]["train"], r, site):
                for model, lam in ((own, 0.0), (v[site], 0.8)):
                    slopes = reference.slopes(model, x, y)
                    with torch.no_grad():
                        for p, g, centre in zip(model.parameters(), slopes, w_t, strict=True):
                            p -= 0.05 * (g + lam * (p - centre))
            locals_.append(own)
        sizes = [len(sites[s]["train"].y) if weights == "size" else 1 for s in reference.present(r)]
        w = reference.averaged(locals_, sizes)
    outcome, crew = reference.run(Ditto(lam=0.8, weights=weights), kind)
    reference.agree(section(outcome.state.tensors, "model"), w.state_dict())
    for site in reference.NAMES:
        reference.agree(testbed.newest_model(crew[site]), v[site].state_dict())


def test_the_runs_of_these_tests_have_sites_that_join_late_and_replies_that_are_lost():
    first = {site: min(r for r in range(1, 6) if site in reference.present(r)) for site in reference.NAMES}
    assert max(first.values()) > 1
    outcome, _ = reference.run(Ditto(), "mlp", rounds=5)
    assert outcome.missing


def test_a_large_lambda_holds_the_personal_model_at_the_shared_one():
    def distance(lam):
        outcome, crew = reference.run(Ditto(lam=lam), "mlp", rounds=2, participation=1.0, lost=frozenset())
        w = section(outcome.state.tensors, "model")
        return sum(float((testbed.newest_model(crew["b"])[n] - w[n]).square().sum()) for n in w) ** 0.5

    assert distance(10.0) < 0.5 * distance(0.0)


def test_the_start_is_sent_only_to_those_who_come_late_and_only_until_they_are_merged():
    state = with_start({"head.weight": torch.zeros(1)})
    parts = [
        {name.split("/")[0] for name in send(None, state, "a", Call("r", round_, "train", merged)).tensors}
        for round_, merged in ((1, {}), (3, {"b": 1}), (3, {"a": 2}))
    ]
    assert parts == [{"model"}, {"model", "start"}, {"model"}]


def test_a_lambda_that_pushes_away_is_refused():
    with pytest.raises(ValueError, match=r"lam must be >= 0, found -1"):
        Ditto(lam=-1.0)
