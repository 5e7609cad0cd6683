"""Buffered merging as laws over all methods: who is merged when, which methods take part, what equals what."""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.test_sums import ADAM, NAMES, SGD, forms_of, make_hospitals, table_of, task_of, train

import methods
from consilium.testing import runs, testbed
from federation.algorithm import is_averaging, is_summable
from federation.buffering import (
    Merge,
    can_merge_late,
    count_updates,
    find_started,
    plan_merges,
    rebase_update,
    weigh_staleness,
)
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.merging import MEAN, Median, Rule
from federation.outcome import Outcome, load_outcome
from federation.parameters import section
from federation.remote import Pending, Remote, Unreachable
from federation.rounds import QuorumLost, Schedule, Trust, check_buffer
from flare_in_process import flare
from privacy.message import Call, Message
from privacy.release.gate import BUDGET, Refused
from privacy.settings_error import SettingsError

LATE = [each for each in methods.ALL if can_merge_late(each)]
SLOW = Schedule(rounds=5, buffer=1, durations={"b": 1.5, "c": 3.5})
"""a answers at 1, 2, 3; b at 1.5, 3; c at 3.5: in the third merge nobody is fresh, in the fourth two are together."""


def are_same(left: Outcome, right: Outcome) -> bool:
    """Whether two runs ended with the same state and records."""
    records = [
        (each.state.facts, each.merged, each.losses, each.totals, each.missing, each.best, each.round)
        for each in (left, right)
    ]
    return testbed.are_equal(left.state.tensors, right.state.tensors) and records[0] == records[1]


DURATIONS = st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 40).map(lambda n: n / 8), min_size=1)
"""Multiples of 1/8, whose sums are exact."""


@given(DURATIONS, st.integers(1, 8), st.integers(1, 12))
def test_a_merge_comes_as_soon_as_enough_have_answered_and_takes_all_who_have(durations, buffer, rounds):
    """Each hospital's work is followed from its beginning to its merge, and nobody works on two models at once."""
    merges = plan_merges([*durations], durations, buffer, rounds)
    clocks = [0.0, *(merge.clock for merge in merges)]
    assert len(merges) == rounds and clocks == sorted(clocks)
    begin = dict.fromkeys(durations, 1)
    for number, merge in enumerate(merges, 1):
        ends = {site: clocks[begin[site] - 1] + durations[site] for site in durations}
        assert merge.began == {site: begin[site] for site in sorted(ends) if ends[site] <= merge.clock}
        assert len(merge.began) >= min(buffer, len(durations))
        assert sum(end < merge.clock for end in ends.values()) < min(buffer, len(durations))
        begin |= dict.fromkeys(merge.began, number + 1)
    assert count_updates(merges) == Counter(site for merge in merges for site in merge.began)


