"""Private training as a law: every method gets it without knowing, and pays exactly what was planned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import methods
from consilium.testing import private as laws
from consilium.testing import testbed
from consilium.testing.private import ADAM, NOISED, SGD, make_private_hospitals, make_single_row_table, train_hospitals
from federation.descent import Site
from federation.fedavg import FedAvg
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import QuorumLost, Schedule
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.protection import Protection
from privacy.release.gate import BUDGET, Refused

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


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.repeats(10)
@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_without_noise_and_clipping_and_with_everybody_drawn_it_is_plain_training(algorithm, work):
    if algorithm.name == "cusfl":  # by patient its balance is another method, unless the cap binds
        algorithm = replace(algorithm, cap=0.01)
    if algorithm.name in ("cusfl", "moe"):
        work = SGD  # some gradients are as small as their rounding to 2^-40 of the clip, which Adam would show
    near = 1e-7 if algorithm.name == "moments" else 1e-9  # it sums whole multiples of 2^-40
    laws.without_noise_and_clipping_and_with_everybody_drawn_it_is_plain_training(algorithm, work, near)


@pytest.mark.repeats(10)
@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_what_was_done_is_what_was_rehearsed(algorithm, work):
    laws.what_was_done_is_what_was_rehearsed(algorithm, work)
    initial = initial_parameters(algorithm, testbed.make_task(), seed=0)
    seen = rehearse_events(algorithm, testbed.make_task(), work, initial, NOISED)
    steps = 2 * round(1 / 0.4)
    if algorithm.name in ONE_DESCENT:
        assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.4, Gaussian(1.1))), steps)
    assert seen.validation == Part("c", "validation", Gaussian(3.0))


@pytest.mark.repeats(10)
@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_a_replayed_call_gives_the_same_bytes_and_spends_nothing(algorithm, work):
    laws.a_replayed_call_gives_the_same_bytes_and_spends_nothing(algorithm, work)


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
    hospitals = make_private_hospitals(
        FedAvg(), ADAM, {"a": make_single_row_table(1), "b": make_single_row_table(2)}, None
    )
    broke = Broke(hospitals["a"], 2)
    outcome = train_hospitals(
        FedAvg(), ADAM, {"a": broke, "b": hospitals["b"]}, schedule=Schedule(rounds=5, quorum=1.0)
    )
    assert outcome.missing == ((2, "a", BUDGET),) and outcome.retired_sites == {"a"}
    assert outcome.round == 6
    assert broke.asked == [("introduce", 0), ("train", 1), ("train", 2), ("finish", 6)], "asked once, then left alone"
    assert testbed.are_equal(testbed.newest_model(hospitals["a"]), testbed.newest_model(hospitals["b"])), (
        "it gets the last model all the same"
    )


def test_when_all_have_retired_what_is_merged_is_the_end():
    hospitals = make_private_hospitals(
        FedAvg(), ADAM, {"a": make_single_row_table(1), "b": make_single_row_table(2)}, None
    )
    workers = {"a": Broke(hospitals["a"], 2), "b": Broke(hospitals["b"], 3)}
    folder = testbed.MemoryFolder()
    outcome = train_hospitals(FedAvg(), ADAM, workers, schedule=Schedule(rounds=9), folder=folder)
    assert outcome.round == 10 and outcome.retired_sites == {"a", "b"} and outcome.merged == {"a": 1, "b": 2}
    asked = [len(worker.asked) for worker in workers.values()]
    assert train_hospitals(FedAvg(), ADAM, workers, schedule=Schedule(rounds=9), folder=folder).round == 10
    assert [len(worker.asked) for worker in workers.values()] == asked, "it is finished: nobody is asked again"


def test_a_federation_in_which_nobody_may_ever_train_stops_with_the_reason():
    hospitals = make_private_hospitals(
        FedAvg(), ADAM, {"a": make_single_row_table(1), "b": make_single_row_table(2)}, None
    )
    with pytest.raises(QuorumLost, match="a: budget, b: budget"):
        train_hospitals(FedAvg(), ADAM, {name: Broke(hospital, 1) for name, hospital in hospitals.items()})


def test_a_correction_is_added_after_the_noise_and_is_not_clipped():
    site_of = make_private_hospitals(
        FedAvg(), SGD, {"a": make_single_row_table(1)}, Protection(clip=1e-4, sampling=1.0, views=1, noise=0.0)
    )["a"]

    module = testbed.make_task().network()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    site = Site("a", testbed.make_task(), SGD, site_of.access(0))
    pull = {name: torch.full_like(p, 3.0) for name, p in before.items()}
    site.descend(module, testbed.make_task().objective, steps=1, lr=0.1, correction=lambda _: pull)
    for name, p in module.named_parameters():
        assert torch.allclose(before[name] - p, torch.full_like(p, 0.3), atol=2e-5)
