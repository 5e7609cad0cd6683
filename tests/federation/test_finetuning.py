"""Fine-tuning: what moves, and what a method keeps from it."""

from __future__ import annotations

import pytest
import torch

import methods
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.finetuning import Tuning, fine_tuned, has_tunable_parameters
from privacy.dp.access import open_access


def tuned(algorithm, tuning, work=None):
    torch.manual_seed(0)
    module = algorithm.network(testbed.make_task())
    work = work or Work(optimizer="adamw", lr=0.05, batch=5, weight_decay=0.1)
    access = open_access(testbed.make_table(1), batch=5, seed=0)
    after = fine_tuned(Site("a", testbed.make_task(), work, access), module, tuning)
    before = dict(module.named_parameters())
    return {n: float((p - before[n]).detach().abs().max()) for n, p in after.named_parameters()}, after


@pytest.mark.parametrize("algorithm", methods.fit(testbed.make_task()), ids=lambda one: one.name)
def test_what_a_site_diagnoses_with_moves_and_what_is_not_its_own_stays(algorithm):
    moved, after = tuned(algorithm, Tuning(epochs=3))
    untuned = getattr(after, "untuned", ())
    assert max(moved.values()) > 0
    assert all(by == 0 for name, by in moved.items() if name.startswith(untuned)), "weight decay would move it too"
    if algorithm.name in ("apfl", "moe"):
        assert any(name.startswith("shared.") for name in moved)


def test_tuning_the_head_leaves_the_body_and_needs_a_head():
    named = {one.name: one for one in methods.ALL}
    moved, _ = tuned(named["fedavg"], Tuning(steps=4, trainable="head"))
    assert {name.split(".")[0] for name, by in moved.items() if by > 0} == {"head"}
    apfl = named["apfl"].network(testbed.make_task())
    assert not has_tunable_parameters(apfl, Tuning(steps=1, trainable="head"))
    with pytest.raises(ValueError, match="no part that is a head; say trainable: all"):
        tuned(named["apfl"], Tuning(steps=1, trainable="head"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "either epochs or steps"),
        ({"epochs": 1, "steps": 1}, "either"),
        ({"steps": 1, "lr": 0.0}, "lr must be > 0"),
    ],
)
def test_a_tuning_that_makes_no_sense_is_refused(said, why):
    with pytest.raises(ValueError, match=why):
        Tuning(**said)
