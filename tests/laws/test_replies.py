"""Whatever one hospital says, a round ends, and what the others said counts as if that hospital had not answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import methods
import small_clip
from consilium.testing import runs, testbed
from consilium.testing.runs import ADAM, SGD, TABLES, Case, Ground
from federation import rounds
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.rounds import QuorumLost, Schedule
from federation.verdict import WRONG, find_introduction_problem, find_reply_problem
from privacy.message import Call, Message

PROMPTS = Ground(small_clip.task(), {name: small_clip.table(k, n=14, shift=0.4 * k) for k, name in enumerate("abc")})
CASES = [
    pytest.param(one, methods.work_of(one, ADAM, SGD), ground, id=f"{one.name}-{place}")
    for place, ground, chosen in (("tables", TABLES, methods.names()), ("prompts", PROMPTS, methods.ON_PROMPTS))
    for one in methods.fit(ground.task)
    if one.name in chosen
]
SCALARS = st.sampled_from(
    (None, True, False, -1, 0, 1, 3, 2 * 10**9, 10**400, 0.0, -1.0, 1e300, math.nan, math.inf, -math.inf, "", "b", "3")
)
ODD = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abn", max_size=2), inner)
)
SPOILS: list[Any] = [
    lambda t: None,
    lambda t: t.double(),
    lambda t: t.to(torch.int64),
    lambda t: t.to(torch.complex64),
    lambda t: t * math.nan,
    lambda t: torch.full_like(t, 3e38) if t.is_floating_point() else t,
    lambda t: torch.full_like(t, -1e30) if t.is_floating_point() else t,
    lambda t: t.flatten()[:0],
    lambda t: t.unsqueeze(0),
    lambda t: torch.zeros_like(t),
]


@st.composite
def spoilt(draw: Any, reply: Message) -> Message:
    """The reply with something in it that no honest hospital says."""
    tensors, facts = dict(reply.tensors), {**reply.facts, "algorithm": dict(reply.facts["algorithm"])}
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(("tensor", "renamed", "added", "fact", "own", "lost", "nested")))
        if what in ("tensor", "renamed") and tensors:
            name = draw(st.sampled_from(sorted(tensors)))
            changed = draw(st.sampled_from(SPOILS))(tensors.pop(name))
            if changed is not None:
                tensors[name if what == "tensor" else f"{name}x"] = changed
        elif what == "added":
            tensors[draw(st.sampled_from(("", "model/x", "patient")))] = torch.zeros(2)
        elif what == "fact":
            facts[draw(st.sampled_from(("loss", "n", "algorithm", "x")))] = draw(ODD)
        elif what == "lost" and facts:
            facts.pop(draw(st.sampled_from(sorted(facts))), None)
        elif isinstance(facts.get("algorithm"), dict):
            own = facts["algorithm"]
            name = draw(st.sampled_from((*own, "n", "x")))
            inner = own.get(name)
            if what == "nested" and isinstance(inner, dict) and inner:
                own[name] = {**inner, draw(st.sampled_from(sorted(inner))): draw(ODD)}
            elif what == "nested" and isinstance(inner, list) and inner:
                own[name] = [draw(ODD), *inner[1:]]
            else:
                own[name] = draw(ODD)
    return Message(tensors, facts)


@dataclass
class Saying:
    """An engine whose hospitals have answered."""

    replies: Mapping[str, Message]

    @property
    def sites(self) -> tuple[str, ...]:
        return ("a", "b", "c")

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        missing = {site: "lost" for site in messages if site not in self.replies}
        return Answers({site: one for site, one in self.replies.items() if site in messages}, missing)


class Recording(InProcess):
    """Keeps what hospitals said."""

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = super().ask(call, messages, deadline_s=deadline_s)
        HEARD[call.request, call.round] = answers.replies
        return answers


HEARD: dict[tuple[str, int], Mapping[str, Message]] = {}
LENIENT = Schedule(rounds=9, quorum=0.3)


@cache
def told(algorithm: Any, work: Any, ground: str) -> tuple[Any, Any, Message, Mapping[Any, Mapping[str, Message]]]:
    """The coordinator after one round, the form of a reply, and honest replies of round 2."""
    place = {"tables": TABLES, "prompts": PROMPTS}[ground]
    crew = runs.make_hospitals(Case(algorithm, work, place))
    seen: list[Any] = []
    HEARD.clear()
    limit = replace(LENIENT, rounds=2)
    kept = {"task": place.task, "work": work, "schedule": limit, "engine": Recording(crew), "between": seen.append}
    testbed.train(algorithm, crew, **kept)
    _, forms = testbed.build_opening(algorithm, place.task, work, torch.get_default_dtype())
    before = next(one for one in seen if one.round == (1 if ("train", 2) in HEARD else 0))
    return before, seen[-1], forms.reply, dict(HEARD)


def went(algorithm: Any, before: Any, template: Message, replies: Mapping[str, Message]) -> Any:
    return rounds._run_round(Saying(replies), algorithm, "law", before, template, LENIENT, 0)  # type: ignore[arg-type]


def same(left: Message, right: Message) -> bool:
    return testbed.are_equal(left.tensors, right.tensors) and left.facts == right.facts


@pytest.mark.repeats(12)
@pytest.mark.parametrize(("algorithm", "work", "ground"), CASES)
def test_what_one_hospital_says_ends_no_round_and_changes_nothing_but_its_own_part(algorithm, work, ground):
    before, _, template, heard = told(algorithm, work, "tables" if ground is TABLES else "prompts")
    replies = heard["train", before.round + 1]
    without = went(algorithm, before, template, {site: one for site, one in replies.items() if site != "b"})

    @settings(max_examples=25, deadline=None)
    @given(spoilt(replies["b"]))
    def law(bad: Message) -> None:
        after = went(algorithm, before, template, {**replies, "b": bad})
        lost = [(site, code) for number, site, code in after.missing if number == before.round + 1]
        if lost:
            assert [site for site, _ in lost] == ["b"] and lost[0][1] in WRONG
            assert same(after.state, without.state) and after.losses == without.losses
            assert (after.totals, after.best) == (without.totals, without.best)
        else:
            assert find_reply_problem(bad, template) is None

    law()


@pytest.mark.repeats(10)
@pytest.mark.parametrize(("algorithm", "work", "ground"), CASES)
def test_what_one_hospital_says_of_itself_at_the_end_stops_nobody(algorithm, work, ground):
    _, end, _, heard = told(algorithm, work, "tables" if ground is TABLES else "prompts")
    replies = next(said for (request, _), said in heard.items() if request == "finish")

    @settings(max_examples=10, deadline=None)
    @given(spoilt(replies["b"]))
    def law(bad: Message) -> None:
        after = rounds.finish_training(Saying({**replies, "b": bad}), algorithm, "law", end)
        odd = [(site, code) for number, site, code in after.missing if number == end.round + 1]
        assert [site for site, _ in odd] in ([], ["b"])
        assert after.losses.get("a") == {**end.losses.get("a", {}), **_loss(replies["a"], end.round)}

    law()


def _loss(reply: Message, round_: int) -> dict[str, Any]:
    return {str(round_): reply.facts["loss"]} if reply.facts["n"] else {}


GOOD = {"algorithm": {"n": 3}, "loss": 0.5, "n": 4}


@pytest.mark.parametrize(
    "change",
    [
        {"loss": None},
        {"n": 0},
        {"n": 2 * 10**9},
        {"algorithm": {"n": 0}},
        {"algorithm": {"n": 2 * 10**9}},
        {"loss": 1},
        {"loss": True},
    ],
)
def test_a_loss_goes_with_the_patients_who_were_scored_and_numbers_are_those_of_a_hospital(change):
    template = Message({}, {"algorithm": {"n": 3}})
    assert find_reply_problem(Message({}, GOOD), template) is None
    assert find_reply_problem(Message({}, {**GOOD, **change}), template) == "malformed"


@pytest.mark.parametrize(
    "place", [lambda x: x, lambda x: [0.5, x], lambda x: {"a": [x]}], ids=["bare", "list", "inner"]
)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e300, -1e300])
def test_a_number_of_a_methods_facts_is_bounded_on_both_sides(number, place):
    template = Message({}, {"algorithm": {"n": 3, "x": place(0.5)}})
    for x, code in ((-0.5, None), (number, "non_finite")):
        assert find_reply_problem(Message({}, {**GOOD, "algorithm": {"n": 3, "x": place(x)}}), template) == code


def test_where_nobody_says_anything_of_use_the_round_is_lost_by_name():
    algorithm, work = FedAvg(), ADAM
    before, _, template, heard = told(algorithm, work, "tables")
    empty = {
        site: Message(one.tensors, {**one.facts, "algorithm": {"n": 0}})
        for site, one in heard["train", before.round + 1].items()
    }
    with pytest.raises(QuorumLost, match="a: malformed, b: malformed, c: malformed"):
        went(algorithm, before, template, empty)


def test_a_reply_of_the_right_form_that_the_method_cannot_take_counts_for_nothing():
    class Strict(FedAvg):
        def merge(self, state, parts):
            assert all(one.facts["n"] != 99_999 for one in parts.values())
            return super().merge(state, parts)

    before, _, template, heard = told(FedAvg(), ADAM, "tables")
    replies = heard["train", before.round + 1]
    own = {**replies["b"].facts, "algorithm": {**replies["b"].facts["algorithm"], "n": 99_999}}
    bad = Message(replies["b"].tensors, own)
    assert find_reply_problem(bad, template) is None
    after = went(Strict(), before, template, {**replies, "b": bad})
    without = went(Strict(), before, template, {site: one for site, one in replies.items() if site != "b"})
    assert [one for one in after.missing if one not in before.missing] == [(before.round + 1, "b", "malformed")]
    assert same(after.state, without.state)
    assert (after.losses, after.totals, after.merged) == (without.losses, without.totals, without.merged)


def test_an_introduction_that_the_method_cannot_take_is_lost_by_name():
    class Strict(FedAvg):
        def start(self, initial, introductions):
            for one in introductions.values():
                float(str(one.facts.get("x", 1)))
            return super().start(initial, introductions)

    good, bad = Message({}, {"algorithm": {}}), Message({}, {"algorithm": {"x": "none"}})
    for said in (bad, Message({}, {"algorithm": None}), Message({"w": torch.tensor([math.nan])}, {"algorithm": {}})):
        engine = Saying({"a": good, "b": said, "c": good})
        with pytest.raises(QuorumLost, match=r"\(b: "):
            rounds._ask_introductions(engine, Strict(), "law", {}, dict.fromkeys("abc", Message()), good)  # type: ignore[arg-type]


@pytest.mark.repeats(10)
@pytest.mark.parametrize(("algorithm", "work", "ground"), CASES)
def test_an_introduction_of_another_form_is_lost_by_name_and_any_other_can_be_sent_on(algorithm, work, ground):
    introductions = dict(told(algorithm, work, "tables" if ground is TABLES else "prompts")[3]["introduce", 0])
    initial, forms = testbed.build_opening(algorithm, ground.task, work, torch.get_default_dtype())
    openings = dict.fromkeys("abc", Message())

    @settings(max_examples=25, deadline=None)
    @given(spoilt(introductions["b"]))
    def law(bad: Message) -> None:
        engine, lost = Saying({**introductions, "b": bad}), {}
        try:
            start = rounds._ask_introductions(engine, algorithm, "law", initial, openings, forms.introduction)  # type: ignore
        except QuorumLost as error:
            lost = dict(error.missing)
        if lost:
            assert set(lost) == {"b"} and lost["b"] in WRONG
            return
        assert find_introduction_problem(bad, forms.introduction) is None
        sent = [algorithm.send(start.state, site, Call("law", 1, "train", {})) for site in "abc"]
        assert all(bool(tensor.isfinite().all()) for one in sent for tensor in one.tensors.values())

    law()


@pytest.mark.parametrize("shares", [[0.2, 0.3, 0.5], [], [1e30, 0.0], [-5.0, 6.0], [0.2, 0.2], [math.nan, 1.0]])
def test_shares_of_classes_that_are_none_stop_nobody_elses_losses(shares):
    method = methods.SETTLED["fedsld"]
    initial, forms = testbed.build_opening(method, TABLES.task, SGD, torch.get_default_dtype())
    good = Message({}, {"algorithm": {"n": 5, "shares": [0.4, 0.6]}})
    bad = Message({}, {"algorithm": {"n": 5, "shares": shares}})
    with pytest.raises(QuorumLost, match=r"\(b: "):
        rounds._ask_introductions(
            Saying({"a": good, "b": bad, "c": good}),  # type: ignore[arg-type]
            *(method, "law", initial, dict.fromkeys("abc", Message()), forms.introduction),
        )
