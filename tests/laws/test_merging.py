"""Rules of merging as laws over all methods: which may have one, what each computes, and what it withstands."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods
from consilium.testing import testbed
from federation.algorithm import Algorithm, is_averaging, is_summable
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.merging import Krum, Mean, Median, NormBounded, Rule, TrimmedMean, update_norm
from federation.rounds import QuorumLost, Schedule
from federation.summing import has_words
from privacy.message import Call, Message
from tests.laws.test_sums import ADAM, SGD, difference, forms_of, table_of, task_of

NAMES = ("a", "b", "c", "d", "e")
RULES = (Mean(), Median(), TrimmedMean(), Krum(), NormBounded())
ROUNDS = Schedule(rounds=3)


def make_hospitals(algorithm: Algorithm, work: Work, names: tuple[str, ...] = NAMES) -> dict[str, testbed.Hospital]:
    splits = {name: table_of(algorithm, seed) for seed, name in enumerate(names)}
    return testbed.make_federation(algorithm, splits, task=task_of(algorithm), work=work)


def train(algorithm: Any, hospitals: Mapping[str, testbed.Hospital], work: Work, **more: Any) -> Any:
    options = {"task": task_of(algorithm), "work": work, "schedule": ROUNDS, **more}
    return testbed.train(algorithm, hospitals, **options)


class Replacing:
    """A method whose replies all get the tensors of their mean before they are merged."""

    def __init__(self, inner: Algorithm) -> None:
        self.inner, self.differences = inner, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __hash__(self) -> int:
        return hash(self.inner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replacing) and self.inner == other.inner

    def merge(self, state: Message, replies: Mapping[str, Message]) -> Message:
        weights = getattr(self.inner, "merge_weights", None) or getattr(self.inner, "weights", None)
        sizes = [float(str(r.facts.get("n", 1))) if weights != "uniform" else 1.0 for r in replies.values()]
        tensors = {
            name: (
                sum(n / sum(sizes) * r.tensors[name].double() for n, r in zip(sizes, replies.values(), strict=True))
                if like.is_floating_point()
                else torch.stack([r.tensors[name] for r in replies.values()]).amax(dim=0)
            )
            for name, like in next(iter(replies.values())).tensors.items()
        }
        form = next(iter(replies.values())).tensors
        mean = {name: value.to(form[name].dtype) for name, value in tensors.items()}
        means = {site: Message(mean, reply.facts) for site, reply in replies.items()}
        merged = self.inner.merge(state, replies)
        self.differences.append(difference(self.inner.merge(state, means), merged))
        return merged


@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(methods.ALL, ADAM, SGD))
def test_a_method_is_averaging_if_and_only_if_means_say_all_that_it_merges(algorithm, work):
    form = forms_of(algorithm, work).reply
    if not has_words(form) or any(name.startswith("sum/") for name in form.tensors):  # whole numbers are no mean
        assert not is_averaging(algorithm)
        return
    spied = Replacing(algorithm)
    train(spied, make_hospitals(algorithm, work, NAMES[:3]), work)
    is_mean = max(spied.differences) < 1e-5
    assert is_averaging(algorithm) == (is_mean and algorithm.name not in DECLINES)


DECLINES = {"dp_head"}
"""It averages, and says how much noise the mean has: a rule's result would have another noise than it says."""


def test_what_can_be_summed_can_be_averaged():
    for each in methods.ALL:
        assert is_averaging(each) or not is_summable(each) or each.name == "fedsgd"


AVERAGING = [each for each in methods.ALL if is_averaging(each)]


@pytest.mark.repeats(12)
@pytest.mark.parametrize("rule", [r for r in RULES if r.name != "mean"], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(AVERAGING, ADAM, SGD))
def test_every_averaging_method_trains_by_every_rule_and_hospitals_that_agree_get_what_the_mean_gives(
    algorithm, work, rule
):
    finite = train(algorithm, make_hospitals(algorithm, work), work, rule=rule).state.tensors
    assert all(bool(value.double().isfinite().all()) for value in finite.values())
    states = []
    for each_rule in (rule, Mean()):
        same = make_hospitals(algorithm, work)
        for hospital in same.values():  # the same patients, and the same draws
            hospital.name, hospital.splits = "same", table_of(algorithm, 1)
        states.append(train(algorithm, same, work, rule=each_rule, engine=Renamed(InProcess(same))).state)
    assert difference(*states) < 1e-5


