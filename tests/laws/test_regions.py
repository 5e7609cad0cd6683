"""Regional coordinators as laws over all methods that can be summed: the same sum and work, and what a region sees."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from laws.test_sums import ADAM, NAMES, SGD, SUMMED, make_hospitals, train
from scipy import stats

import methods
from consilium.testing import testbed
from federation.engine import Answers, Engine, InProcess, Worker, listen_for_answers
from federation.fedavg import FedAvg
from federation.outcome import Outcome
from federation.regions import LARGEST, Masks, Regions, make_region
from federation.rounds import QuorumLost
from federation.summing import KEYS, MASKED, masked_form
from privacy.message import Call, Message, to_bytes
from privacy.secure_sum import add_words, make_key_pair

MEMBERS = {"north": ("a", "c"), "south": ("b",)}


def build_regions(
    hospitals: Mapping[str, Worker],
    members: Mapping[str, tuple[str, ...]] = MEMBERS,
    *,
    masks: Masks = "all",
    top: Callable[[Mapping[str, Worker]], Engine] = InProcess,
) -> Regions:
    """The hospitals behind regional coordinators."""
    workers = {
        region: make_region(InProcess({site: hospitals[site] for site in sites})) for region, sites in members.items()
    }
    return Regions(top(workers), members, masks=masks)


def describe(outcome: Outcome) -> tuple[object, ...]:
    """All that a coordinator knows at the end, but for public keys, which are random."""
    shown = replace(outcome, keys={}, state=Message())
    return (str(shown), outcome.state.facts)


@pytest.mark.repeats(8)
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(SUMMED, ADAM, SGD))
def test_sums_of_regions_are_the_sum_over_all_bit_for_bit(algorithm, work):
    flat = train(algorithm, make_hospitals(algorithm, work, hidden=True), work)
    hospitals = make_hospitals(algorithm, work, hidden=True)
    tall = train(algorithm, hospitals, work, engine=build_regions(hospitals))
    assert testbed.are_equal(flat.state.tensors, tall.state.tensors) and describe(flat) == describe(tall)


def test_it_is_the_same_where_regions_are_asked_over_a_wire():
    flat = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=True), SGD)
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)
    tall = train(FedAvg(), hospitals, SGD, engine=build_regions(hospitals, top=testbed.SerializingEngine))
    assert testbed.are_equal(flat.state.tensors, tall.state.tensors) and describe(flat) == describe(tall)


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3), min_size=1, max_size=9), st.data())
def test_a_sum_hangs_on_no_grouping(words, data):
    parts = [torch.tensor(each) for each in words]
    groups: dict[int, list[torch.Tensor]] = {}
    for part in parts:
        groups.setdefault(data.draw(st.integers(0, 2)), []).append(part)
    by_groups = add_words([add_words(group) for group in groups.values()])
    assert torch.equal(add_words(parts), by_groups)
    by_hand = [sum(column) % 2**64 for column in zip(*words, strict=True)]
    assert [value % 2**64 for value in by_groups.tolist()] == by_hand


@dataclass
class Watching:
    """Hospitals or regions whose messages somebody counts."""

    inner: Engine
    sent: list[tuple[str, str, int]] = field(default_factory=list)
    replies: list[tuple[Call, Mapping[str, Message]]] = field(default_factory=list)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        self.sent += [(call.request, site, len(to_bytes(message))) for site, message in messages.items()]
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        self.replies.append((call, answers.replies))
        return answers


def watch_top(hospitals: Mapping[str, Worker], masks: Masks) -> tuple[Regions, list[Watching]]:
    """Regions whose link to the coordinator is watched."""
    links = list[Watching]()

    def link(workers: Mapping[str, Worker]) -> Engine:
        links.append(Watching(InProcess(workers)))
        return links[0]

    return build_regions(hospitals, masks=masks, top=link), links


def test_one_message_goes_down_to_each_region_and_one_comes_up():
    """A region of two hospitals gets the model once, and answers with words for one."""
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)
    engine, (link,) = watch_top(hospitals, "all")
    train(FedAvg(), hospitals, SGD, engine=engine)
    assert [(request, region) for request, region, _ in link.sent if request == "train"] == [
        ("train", "north"),
        ("train", "south"),
    ] * 2
    size = {region: size for request, region, size in link.sent if request == "train"}
    assert abs(size["north"] - size["south"]) < 40
    for call, replies in link.replies:
        for reply in replies.values() if call.request == "train" else ():
            assert set(reply.tensors) == {MASKED}


def with_keys(hospitals: Mapping[str, testbed.Hospital], number: int) -> dict[str, testbed.Hospital]:
    """The hospitals with other keys for each number, the same each time."""
    return {
        name: replace(each, keys=make_key_pair(random.Random(f"{name} {number}").randbytes))
        for name, each in hospitals.items()
    }


def test_a_region_sees_words_that_say_nothing_where_masks_cancel_among_all():
    """Bytes of what a region adds up, of two of three hospitals, are uniform."""
    words = list[torch.Tensor]()
    for number in range(40):
        hospitals = with_keys(make_hospitals(FedAvg(), SGD, hidden=True), number)
        engine, (link,) = watch_top(hospitals, "all")
        train(FedAvg(), hospitals, SGD, engine=engine)
        words += [r["north"].tensors[MASKED] for call, r in link.replies if call.request == "train"]
    counts = torch.bincount(torch.cat(words).view(torch.uint8).long(), minlength=256)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-7


def test_where_masks_cancel_within_a_region_hospitals_agree_on_secrets_with_its_hospitals_alone():
    """The result is the same, and keys of others are not handed down."""
    asked = dict[str, set[str]]()

    @dataclass
    class Listening:
        inner: testbed.Hospital

        def __call__(self, call: Call, message: Message) -> Message:
            if call.request == "train":
                asked[self.inner.name] = set(message.facts[KEYS])  # type: ignore[arg-type]
            return self.inner(call, message)

    members = {"north": ("a", "b"), "south": ("c", "d")}
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)
    hospitals["d"] = replace(hospitals["c"], name="d", disk=testbed.MemoryFolder(), models=testbed.MemoryFolder())
    hospitals = with_keys(hospitals, 0)
    flat_hospitals = {
        name: replace(each, disk=testbed.MemoryFolder(), models=testbed.MemoryFolder())
        for name, each in hospitals.items()
    }
    flat = train(FedAvg(), flat_hospitals, SGD)
    listening = {name: Listening(each) for name, each in hospitals.items()}
    engine = build_regions(listening, members, masks="region")
    tall = train(FedAvg(), hospitals, SGD, engine=engine)
    assert testbed.are_equal(flat.state.tensors, tall.state.tensors)
    assert asked == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c", "d"}, "d": {"c", "d"}}


def words_of(*values: int) -> Message:
    """A hidden reply."""
    return Message({MASKED: torch.tensor(values)}, {"algorithm": {}, "loss": None, "n": 0})


def ask_fixed(replies: Mapping[str, Message], masks: Masks = "all") -> Answers:
    """What the coordinator gets of hospitals with these replies."""

    def fix_reply(site: str) -> Worker:
        return lambda call, message: replies[site]

    engine = build_regions({site: fix_reply(site) for site in NAMES}, masks=masks)
    return engine.ask(Call("run", 1, "train", {}), {site: Message() for site in NAMES})


def test_the_sum_of_a_region_stands_in_one_reply_and_every_hospital_has_answered():
    answers = ask_fixed({"a": words_of(1, 2), "b": words_of(10, 20), "c": words_of(100, -200)})
    assert list(answers.replies) == ["a", "b", "c"] and not answers.missing
    assert [answers.replies[site].tensors[MASKED].tolist() for site in "abc"] == [[101, -198], [10, 20], [0, 0]]
    form = masked_form(Message())
    assert form.tensors[MASKED].shape == answers.replies["c"].tensors[MASKED].shape


def test_a_reply_of_another_form_spoils_no_region():
    answers = ask_fixed({"a": words_of(1, 2), "b": words_of(1, 2), "c": Message({MASKED: torch.zeros(2)})})
    assert answers.missing == {"c": "malformed"}
    assert answers.replies["a"].tensors[MASKED].tolist() == [1, 2]


def test_a_readable_sum_that_could_wrap_is_refused():
    """Of two regions each may reach half of what 64 bits hold; masked sums are of any size."""
    most = LARGEST // 2 - 1
    good = ask_fixed({"a": words_of(most, 0), "b": words_of(-most, 0), "c": words_of(0, 0)}, "region")
    assert not good.missing
    for bad in (most + 1, -(2**63)):
        answers = ask_fixed({"a": words_of(bad, 0), "b": words_of(0, 0), "c": words_of(0, 0)}, "region")
        assert answers.missing == {"a": "malformed", "c": "malformed"}
        assert not ask_fixed({"a": words_of(bad, 0), "b": words_of(0, 0), "c": words_of(0, 0)}).missing


def test_hospitals_of_a_region_that_is_down_are_missing_with_its_code():
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)

    def fail(call: Call, message: Message) -> Message:
        raise RuntimeError("down")

    workers = {"north": make_region(InProcess({site: hospitals[site] for site in "ac"})), "south": fail}
    engine = Regions(InProcess(workers), MEMBERS)
    with pytest.raises(QuorumLost, match="b: failed"):
        train(FedAvg(), hospitals, SGD, engine=engine)


def test_whoever_listens_hears_of_hospitals_and_each_once():
    heard = list[str]()
    engine = build_regions({site: lambda call, message: Message() for site in NAMES})
    with listen_for_answers(heard.append):
        answers = engine.ask(Call("run", 0, "introduce", {}), dict.fromkeys([*NAMES, "nobody"], Message()))
    assert sorted(heard) == [*NAMES, "nobody"] and answers.missing == {"nobody": "unknown_site"}


def test_a_hospital_belongs_to_one_region():
    with pytest.raises(ValueError, match="in two regions"):
        Regions(InProcess({}), {"north": ("a",), "south": ("a", "b")})


def test_messages_of_regions_are_small_but_for_words():
    """Beyond one hospital's words, a region passes on its hospitals' losses."""
    answers: dict[str, Any] = {f"h{number:03d}": words_of(*range(1000)) for number in range(50)}
    region = make_region(InProcess({site: (lambda reply: lambda call, m: reply)(r) for site, r in answers.items()}))
    question = Message({}, {"groups": [{"sites": [*answers], "facts": {}}]})
    reply = region(Call("run", 1, "train", {}), question)
    assert len(to_bytes(reply)) < 8 * 1000 + 100 * 50 + 500
    assert math.isfinite(len(json.dumps(dict(reply.facts))))


def test_regions_of_regions_give_the_same_sum():
    flat = train(FedAvg(), make_hospitals(FedAvg(), SGD, hidden=True), SGD)
    hospitals = make_hospitals(FedAvg(), SGD, hidden=True)
    inner = build_regions({site: hospitals[site] for site in "ac"}, {"east": ("a",), "west": ("c",)})
    workers = {"north": make_region(inner), "south": make_region(InProcess({"b": hospitals["b"]}))}
    tall = train(FedAvg(), hospitals, SGD, engine=Regions(InProcess(workers), MEMBERS))
    assert testbed.are_equal(flat.state.tensors, tall.state.tensors) and describe(flat) == describe(tall)
