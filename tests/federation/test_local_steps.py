"""What a method does in a round, counted on zeros: the same as it does at a hospital."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import methods
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.local_steps import LocalSteps, local_steps
from federation.rehearsal import initial_parameters
from personalize.fedrep import FedRep
from personalize.pfedme import PFedMe
from privacy.dp.access import Access, open_access
from privacy.message import Call, Message

TASK = testbed.make_task()
PLAIN = Work(optimizer="sgd", lr=0.05, batch=5, epochs=None, steps=6)


def found(method, work=PLAIN, task=TASK):
    return local_steps(method, task, work, initial_parameters(method, task, seed=0))


@dataclass
class Watching:
    """Access that counts the gradients it is asked for."""

    inner: Access
    asked: int = 0

    def gradient(self, module, objective, draw, aux=None):
        self.count(draw)
        return self.inner.gradient(module, objective, draw, aux)

    def gradient_sum(self, module, objective, draw):
        self.count(draw)
        return self.inner.gradient_sum(module, objective, draw)

    def count(self, draw):
        self.asked += self.inner.epoch() if len(draw.y) == self.inner.size("train") else 1

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.repeats(8)
@pytest.mark.parametrize("work", [PLAIN, replace(PLAIN, epochs=2, steps=None)], ids=["steps", "epochs"])
@pytest.mark.parametrize("method", methods.fit(TASK), ids=lambda one: one.name)
def test_it_is_what_a_hospital_does(method, work):
    """24 patients in batches of 5: an epoch has 5."""
    watching = Watching(open_access({**testbed.make_table(1)}, batch=5, seed=0, balance=False))
    site = Site("a", TASK, work, watching)
    state = method.start(initial_parameters(method, TASK, seed=0), {"a": method.introduce(site)})
    watching.asked, call = 0, Call("law", 1, "train", {})
    method.train(site, method.send(state, "a", call), Message(), call)
    steps = found(method, work)
    assert watching.asked == steps.fixed + 5 * steps.epochs


def test_equal_work_is_seen_to_be_equal_and_other_work_to_be_other():
    assert found(FedAvg()) == (6, 0) == found(FedRep(head_steps=3, body_steps=3))
    assert found(FedRep(head_epochs=2)) == (0, 3)
    assert found(PFedMe(K=5)) == (30, 0) and found(PFedMe(K=2), replace(PLAIN, steps=3)) == (6, 0)
    assert found(FedAvg(), replace(PLAIN, epochs=2, steps=None)) == (0, 2)


def test_it_is_said_in_words():
    told = {(8, 0): "8", (0, 1): "1 epoch", (0, 3): "3 epochs", (8, 1): "8 and 1 epoch", (0, 0): "0"}
    assert {steps: str(LocalSteps(*steps)) for steps in told} == told