@given(DURATIONS, st.integers(1, 4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_who_is_merged_when_hangs_on_no_order(durations, buffer, rounds, random):
    names = [*durations]
    random.shuffle(names)
    assert plan_merges(names, durations, buffer, rounds) == plan_merges([*durations], durations, buffer, rounds)


def test_nobody_begins_what_no_merge_takes():
    merges = plan_merges(NAMES, SLOW.durations, 1, SLOW.rounds)
    begun = {(site, start) for number in range(1, 6) for site, start in find_started(merges, number).items()}
    assert begun == {(site, start) for merge in merges for site, start in merge.began.items()}


def test_the_unit_of_durations_changes_no_merge():
    """Three times 0.1 is no more than 0.3: who answers at the same moment is merged together."""
    for unit in (1.0, 0.1, 0.7, 1e-3):
        durations = {"a": unit, "b": unit, "c": float(Decimal(str(unit)) * 3)}
        merges = plan_merges("abc", durations, 2, 4)
        assert [sorted(each.began) for each in merges] == [["a", "b"], ["a", "b"], ["a", "b", "c"], ["a", "b"]]
    assert [dict(each.began) for each in plan_merges("ac", {"a": 0.1, "c": 0.3}, 1, 4)] == [
        {"a": 1},
        {"a": 2},
        {"a": 3, "c": 1},
        {"a": 4},
    ]


def test_merges_by_hand():
    merges = plan_merges(NAMES, SLOW.durations, 1, 5)
    assert merges == (
        Merge(1.0, {"a": 1}),
        Merge(1.5, {"b": 1}),
        Merge(2.0, {"a": 2}),
        Merge(3.0, {"a": 4, "b": 3}),
        Merge(3.5, {"c": 1}),
    )
    assert SLOW.count_updates(NAMES) == {"a": 3, "b": 2, "c": 1}
    assert Schedule(rounds=7).count_updates(NAMES) == {"a": 7, "b": 7, "c": 7}


@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(methods.ALL, ADAM, SGD))
def test_a_method_takes_part_if_and_only_if_a_weighted_mean_of_updates_is_all_that_it_merges(algorithm, work):
    """The others are refused, in words, before anybody is asked; who sends nothing waits for nobody anyway."""
    forms, single = forms_of(algorithm, work), getattr(algorithm, "rounds", None) == 1
    sends = bool(forms.reply.tensors) and not single
    fits = is_averaging(algorithm) and is_summable(algorithm)
    if fits or not sends:
        check_buffer(algorithm, forms.reply, SLOW)
        return
    hospitals = make_hospitals(algorithm, work, hidden=False)
    with pytest.raises(ValueError, match=f"{algorithm.name} merges more than a weighted mean of updates"):
        train(algorithm, hospitals, work, schedule=SLOW)
    assert not any(each.trained for each in hospitals.values())


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(LATE, ADAM, SGD))
@pytest.mark.parametrize("schedule", [Schedule(rounds=2, buffer=3, durations={"b": 9.0}), Schedule(rounds=2, buffer=1)])
def test_where_all_are_merged_together_it_is_training_in_rounds_bit_for_bit(algorithm, work, schedule):
    """With as large a buffer as there are hospitals, or hospitals that take equally long."""
    plain = train(algorithm, make_hospitals(algorithm, work, hidden=False), work, schedule=Schedule(rounds=2))
    buffered = train(algorithm, make_hospitals(algorithm, work, hidden=False), work, schedule=schedule)
    assert are_same(plain, buffered)


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(LATE, ADAM, SGD))
def test_it_ends_with_the_announced_updates_and_goes_on_from_wherever_it_was_stopped(algorithm, work):
    """Stopped after each merge, and once more after hospitals had committed what the coordinator had not saved."""
    hospitals, folder = make_hospitals(algorithm, work, hidden=False), testbed.MemoryFolder()
    stops = list[tuple[dict[str, bytes], dict[str, testbed.Hospital]]]()
    whole = train(
        algorithm,
        hospitals,
        work,
        schedule=SLOW,
        folder=folder,
        between=lambda _: stops.append((dict(folder.files), runs.copy_hospitals(hospitals))),
    )
    assert {name: each.trained for name, each in hospitals.items()} == SLOW.count_updates(NAMES)
    assert whole.round == 6 and not whole.earlier and whole.merged == {"a": 4, "b": 3, "c": 1}
    assert all(bool(value.isfinite().all()) for value in whole.state.tensors.values())
    for (files, _), (_, then) in [*zip(stops, stops, strict=True), *itertools.pairwise(stops)]:
        parts = runs.copy_hospitals(then)
        again = train(algorithm, parts, work, schedule=SLOW, folder=testbed.MemoryFolder(dict(files)))
        assert are_same(whole, again) and again.received == whole.received
        assert {name: each.trained for name, each in parts.items()} == SLOW.count_updates(NAMES)


def test_a_second_implementation_merges_the_same():
    """By a clock that ticks: everybody's work is followed tick by tick, and the formula of the paper is written out."""
    hospitals = make_hospitals(FedAvg(), SGD, hidden=False)
    found = train(FedAvg(), hospitals, SGD, schedule=SLOW)

    others, ticks = make_hospitals(FedAvg(), SGD, hidden=False), {"a": 2, "b": 3, "c": 7}
    first, _ = testbed.build_opening(FedAvg(), task_of(FedAvg()), SGD, torch.get_default_dtype())
    model = {name: value.double() for name, value in first.items()}
    for name in NAMES:
        others[name](Call("law", 0, "introduce", {}), Message())
    holds = {name: (1, copy.deepcopy(model), ticks[name]) for name in NAMES}
    merged, number = dict[str, int](), 1
    for now in range(1, 8):
        ready = [name for name in NAMES if holds[name][2] == now]
        if not ready:
            continue
        total, change = 0, {name: torch.zeros_like(value) for name, value in model.items()}
        for name in ready:
            begun, start, _ = holds[name]
            question = Message({f"model/{n}": v.float() for n, v in start.items()}, {"algorithm": {}, "best": None})
            answer = others[name](Call("law", begun, "train", merged), question)
            n = int(str(answer.facts["algorithm"]["n"]))  # type: ignore[call-overload, index]
            total += n
            for p in model:
                step = answer.tensors[f"model/{p}"].double() - start[p].float().double()
                change[p] += n * step / math.sqrt(1 + number - begun)
            merged[name] = begun
        model = {name: value.float().double() + change[name] / total for name, value in model.items()}
        number += 1
        holds |= {name: (number, copy.deepcopy(model), now + ticks[name]) for name in ready}
    assert number == 6
    expected = {name: value.float() for name, value in model.items()}
    assert testbed.are_close(section(found.state.tensors, "model"), expected, 1e-6)


