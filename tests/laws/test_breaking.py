"""What one hospital that says anything cannot do: choose the round, end training, hide a large update, stop the run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from consilium.testing import testbed
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.merging import Krum, Median, Rule
from federation.notices import find_outliers
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from personalize.moments import Moments
from privacy.message import Call, Message
from privacy.release.gate import BUDGET
from tests.laws.test_merging import Poisoning, make_hospitals, train

SGD = Work(optimizer="sgd", lr=0.05, batch=8, epochs=1)


class Silent:
    """An engine in which hospital e scores only the models of the given rounds."""

    def __init__(self, inner: InProcess, scored: set[int]) -> None:
        self.inner, self.scored, self.sites = inner, scored, inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        replies = dict(answers.replies)
        if call.request != "introduce" and call.round - 1 not in self.scored:
            replies["e"] = Message(replies["e"].tensors, {**replies["e"].facts, "n": 0, "loss": None})
        return Answers(replies, answers.missing)


@pytest.mark.parametrize("rule", [Median(), Krum()], ids=lambda rule: rule.name)
def test_a_hospital_that_scores_one_round_does_not_choose_it(rule: Rule):
    hospitals = make_hospitals(FedAvg(), SGD)
    outcome = train(
        FedAvg(), hospitals, SGD, rule=rule, engine=Silent(InProcess(hospitals), {1}), schedule=Schedule(rounds=12)
    )
    assert outcome.totals[str(outcome.best)] == min(outcome.totals.values())


@pytest.mark.parametrize("silent", [True, False])
def test_who_stays_silent_or_is_lost_does_not_end_training(silent: bool):
    hospitals = make_hospitals(FedAvg(), SGD)
    inner = InProcess(hospitals)
    lost = testbed.LossyEngine(inner, frozenset({(4, "e"), (5, "e"), (6, "e")}))
    train(
        FedAvg(), hospitals, SGD, engine=Silent(inner, {1}) if silent else lost,
        schedule=Schedule(rounds=6, patience=2, quorum=0.8),
    )  # fmt: skip
    assert hospitals["a"].trained == 6


class Retiring:
    """An engine in which hospital e has spent its budget from round 3 on."""

    def __init__(self, inner: InProcess) -> None:
        self.inner, self.sites = inner, inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        gone = {site for site in messages if site == "e" and call.request == "train" and call.round >= 3}
        answers = self.inner.ask(call, {s: m for s, m in messages.items() if s not in gone}, deadline_s=deadline_s)
        return Answers(answers.replies, {**answers.missing, **dict.fromkeys(gone, BUDGET)})


def test_no_round_is_asked_of_fewer_hospitals_than_a_rule_needs():
    hospitals, states = make_hospitals(FedAvg(), SGD), list[Any]()
    train(
        FedAvg(), hospitals, SGD, rule=Median(), engine=Retiring(InProcess(hospitals)),
        schedule=Schedule(rounds=8, participation=0.6), between=states.append,
    )  # fmt: skip
    rounds = {outcome.round: outcome.merged for outcome in states if outcome.round}
    lost = [number for number, merged in rounds.items() if number not in merged.values()]
    assert len(lost) <= 1  # the one in which the hospital says that it retires


def change(factor: float, role: str) -> Any:
    def poison(reply: Message, sent: Message) -> Message:
        return Message({n: factor * v if n.startswith(role) else v for n, v in reply.tensors.items()}, reply.facts)

    return poison


def test_false_controls_are_noticed():
    hospitals = make_hospitals(Scaffold(), SGD)
    engine = Poisoning(InProcess(hospitals), change(1e4, "control/"))
    outcome = train(Scaffold(), hospitals, SGD, engine=engine)
    assert "e" in {strange.site for strange in find_outliers(outcome.updates)}


def test_a_released_number_that_is_false_does_not_hide_a_large_update():
    hospitals = make_hospitals(FedAvg(), SGD)
    counts = {n: {s: len(rows.y) for s, rows in each.splits.items()} for n, each in hospitals.items()}
    counts["e"] |= {"train": 10**6}

    def lie(reply: Message, sent: Message) -> Message:
        tensors = {n: sent.tensors[n] + 1e4 * (v - sent.tensors[n]) for n, v in reply.tensors.items()}
        return Message(tensors, {**reply.facts, "algorithm": {"n": 10**6}})

    outcome = train(FedAvg(), hospitals, SGD, engine=Poisoning(InProcess(hospitals), lie), counts=counts)
    assert "e" in {strange.site for strange in find_outliers(outcome.updates)}


def test_numbers_whose_squares_are_infinite_do_not_stop_the_run():
    hospitals = make_hospitals(Moments(radius=4.0), SGD)

    def poison(reply: Message, sent: Message) -> Message:
        return Message({n: torch.full_like(v, 1e300) for n, v in reply.tensors.items()}, reply.facts)

    engine = Poisoning(InProcess(hospitals), poison)
    updates = train(Moments(radius=4.0), hospitals, SGD, engine=engine).updates
    numbers = [x for series in updates.values() for record in series.values() for x in record.values()]
    assert numbers and all(math.isfinite(x) for x in numbers)
    assert "e" in {strange.site for strange in find_outliers(updates)}


class Fussy(FedAvg):
    """A method that cannot merge a reply of 13 examples."""

    averaging = True

    def merge(self, state: Message, replies: Mapping[str, Message]) -> Message:
        if any(reply.facts["n"] == 13 for reply in replies.values()):
            raise ValueError("13 examples")
        return FedAvg.merge(self, state, replies)


def test_replies_that_are_not_merged_are_not_recorded_as_merged():
    hospitals, states = make_hospitals(Fussy(), SGD), list[Any]()

    def poison(reply: Message, sent: Message) -> Message:
        return Message(reply.tensors, {**reply.facts, "algorithm": {"n": 13}})

    train(
        Fussy(), hospitals, SGD, rule=Krum(kept=4), engine=Poisoning(InProcess(hospitals), poison),
        schedule=Schedule(rounds=6, quorum=0.8), between=states.append,
    )  # fmt: skip
    pairs = list(itertools.pairwise(states))
    still = [after for before, after in pairs if testbed.are_equal(before.state.tensors, after.state.tensors)]
    assert still and all(outcome.round not in outcome.merged.values() for outcome in still)