class Renamed:
    """An engine whose hospitals all believe that they have one name: equal patients then give equal replies."""

    def __init__(self, inner: InProcess) -> None:
        self.inner, self.sites = inner, inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        merged = {"same": min(call.merged.values())} if call.merged else {}
        return self.inner.ask(Call(call.run, call.round, call.request, merged), messages, deadline_s=deadline_s)


# What each rule computes, beside a literal second implementation.

NUMBERS = st.lists(st.floats(-50, 50, width=32), min_size=6, max_size=6)


def replies_of(rows: list[list[float]]) -> dict[str, Message]:
    return {
        f"s{k}": Message({"model/w": torch.tensor(row[:4]).view(2, 2), "model/b": torch.tensor(row[4:])}, {"n": 1 + k})
        for k, row in enumerate(rows)
    }


def rows_of(replies: Mapping[str, Message]) -> list[list[float]]:
    return [torch.cat([r.tensors["model/w"].flatten(), r.tensors["model/b"]]).tolist() for r in replies.values()]


SENT = {f"s{k}": Message({"model/w": torch.ones(2, 2), "model/b": torch.zeros(2)}) for k in range(9)}
START = [1.0] * 4 + [0.0] * 2


@given(st.lists(NUMBERS, min_size=5, max_size=9))
def test_median_and_trimmed_mean_are_those_of_each_number(rows):
    columns = list(zip(*rows, strict=True))
    for row in rows_of(Median().combine(replies_of(rows), SENT)):
        assert row == pytest.approx([statistics.median(column) for column in columns], abs=1e-4)
    for trimmed in (1, 2):
        wanted = [statistics.fmean(sorted(column)[trimmed : len(column) - trimmed]) for column in columns]
        for row in rows_of(TrimmedMean(trimmed=trimmed).combine(replies_of(rows), SENT)):
            assert row == pytest.approx(wanted, abs=1e-4)


@given(st.lists(NUMBERS, min_size=5, max_size=9), st.integers(1, 3))
def test_krum_is_the_mean_of_the_replies_with_the_nearest_others(rows, kept):
    def score(k: int) -> float:
        distances = sorted(math.dist(rows[k], other) ** 2 for j, other in enumerate(rows) if j != k)
        return sum(distances[: len(rows) - 1 - 2])

    scores = [score(k) for k in range(len(rows))]
    limit = sorted(scores)[kept - 1]
    replies = Krum(kept=kept).combine(replies_of(rows), SENT)
    assert [*replies] == [*replies_of(rows)] and len({tuple(row) for row in rows_of(replies)}) == 1
    nearest = [k for k in range(len(rows)) if scores[k] <= limit * (1 + 1e-3) + 1e-3]
    means = [np.mean([rows[k] for k in chosen], axis=0) for chosen in itertools.combinations(nearest, kept)]
    assert any(np.allclose(rows_of(replies)[0], mean, atol=1e-3) for mean in means)


@given(st.lists(NUMBERS, min_size=3, max_size=9), st.none() | st.floats(0.1, 100))
def test_norm_bounded_shortens_updates_and_keeps_their_direction(rows, bound):
    replies = replies_of(rows)
    norms = [math.dist(row, START) for row in rows]
    limit = statistics.median(norms) if bound is None else bound
    for before, after, norm in zip(rows, rows_of(NormBounded(bound=bound).combine(replies, SENT)), norms, strict=True):
        share = min(1.0, limit / norm) if norm else 1.0
        assert after == pytest.approx([s + share * (x - s) for s, x in zip(START, before, strict=True)], abs=1e-4)


def test_norms_are_over_all_tensors_and_of_differences_as_they_are():
    three, four, nine, twelve, zero = (torch.tensor([value]) for value in (3.0, 4.0, 9.0, 12.0, 0.0))
    reply = Message({"model/w": three, "control/w": four, "buffer/v": twelve})
    sent = Message({"model/w": zero, "control/w": nine, "model/v": zero})
    assert update_norm(reply, sent) == pytest.approx(13.0)


# What they withstand.


class Poisoning:
    """An engine in which hospital e sends what `poison` makes of its reply."""

    def __init__(self, inner: InProcess, poison: Any) -> None:
        self.inner, self.poison, self.sites = inner, poison, inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        if call.request != "train":
            return answers
        return Answers({**answers.replies, "e": self.poison(answers.replies["e"], messages["e"])}, answers.missing)


def scale_update(times: float) -> Any:
    def poison(reply: Message, sent: Message) -> Message:
        tensors = {n: sent.tensors[n] + times * (v - sent.tensors[n]) for n, v in reply.tensors.items()}
        return Message(tensors, reply.facts)

    return poison


