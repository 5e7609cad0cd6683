"""Private training as a law: every method gets it without knowing, and pays exactly what was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import methods
import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import QuorumLost, Schedule, schedule_of
from privacy.dp.access import Rows
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed, composed
from privacy.dp.protection import Protection
from privacy.release.gate import BUDGET, Refused

ADAM = Work(optimizer="adam", lr=0.02, batch=24, epochs=2)
SGD = Work(optimizer="sgd", lr=0.05, batch=24, epochs=2)
METHODS = methods.with_work(methods.private(), ADAM, SGD)
ONE_DESCENT = {
    "fedavg",
    "fedprox",
    "scaffold",
    "fedper",
    "local",
    "moon",
    "feddyn",
    "fenda",
    "perfcl",
    "cusfl",
    "ditto",
}
"""Methods whose round is one descent and nothing else."""
SCHEDULE = Schedule(rounds=2)
NOISED = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")


def alone(seed: int, shift: float = 0.0) -> dict[str, Rows]:
    """A table in which every patient has one row, so that a patient's mean is the row."""
    rows = testbed.table(seed, shift=shift)
    return {split: Rows(r.x.double(), r.y, torch.arange(len(r.y))) for split, r in rows.items()}


def crew(algorithm, work, sites, protection):
    made = testbed.federation(algorithm, sites, task=testbed.task(), work=work)
    return {name: replace(hospital, protection=protection) for name, hospital in made.items()}


def go(algorithm, work, hospitals, **options):
    return testbed.train(algorithm, hospitals, work=work, task=testbed.task(), **{"schedule": SCHEDULE, **options})


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_without_noise_and_clipping_and_with_everybody_drawn_it_is_plain_training(algorithm, work):
    """Same draws (all patients each step), patient-mean loss, huge clip, no noise."""
    if algorithm.name == "cusfl":  # by patient its balance is another method, unless the cap binds
        algorithm = replace(algorithm, cap=0.01)
    sites = {"a": alone(1), "b": alone(2, 0.7)}
    quiet = Protection(
        clip=1e4, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, counts_noise=0.0
    )
    plain, private = crew(algorithm, work, sites, None), crew(algorithm, work, sites, quiet)
    left, right = go(algorithm, work, plain), go(algorithm, work, private)
    near = 1e-7 if algorithm.name == "moments" else 1e-9  # it sums whole multiples of 2^-40
    for name in sites:
        assert testbed.close(testbed.final(plain[name]), testbed.final(private[name]), near)
        for round_, loss in left.losses[name].items():
            assert right.losses[name][round_] == pytest.approx(loss, abs=near)


@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_what_was_done_is_what_was_rehearsed(algorithm, work):
    hospitals = crew(algorithm, work, {"a": testbed.table(1), "b": testbed.table(2)}, NOISED)
    for hospital in hospitals.values():
        hospital.splits = {s: Rows(r.x.double(), r.y, r.patient) for s, r in hospital.splits.items()}
    go(algorithm, work, hospitals)
    initial = initial_parameters(algorithm, testbed.task(), seed=0)
    seen = rehearse_events(algorithm, testbed.task(), work, initial, NOISED)
    rounds = schedule_of(algorithm, SCHEDULE).rounds
    wanted = [seen.introduction, *[seen.training] * rounds, *[seen.validation] * rounds]
    for hospital in hospitals.values():
        assert composed(hospital.events) == composed(wanted)
    steps = 2 * round(1 / 0.4)
    if algorithm.name in ONE_DESCENT:
        assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.4, Gaussian(1.1))), steps)
    assert seen.validation == Part("c", "validation", Gaussian(3.0))


@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_a_replayed_call_gives_the_same_bytes_and_spends_nothing(algorithm, work):
    hospitals = crew(algorithm, work, {"a": alone(1), "b": alone(2)}, NOISED)
    calls = []

    class Recording:
        sites = ("a", "b")

        def ask(self, call, messages, *, deadline_s=None):
            answers = testbed.SerializingEngine(hospitals).ask(call, messages)
            calls.append((call, messages, answers))
            return answers

    go(algorithm, work, hospitals, engine=Recording())
    before = {name: list(hospital.events) for name, hospital in hospitals.items()}
    call, messages, answers = next(one for one in reversed(calls) if one[0].request == "train")
    again = testbed.SerializingEngine(hospitals).ask(call, messages)
    for name, reply in again.replies.items():
        assert testbed.equal(reply.tensors, answers.replies[name].tensors)
        assert hospitals[name].events == before[name]


class Broke:
    """A hospital whose patients' budget is spent from a round on."""

    def __init__(self, hospital, first):
        self.hospital, self.first, self.asked = hospital, first, []

    def __call__(self, call, message):
        self.asked.append((call.request, call.round))
        if call.request == "train" and call.round >= self.first:
            raise Refused(BUDGET)
        return self.hospital(call, message)


def test_a_site_whose_budget_is_spent_stops_with_a_reason_and_the_others_go_on():
    hospitals = crew(FedAvg(), ADAM, {"a": alone(1), "b": alone(2)}, None)
    broke = Broke(hospitals["a"], 2)
    outcome = go(FedAvg(), ADAM, {"a": broke, "b": hospitals["b"]}, schedule=Schedule(rounds=5, quorum=1.0))
    assert outcome.missing == ((2, "a", BUDGET),) and outcome.retired == {"a"}
    assert outcome.round == 6
    assert broke.asked == [("introduce", 0), ("train", 1), ("train", 2), ("finish", 6)], "asked once, then left alone"
    assert testbed.equal(testbed.final(hospitals["a"]), testbed.final(hospitals["b"])), (
        "it gets the last model all the same"
    )


def test_when_all_have_retired_what_is_merged_is_the_end():
    hospitals = crew(FedAvg(), ADAM, {"a": alone(1), "b": alone(2)}, None)
    workers = {"a": Broke(hospitals["a"], 2), "b": Broke(hospitals["b"], 3)}
    folder = testbed.MemoryFolder()
    outcome = go(FedAvg(), ADAM, workers, schedule=Schedule(rounds=9), folder=folder)
    assert outcome.round == 10 and outcome.retired == {"a", "b"} and outcome.merged == {"a": 1, "b": 2}
    asked = [len(worker.asked) for worker in workers.values()]
    assert go(FedAvg(), ADAM, workers, schedule=Schedule(rounds=9), folder=folder).round == 10
    assert [len(worker.asked) for worker in workers.values()] == asked, "it is finished: nobody is asked again"


def test_a_federation_in_which_nobody_may_ever_train_stops_with_the_reason():
    hospitals = crew(FedAvg(), ADAM, {"a": alone(1), "b": alone(2)}, None)
    with pytest.raises(QuorumLost, match="a: budget, b: budget"):
        go(FedAvg(), ADAM, {name: Broke(hospital, 1) for name, hospital in hospitals.items()})


def test_a_correction_is_added_after_the_noise_and_is_not_clipped():
    site_of = crew(FedAvg(), SGD, {"a": alone(1)}, Protection(clip=1e-4, sampling=1.0, views=1, noise=0.0))["a"]

    module = testbed.task().network()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    site = Site("a", testbed.task(), SGD, site_of.access(0))
    pull = {name: torch.full_like(p, 3.0) for name, p in before.items()}
    site.descend(module, testbed.task().objective, steps=1, lr=0.1, correction=lambda _: pull)
    for name, p in module.named_parameters():
        assert torch.allclose(before[name] - p, torch.full_like(p, 0.3), atol=2e-5)
