"""FedAvg-local: FedAvg's training, and each site's own model before it is averaged."""

from __future__ import annotations

import pytest
import torch

import rig
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cnn import Cnn
from federation.parameters import section
from federation.rounds import Schedule
from federation.task import Task
from personalize.fedavg_local import FedAvgLocal
from privacy.access import Rows

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
ADAM = Work(optimizer="adam", lr=0.02, batch=4, epochs=2)


def images(seed: int, n: int) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, 8, 8, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


SITES = {"a": images(1, 9), "b": images(2, 14), "c": images(3, 6)}
IMAGES, TABLES = (TASK, SITES), (rig.task(), {"a": rig.table(1), "b": rig.table(2, shift=0.7), "c": rig.table(3, n=10)})


class Tap:
    """An engine that remembers the models in the replies that arrived, by round and site."""

    def __init__(self, inner):
        self.inner, self.sites, self.seen = inner, inner.sites, {}

    def ask(self, call, messages, *, deadline_s=None):
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        if call.request == "train":
            self.seen |= {(call.round, site): section(r.tensors, "model") for site, r in answers.replies.items()}
        return answers


def run(algorithm, task=TASK, sites=SITES, lost=frozenset(), work=ADAM, **options):
    crew = rig.federation(algorithm, sites, task=task, work=work)
    engine, states = Tap(rig.Lossy(InProcess(crew), lost)), []
    rig.train(
        algorithm,
        crew,
        task=task,
        work=work,
        schedule=Schedule(**{"rounds": 4, "quorum": 0.3, **options}),
        engine=engine,
        between=lambda outcome: states.append(outcome.state.tensors),
    )
    return states, engine.seen, {name: rig.final(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize(("task", "sites"), [IMAGES, TABLES], ids=["images", "tables"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("keep", [True, False])
def test_what_travels_is_fedavgs_bit_for_bit(task, sites, weights, keep):
    """Every state and every reply, with sites away and replies lost."""
    work = Work(optimizer="adam", lr=0.02, batch=4, keep_optimizer=keep)
    options = {"lost": frozenset({(1, "a"), (3, "a")}), "participation": 0.67, "work": work}
    states, replies, _ = run(FedAvgLocal(weights=weights), task, sites, **options)
    expected, sent, _ = run(FedAvg(weights=weights), task, sites, **options)
    assert len(states) == len(expected) == 5
    assert all(rig.equal(one, two) for one, two in zip(states, expected, strict=True))
    assert replies.keys() == sent.keys() and all(rig.equal(replies[key], sent[key]) for key in sent)


@pytest.mark.parametrize("lost", [frozenset(), frozenset({(3, "a"), (4, "a"), (2, "b")})], ids=["", "lost"])
def test_a_site_diagnoses_with_its_newest_model_that_was_merged(lost):
    states, _, found = run(FedAvgLocal(), lost=lost)
    _, sent, _ = run(FedAvg(), lost=lost)
    for site in SITES:
        newest = max(round_ for round_, name in sent if name == site)
        assert rig.equal(found[site], sent[newest, site])
        assert not rig.equal(found[site], section(states[-1], "model"))


def test_alone_it_is_local_training():
    one = {"a": SITES["a"]}
    assert rig.equal(run(FedAvgLocal(), sites=one)[2]["a"], run(Local(), sites=one)[2]["a"])


def test_a_site_that_never_took_part_diagnoses_with_what_it_receives():
    lost = frozenset((r, "a") for r in range(1, 5))
    states, _, found = run(FedAvgLocal(), lost=lost)
    assert rig.equal(found["a"], section(states[-1], "model"))


def test_it_makes_sense_everywhere():
    assert FedAvgLocal().complaints(TASK.network(), ADAM, True) == []
