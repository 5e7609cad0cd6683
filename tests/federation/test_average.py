"""The average of a method's models over rounds, which hospitals keep where a run asks for it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.participant import (
    AVERAGE,
    EMPHASIS,
    _pack_models,
    average_model,
    list_averages,
    list_rounds,
    load_checkpoint,
)
from federation.rounds import Schedule
from personalize.fedper import FedPer
from privacy.message import Call, Malformed, Message, from_bytes, seal_parts, to_bytes, unseal_parts

ROUNDS = 7
TASK = testbed.make_task()
WORK = Work(batch=8, lr=1e-2)


class Watched(testbed.MemoryFolder):
    """A folder that remembers what was ever written."""

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        self.ever.setdefault(name, []).append(bytes(data))

    @property
    def ever(self) -> dict[str, list[bytes]]:
        return self.__dict__.setdefault("_ever", {})


def trained(method, schedule, averaged=True, lose=frozenset()):
    """Hospitals after a run, and the folders of their models."""
    tables = {name: testbed.make_table(seed, shift=seed) for seed, name in enumerate("abc")}
    crew = testbed.make_federation(method, tables, task=TASK, work=WORK)
    folders = {name: Watched() for name in crew}
    for name, hospital in crew.items():
        hospital.models, hospital.averaged = folders[name], averaged
    engine = testbed.LossyEngine(InProcess(crew), lose)
    testbed.train(method, crew, task=TASK, work=WORK, schedule=schedule, engine=engine)
    return crew, folders


def shares(rounds: int) -> list[float]:
    """The weight of each round's model, multiplied out: a second reading of the rule."""
    steps = [(EMPHASIS + 1) / (EMPHASIS + k) for k in range(1, rounds + 1)]
    return [step * math.prod(1 - later for later in steps[k + 1 :]) for k, step in enumerate(steps)]


@given(st.integers(1, 200))
def test_shares_of_rounds_sum_to_one_and_never_fall(rounds):
    by_round = shares(rounds)
    assert sum(by_round) == pytest.approx(1)
    assert all(earlier <= later + 1e-12 for earlier, later in pairwise(by_round))


def test_half_of_the_weight_lies_on_about_the_last_sixth_of_the_rounds_however_many_they_are():
    """Why the decay follows the round: an exponential average of a fixed decay has another window for each number."""
    for rounds in (20, 100, 1000):
        by_round = torch.tensor(shares(rounds)).flip(0).cumsum(0)
        assert 0.1 < int((by_round < 0.5).sum()) / rounds < 0.2


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=30))
def test_an_average_is_the_weighted_sum_of_all_models_and_lies_among_them(values):
    average = torch.tensor(values[0])
    for number, value in enumerate(values[1:], 2):
        average = average_model({"w": average}, {"w": torch.tensor(value)}, number)["w"]
    by_round = shares(len(values))
    expected = sum(share * value for share, value in zip(by_round, values, strict=True))
    assert float(average) == pytest.approx(expected, abs=1e-3)
    assert min(values) - 1e-3 <= float(average) <= max(values) + 1e-3


def test_whole_numbers_are_those_of_the_last_round():
    past, now = {"steps": torch.tensor(3), "w": torch.zeros(2)}, {"steps": torch.tensor(8), "w": torch.ones(2)}
    assert int(average_model(past, now, 2)["steps"]) == 8


@pytest.mark.parametrize("method", [FedAvg(), FedPer()], ids=["fedavg", "fedper"])
def test_each_hospital_averages_the_models_that_it_used_itself(method):
    crew, folders = trained(method, Schedule(rounds=ROUNDS))
    for hospital in crew.values():
        models = [
            from_bytes(unseal_parts(data[-1])).tensors
            for data in (folders[hospital.name].ever[f"{k}"] for k in range(1, 8))
        ]
        number, average = load_checkpoint(hospital.models, load_newest_memory(hospital.disk), "average", best=None)
        assert number == ROUNDS
        for name, value in average.items():
            expected = sum(share * model[name] for share, model in zip(shares(ROUNDS), models, strict=True))
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
        assert len(list_averages(hospital.models)) <= 2