@settings(max_examples=20)
@given(st.integers(0, 30), st.integers(0, 2**31 - 1))
def test_an_update_counts_less_the_later_it_comes(staleness, seed):
    g = torch.Generator().manual_seed(seed)
    sent, now, step = (torch.randn(5, generator=g) for _ in range(3))
    reply = Message({"model/w": sent + step, "model/count": torch.tensor(7)}, {"n": 3})
    moved = rebase_update(reply, Message({"model/w": sent}), Message({"model/w": now}), weigh_staleness(staleness))
    assert torch.allclose(moved.tensors["model/w"], now + step / math.sqrt(1 + staleness), atol=1e-5)
    assert moved.tensors["model/count"] == 7 and moved.facts == reply.facts


@pytest.mark.parametrize("rule", [MEAN, Median()])
def test_a_rule_of_merging_sees_late_updates_where_the_others_are(rule: Rule):
    """A hospital whose update is zero says of any model that it should stay: no rule is drawn back to an old one."""

    @dataclass
    class Idle:
        hospital: testbed.Hospital

        def __call__(self, call: Call, message: Message) -> Message:
            reply = self.hospital(call, message)
            if call.request != "train":
                return reply
            return Message({name: message.tensors[name] for name in reply.tensors}, reply.facts)

    made = make_hospitals(FedAvg(), SGD, hidden=False)
    engine = InProcess({name: made[name] if name == "a" else Idle(made[name]) for name in NAMES})
    schedule = Schedule(rounds=4, buffer=3 if rule.fewest > 1 else 1, durations={"b": 2.5, "c": 2.5})
    states = list[Outcome]()
    train(FedAvg(), made, SGD, schedule=schedule, engine=engine, rule=rule, between=states.append)
    for number, merge in enumerate(schedule.plan(NAMES) or ()):
        if "a" not in merge.began or rule.fewest > 1:
            before, after = states[number].state.tensors, states[number + 1].state.tensors
            assert testbed.are_close(before, after, 1e-6)


class Asked:
    """A hospital on another machine: a thread of its own, and a gate that it waits at in some rounds."""

    def __init__(self, worker: Callable[[Call, Message], Message], gate: threading.Event | None) -> None:
        self.worker, self.gate = worker, gate

    def __call__(self, call: Call, message: Message) -> Message:
        if self.gate is not None and call.request == "train" and not self.gate.wait(20):
            raise RuntimeError("nobody opened the gate")
        return self.worker(call, message)


def reach(worker: Callable[[Call, Message], Message]) -> Callable[[str, bytes, float, float], object]:
    pending = Pending(worker)
    return lambda key, question, wait_s, timeout_s: pending.answer(key, question, min(wait_s, 0.05))


def test_on_other_machines_it_is_the_same_and_nobody_waits_for_the_slow_one():
    """The slow hospital is let through only after the second merge: who waited for it would wait for ever."""
    near = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=False), SGD, schedule=SLOW)
    made, gate = make_hospitals(FedAvg(), SGD, hidden=False), threading.Event()
    workers = {name: Asked(each, gate if name == "c" else None) for name, each in made.items()}
    engine = Remote({name: reach(worker) for name, worker in workers.items()}, NAMES)
    far = train(
        FedAvg(), made, SGD, schedule=SLOW, engine=engine, between=lambda at: gate.set() if at.round == 2 else None
    )
    assert are_same(near, far)
    assert {name: each.trained for name, each in made.items()} == SLOW.count_updates(NAMES)


def test_the_calls_that_flare_carries_give_the_same():
    near = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=False), SGD, schedule=SLOW)
    made = make_hospitals(FedAvg(), SGD, hidden=False)
    assert are_same(near, train(FedAvg(), made, SGD, schedule=SLOW, engine=flare(made)))