@pytest.mark.parametrize("times", [100.0, -10.0])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_scaled_update_moves_the_mean_and_no_other_rule_far(rule: Rule, times: float):
    algorithm = FedAvg()

    def run(poison: Any) -> dict[str, torch.Tensor]:
        hospitals = make_hospitals(algorithm, SGD)
        engine = Poisoning(InProcess(hospitals), poison)
        return dict(train(algorithm, hospitals, SGD, rule=rule, engine=engine).state.tensors)

    honest, poisoned = run(scale_update(1.0)), run(scale_update(times))
    start = testbed.build_opening(algorithm, task_of(algorithm), SGD, torch.float32)[0]
    way = math.sqrt(sum(float((honest[f"model/{n}"] - v).square().sum()) for n, v in start.items()))
    off = math.sqrt(sum(float((honest[n] - v).square().sum()) for n, v in poisoned.items()))
    assert (off > 2 * way) == (rule.name == "mean"), off / way


def test_false_numbers_of_examples_and_false_losses_move_nothing():
    """The released counts stand in for n, and by a robust rule the median loss chooses the round."""
    algorithm = FedAvg()

    def lie(reply: Message, sent: Message) -> Message:
        facts = {**reply.facts, "algorithm": {"n": 9_000_000}, "n": 9_000_000 if reply.facts["n"] else 0}
        return Message(reply.tensors, facts)

    hospitals = make_hospitals(algorithm, SGD)
    counts = {n: {s: len(rows.y) for s, rows in each.splits.items()} for n, each in hospitals.items()}
    lied = train(algorithm, hospitals, SGD, counts=counts, engine=Poisoning(InProcess(hospitals), lie))
    honest = train(algorithm, make_hospitals(algorithm, SGD), SGD)
    assert testbed.are_equal(lied.state.tensors, honest.state.tensors)
    assert lied.totals == honest.totals and lied.best == honest.best
    assert all(record["n"] == 9_000_000 for record in lied.updates["e"].values())  # type: ignore[index]

    def score(reply: Message, sent: Message) -> Message:
        return Message(reply.tensors, {**reply.facts, "loss": None if reply.facts["loss"] is None else 1e6})

    hospitals = make_hospitals(algorithm, SGD)
    robust = train(algorithm, hospitals, SGD, rule=Median(), engine=Poisoning(InProcess(hospitals), score))
    assert all(float(str(loss)) < 1e3 for loss in robust.totals.values())


# Hospitals that are lost.


def test_too_few_replies_for_a_rule_lose_the_round_and_are_never_merged():
    algorithm, hospitals = FedAvg(), make_hospitals(FedAvg(), SGD)
    engine = testbed.LossyEngine(InProcess(hospitals), frozenset({(2, "a")}))
    states = list[Any]()
    schedule = Schedule(rounds=3, quorum=0.5)
    outcome = train(
        algorithm, hospitals, SGD, rule=Krum(), engine=engine, schedule=schedule, between=lambda o: states.append(o)
    )
    assert difference(states[1].state, states[2].state) == 0.0 and states[2].merged == states[1].merged
    assert difference(states[2].state, states[3].state) > 0 and set(outcome.merged.values()) == {3}
    assert outcome.missing == ((2, "a", "lost"),)


def test_with_a_full_quorum_a_missing_reply_stops_the_run():
    hospitals = make_hospitals(FedAvg(), SGD)
    engine = testbed.LossyEngine(InProcess(hospitals), frozenset({(2, "a")}))
    with pytest.raises(QuorumLost):
        train(FedAvg(), hospitals, SGD, rule=Krum(), engine=engine)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trimmed=2), Krum(attackers=1), Krum(kept=5), NormBounded()])
def test_a_rule_is_computed_with_its_fewest_replies(rule: Rule):
    rows = [[float(k * j) for j in range(6)] for k in range(rule.fewest)]
    assert all(np.isfinite(row).all() for row in rows_of(rule.combine(replies_of(rows), SENT)))


def test_order_of_sites_does_not_matter():
    rows = [[math.sin(1 + 7 * k + 3 * j) for j in range(6)] for k in range(5)]  # no two distances are equal
    replies = replies_of(rows)
    for rule, order in itertools.product(RULES, itertools.permutations(replies)):
        turned = rule.combine({site: replies[site] for site in order}, SENT)
        straight = rule.combine(replies, SENT)
        assert all(difference(turned[site], straight[site]) == 0 for site in straight)