def test_hospitals_with_one_model_have_one_average():
    crew, _ = trained(FedAvg(), Schedule(rounds=ROUNDS))
    averages = [
        load_checkpoint(hospital.models, load_newest_memory(hospital.disk), "average", best=None)[1]
        for hospital in crew.values()
    ]
    assert all(testbed.are_equal(averages[0], other) for other in averages[1:])


@pytest.mark.parametrize("schedule", [Schedule(rounds=9, participation=0.34), Schedule(rounds=30, patience=1)])
def test_whoever_misses_rounds_or_ends_early_averages_the_models_that_it_used(schedule):
    """Weights follow the number of models, whatever the numbers of their rounds are."""
    crew, folders = trained(FedAvg(), schedule)
    for hospital in crew.values():
        seen = sorted(int(name) for name in load_newest_memory(hospital.disk).facts["losses"])
        last, average = load_checkpoint(hospital.models, load_newest_memory(hospital.disk), "average", best=None)
        assert last == seen[-1] and len(seen) < schedule.rounds
        models = [from_bytes(unseal_parts(folders[hospital.name].ever[f"{number}"][-1])).tensors for number in seen]
        for name, value in average.items():
            expected = sum(share * model[name] for share, model in zip(shares(len(seen)), models, strict=True))
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
        assert all(len({*versions}) == 1 for versions in folders[hospital.name].ever.values()), "written twice, alike"


@pytest.mark.parametrize("kept", [{1, 2, 3}, {2, 3}, set()])
def test_an_average_whose_predecessor_is_gone_is_not_begun_anew(kept):
    models, memory = testbed.MemoryFolder(), Message({}, {"losses": {"1": 0.5, "2": 0.4, "3": 0.3}})
    for number in kept - {3}:
        models.write(f"{AVERAGE}{number}", seal_parts(to_bytes(Message({"w": torch.zeros(1)}, {"models": number}))))
    with pytest.raises(Malformed, match="up to round 3 is gone"):
        _pack_models(models, Call("r", 5, "train", {}), {"w": torch.ones(1)}, memory, averaged=True)


def test_the_newest_average_that_is_gone_is_missed():
    crew, folders = trained(FedAvg(), Schedule(rounds=3))
    hospital = crew["a"]
    hospital.models.remove(f"{AVERAGE}3")
    hospital.models.write(f"{AVERAGE}2", folders["a"].ever[f"{AVERAGE}2"][-1])
    with pytest.raises(KeyError, match="up to round 3 is gone"):
        load_checkpoint(hospital.models, load_newest_memory(hospital.disk), "average", best=None)


@pytest.mark.parametrize("seed", range(6))
def test_lost_replies_leave_every_average_what_its_memory_says(seed):
    """A hospital whose replies are lost goes on from the memory of the last merged round, and so does its average."""
    asked = [(round_, site) for round_ in range(2, 9) for site in "abc"]
    lost = frozenset((round_, site) for round_, site in asked if (7 * seed + 5 * round_ + ord(site)) % 3 == 0)
    crew, folders = trained(FedAvg(), Schedule(rounds=9, quorum=0.1), lose=lost)
    for hospital in crew.values():
        memory = load_newest_memory(hospital.disk)
        seen = sorted(int(name) for name in memory.facts["losses"])
        last, average = load_checkpoint(hospital.models, memory, "average", best=None)
        assert last == seen[-1] == 9
        models = [from_bytes(unseal_parts(folders[hospital.name].ever[f"{number}"][-1])).tensors for number in seen]
        for name, value in average.items():
            expected = sum(share * model[name] for share, model in zip(shares(len(seen)), models, strict=True))
            torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)


def test_a_run_that_does_not_ask_for_it_keeps_none():
    crew, _ = trained(FedAvg(), Schedule(rounds=3), averaged=False)
    for hospital in crew.values():
        assert list_rounds(hospital.models) and not list_averages(hospital.models)
        latest, average = (load_checkpoint(hospital.models, Message(), c, best=None) for c in ("latest", "average"))
        assert average[0] == latest[0] == 3 and testbed.are_equal(average[1], latest[1])