def test_a_remote_hospital_that_is_not_there_in_its_merge_is_late():
    made, gate = make_hospitals(FedAvg(), SGD, hidden=False), threading.Event()
    engine = Remote({n: reach(Asked(each, gate if n == "c" else None)) for n, each in made.items()}, NAMES)
    with pytest.raises(QuorumLost, match=r"round 5: too few sites answered \(c: late"):
        train(FedAvg(), made, SGD, schedule=replace(SLOW, deadline_s=2.0), engine=engine)
    gate.set()


def test_work_that_was_begun_is_sent_once_and_who_was_gone_is_asked_again():
    calls = list[str]()

    def call_hospital(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        calls.append(key)
        raise Unreachable

    engine = Remote({"a": call_hospital}, ["a"], silence_s=0.0)
    call = Call("run", 1, "train", {})
    for _ in range(3):
        engine.begin(call, {"a": Message()})
    assert engine.ask(call, {"a": Message()}).missing == {"a": "gone"}
    assert len(calls) == 2


def test_who_has_spent_its_budget_is_merged_no_more_and_the_others_go_on():
    """Its place in later merges stays empty, so that nobody else trains more often than was announced."""

    @dataclass
    class Spent:
        hospital: testbed.Hospital

        def __call__(self, call: Call, message: Message) -> Message:
            if call.request == "train" and call.round > 1:
                raise Refused(BUDGET)
            return self.hospital(call, message)

    made = make_hospitals(FedAvg(), SGD, hidden=False)
    engine = InProcess({name: Spent(each) if name == "a" else each for name, each in made.items()})
    outcome = train(FedAvg(), made, SGD, schedule=SLOW, engine=engine)
    assert outcome.retired_sites == {"a"} and outcome.round == 6
    assert {name: each.trained for name, each in made.items()} == {"a": 1, "b": 2, "c": 1}
    assert outcome.merged == {"a": 1, "b": 3, "c": 1}


def test_the_states_of_those_still_at_work_survive_the_disk():
    made, folder, saved = make_hospitals(FedAvg(), SGD, hidden=False), testbed.MemoryFolder(), list[Outcome]()

    def keep(outcome: Outcome) -> None:
        loaded = load_outcome(folder, "law")
        assert loaded is not None and set(loaded.earlier) == set(outcome.earlier)
        for number, state in outcome.earlier.items():
            assert testbed.are_equal(loaded.earlier[number].tensors, state.tensors)
        assert testbed.are_equal(loaded.state.tensors, outcome.state.tensors)
        saved.append(outcome)

    train(FedAvg(), made, SGD, schedule=SLOW, folder=folder, between=keep)
    assert [sorted(each.earlier) for each in saved] == [[], [1], [1, 2], [1, 3], [1], []]


def test_hidden_replies_are_not_merged_late():
    with pytest.raises(ValueError, match="in a sum nobody sees whose update is late"):
        check_buffer(FedAvg(), forms_of(FedAvg(), SGD).reply, SLOW, Trust(secure_sum=True))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"buffer": 0}, "buffer must be >= 1 or null, found 0"),
        ({"durations": {"a": 2.0}}, "buffer is missing"),
        ({"buffer": 2, "durations": {"a": 0.0, "b": math.inf}}, "durations.b must be > 0 and finite, found inf"),
        ({"buffer": 2, "participation": 0.5}, "those who have answered are merged"),
        ({"buffer": 2, "patience": 3}, "rounds cannot be compared"),
    ],
)
def test_schedules_without_a_meaning_are_refused(wrong: Mapping[str, Any], words: str):
    with pytest.raises(SettingsError, match=words):
        Schedule(rounds=3, **wrong)


def test_hospitals_of_these_laws_differ():
    """Else a merge of other hospitals would be the same."""
    assert len({float(table_of(FedAvg(), seed)["train"].x.sum()) for seed in range(3)}) == 3


def test_a_loss_that_comes_after_many_merges_is_on_the_disk():
    """Records of rounds are written in chunks of 32, once they are final; what comes later belongs to an old one."""
    made, folder, last = make_hospitals(FedAvg(), SGD, hidden=False), testbed.MemoryFolder(), list[Outcome]()
    schedule = Schedule(rounds=100, buffer=1, durations={"b": 1.5, "c": 35.0})
    train(FedAvg(), made, SGD, schedule=schedule, folder=folder, between=last.append)
    assert any(32 <= int(number) < 64 for number in last[-1].losses["c"])  # which came after round 90
    loaded = load_outcome(folder, "law")
    assert loaded is not None and loaded.losses.keys() == last[-1].losses.keys()
    for site, series in last[-1].losses.items():
        assert {number: loaded.losses[site][number] for number in series} == series
