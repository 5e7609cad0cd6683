"""Nothing leaves that its request does not declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from pydantic import Field
from torch import Tensor

from pipelines.requests import REQUESTS
from privacy.dp.events import NOTHING, describe_event
from privacy.message import Call, Message, to_bytes
from privacy.release import ledger as ledgers
from privacy.release.form import (
    ABSENT,
    MOST_TEXT,
    RECORDS,
    Absent,
    Misformed,
    Of,
    Shape,
    Text,
    compare_with_forms,
    fields_of,
    find_flaws,
    kinds_of,
    read_fitting_form,
    read_form,
)
from privacy.release.gate import UNDECLARED, Refused, release_reply
from privacy.release.policy import REQUESTS as NAMES
from privacy.release.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Sums:
    """A reply of a request that is made up."""

    name: Annotated[str, Of.NAME, Field(max_length=20)]
    count: Annotated[int, Of.COUNT, Field(ge=0)] | Absent = ABSENT
    nothing: Annotated[float | None, Of.SCORE]
    long: Annotated[list[float], Of.SCORE, Text(40)] | Absent = ABSENT
    total: Annotated[Tensor, Of.SUM, Shape(axes=1, numbers=4, whole=False)]
    parts: Annotated[Mapping[str, Tensor], Of.PARAMETER, Shape(axes=2, names="part/[a-z]+")] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class SumsOfLabels:
    """The same sums, of labels."""

    name: Annotated[str, Of.NAME]
    nothing: Annotated[float | None, Of.SCORE]
    total: Annotated[Tensor, Of.LABEL, Shape(axes=1)]


@dataclass(frozen=True, kw_only=True)
class Images:
    """Another one."""

    images: Annotated[Tensor, Of.IMAGE, Shape(axes=4)]


GOOD = Message({"total": torch.zeros(4)}, {"name": "a", "nothing": None})
WRONG = {
    "a fact more": (Message(GOOD.tensors, {**GOOD.facts, "patients": ["P1"]}), "'patients': extra_forbidden"),
    "a fact less": (Message(GOOD.tensors, {"name": "a"}), "'nothing': missing"),
    "of another type": (Message(GOOD.tensors, {**GOOD.facts, "count": "3"}), "'count': int_type"),
    "out of range": (Message(GOOD.tensors, {**GOOD.facts, "count": -1}), "'count': greater_than_equal"),
    "too long a text": (Message(GOOD.tensors, {**GOOD.facts, "name": "a" * 21}), "'name': string_too_long"),
    "too long a list": (Message(GOOD.tensors, {**GOOD.facts, "long": [0.1] * 20}), "'long': 100 characters"),
    "a tensor more": (Message({**GOOD.tensors, "images": torch.zeros(2, 1, 8)}, GOOD.facts), "'images': not declared"),
    "a tensor less": (Message({}, GOOD.facts), "'total': missing"),
    "more axes": (Message({"total": torch.zeros(2, 2)}, GOOD.facts), "'total': 2 axes"),
    "more numbers": (Message({"total": torch.zeros(5)}, GOOD.facts), "'total': 5 numbers"),
    "whole numbers": (Message({"total": torch.zeros(4, dtype=torch.int32)}, GOOD.facts), "'total': torch.int32"),
    "another name": (Message({**GOOD.tensors, "part/A": torch.zeros(2)}, GOOD.facts), "'part/A': not declared"),
    "a name from outside": (Message({**GOOD.tensors, "\n" + "é" * 99: torch.zeros(2)}, GOOD.facts), r"'\n\xe9"),
}  # fmt: skip


def test_a_reply_of_its_form_has_no_problem() -> None:
    assert find_flaws(Sums, GOOD, closed=True) == []
    more = Message({**GOOD.tensors, "part/a": torch.zeros(2, 2)}, {**GOOD.facts, "count": 3, "long": [0.5]})
    assert find_flaws(Sums, more, closed=True) == []


@pytest.mark.parametrize("what", WRONG)
def test_each_difference_from_the_form_is_a_problem_and_its_value_is_not_told(what: str) -> None:
    reply, told = WRONG[what]
    (problem,) = map(str, find_flaws(Sums, reply, closed=True))
    assert told in problem and "P1" not in problem and problem.isascii() and problem.isprintable()


def test_a_question_may_have_facts_of_a_later_version_and_a_reply_may_not() -> None:
    more = Message(GOOD.tensors, {**GOOD.facts, "new": 1})
    assert find_flaws(Sums, more, closed=False) == [] and find_flaws(Sums, more, closed=True) != []


def test_of_several_forms_one_is_enough_and_the_nearest_is_told() -> None:
    images = Message({"images": torch.zeros(2, 1, 8, 8)})
    assert compare_with_forms((Sums, Images), GOOD).flaws == () == compare_with_forms((Sums, Images), images).flaws
    assert [*map(str, compare_with_forms((), GOOD).flaws)] == ["reply: its request declares none"]
    (flaw,) = compare_with_forms((Images, Sums), Message(GOOD.tensors, {"name": "a"})).flaws
    assert str(flaw) == "'nothing': missing"
    assert compare_with_forms((Sums, Images), images).kinds == {Of.IMAGE}
    assert Of.IMAGE in compare_with_forms((Sums, Images), Message()).kinds, "of no form: it may be anything"


def test_a_reply_that_has_two_forms_is_what_both_say() -> None:
    assert compare_with_forms((Sums, SumsOfLabels), GOOD).kinds == kinds_of(Sums) | kinds_of(SumsOfLabels)


def test_a_reply_is_read_as_the_form_that_it_has() -> None:
    images = Message({"images": torch.zeros(2, 1, 8, 8)})
    assert isinstance(read_fitting_form((Sums, Images), images), Images)
    later = Message(GOOD.tensors, {**GOOD.facts, "new": 1})
    assert read_fitting_form((Images, Sums), later) == read_fitting_form((Sums,), GOOD)
    with pytest.raises(Misformed, match="'nothing': missing"):
        read_fitting_form((Images, Sums), Message(GOOD.tensors, {"name": "a"}))


@dataclass(frozen=True, kw_only=True)
class _NoShape:
    x: Annotated[Tensor, Of.SUM]


@dataclass(frozen=True, kw_only=True)
class _ShapeOfAFact:
    x: Annotated[int, Of.SUM, Shape(axes=1)]


@dataclass(frozen=True, kw_only=True)
class _TwoThings:
    x: Annotated[int, Of.SUM, Of.COUNT]


@dataclass(frozen=True, kw_only=True)
class _Default:
    x: Annotated[int, Of.SUM] = 3


@pytest.mark.parametrize("form", [_NoShape, _ShapeOfAFact, _TwoThings, _Default])
def test_a_form_that_says_too_little_or_two_things_is_none(form: type) -> None:
    with pytest.raises(TypeError, match=r"\.x: "):
        fields_of(form)


def released(tmp_path, reply: Message, forms, policy: Policy | None = None) -> str | None:
    """The code with which the gate refuses a reply; None: it leaves. Of a refused one nothing but the code is booked as
    left.
    """
    ledger = tmp_path / "ledger.jsonl"
    place = {"policy": policy or Policy(), "ledger": ledger, "recipient": "coordinator", "now": "n", "replay": False}
    code = None
    try:
        left = release_reply(
            to_bytes(reply), describe_event(NOTHING), forms=forms, call=Call("r/x", 0, "ingest", {}), **place
        )
    except Refused as refused:
        code, left = refused.code, Message()
    *_, line = ledgers.read_lines(ledger)
    assert (line["refused"], line["event"]) == (code, describe_event(NOTHING)) and (line["bytes"] == 0) == (
        code is not None
    )
    assert (left.facts, left.tensors.keys()) == (
        (reply.facts, reply.tensors.keys()) if code is None else ({}, {}.keys())
    )
    return code


def test_the_gate_lets_out_what_is_declared_and_nothing_else(tmp_path) -> None:
    assert released(tmp_path, GOOD, (Sums,)) is None
    assert released(tmp_path, Message({"images": torch.zeros(2, 1, 8, 8)}), (Sums,)) == UNDECLARED
    assert released(tmp_path, GOOD, ()) == UNDECLARED


def test_patients_images_leave_only_where_the_policy_says_pooling(tmp_path) -> None:
    images = Message({"images": torch.zeros(2, 1, 8, 8)})
    assert released(tmp_path, images, (Images,)) == "policy_pooling"
    assert released(tmp_path, images, (Images,), Policy(pooling=True)) is None


def test_the_requests_that_a_policy_names_are_those_that_are_declared() -> None:
    assert (*REQUESTS,) == NAMES, "a request has its place in both, in the order of a run"


REPLIES = [(request.name, form) for request in REQUESTS.values() for form in request.replies]


@pytest.mark.parametrize(("name", "form"), REPLIES, ids=[f"{name}-{form.__name__}" for name, form in REPLIES])
def test_every_field_of_every_reply_says_what_it_is_of_patients(name: str, form: type) -> None:
    assert [one.name for one in fields_of(form) if one.of is None] == []
    assert form.__doc__ and not form.__doc__.startswith(form.__name__), "say what it is"


def test_a_fact_that_may_be_longer_than_an_image_is_no_number_of_patients_images() -> None:
    """Longer are words and lists of runs and rounds, and what a method says beside its tensors, which is rehearsed."""
    long = {(name, one.name, one.of) for name, form in REPLIES for one in fields_of(form) if one.most > MOST_TEXT}
    assert long == {
        ("figures", "rounds", Of.NAME),
        ("holds", "known", Of.NAME),
        ("introduce", "algorithm", Of.PARAMETER),
        ("train", "algorithm", Of.PARAMETER),
        ("report", "knew", Of.NAME),
        ("report", "left", Of.COUNT),
        ("report", "sent", Of.COUNT),
        ("report", "statement", Of.NAME),
    }


def test_the_requests_whose_replies_may_hold_patients_own_images_are_these() -> None:
    assert {name for name, form in REPLIES if kinds_of(form) & RECORDS} == {"pool", "sample"}


def test_what_is_read_is_its_form_without_what_lies_beside_it() -> None:
    message = Message({**GOOD.tensors, "part/a": torch.ones(2)}, {**GOOD.facts, "new": 1, "count": 3})
    found = read_form(Sums, message)
    assert (found.name, found.count, found.nothing, found.long) == ("a", 3, None, ABSENT)
    assert found.total is message.tensors["total"] and found.parts == {"part/a": message.tensors["part/a"]}
    with pytest.raises(ValueError, match="'nothing': missing"):
        read_form(Sums, Message(GOOD.tensors, {"name": "a"}))
