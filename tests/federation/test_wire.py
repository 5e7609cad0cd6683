"""Questions and answers as bytes: what comes back is what went, or a code."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation import wire
from privacy.message import (
    Call,
    Malformed,
    Message,
    from_bytes,
    from_file,
    losses_of,
    number_of,
    numbers_of,
    to_bytes,
    whole_of,
    wholes_of,
)
from privacy.release.gate import Refused

NAMES = st.text(max_size=12)
ROUNDS = st.integers(0, 2**31)
CALLS = st.builds(Call, NAMES, ROUNDS, NAMES, st.dictionaries(NAMES, ROUNDS, max_size=3), st.just({}))
FACTS = st.dictionaries(NAMES, st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | NAMES, max_size=4)


def echo(call, message):
    return Message(message.tensors, {**message.facts, "run": call.run})


@given(CALLS, FACTS)
def test_a_question_comes_as_it_went(call, facts):
    sent = Message({"x": torch.tensor([1.0, float("-inf")], dtype=torch.bfloat16)}, facts)
    call_, message = wire.read_question(wire.build_question(call, sent))
    assert (call_, dict(message.facts)) == (call, facts)
    assert torch.equal(message.tensors["x"], sent.tensors["x"]) and message.tensors["x"].dtype == torch.bfloat16


@given(CALLS, FACTS)
def test_an_answer_is_what_the_worker_said(call, facts):
    said = wire.read_answer(wire.answer(echo, wire.build_question(call, Message({"y": torch.arange(3)}, facts))))
    assert isinstance(said, Message)
    assert dict(said.facts) == {**facts, "run": call.run} and torch.equal(said.tensors["y"], torch.arange(3))


@given(st.binary(max_size=64))
def test_bytes_that_are_no_question_get_a_code(data):
    with pytest.raises(Malformed):
        wire.read_question(data)
    assert wire.read_answer(wire.answer(echo, data)) == "malformed"
    assert wire.read_answer(data) == "malformed"


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"call": {"run": "r", "round": -1, "request": "train", "merged": {}}, "facts": {}},
        {"call": {"run": "r", "round": True, "request": "train", "merged": {}}, "facts": {}},
        {"call": {"run": "r", "round": 1, "request": "train", "merged": {"a": -1}}, "facts": {}},
        {"call": {"run": "r", "round": 1, "request": "train", "merged": {"a": "1"}}, "facts": {}},
        {"call": {"run": "r", "round": 1, "request": None, "merged": {}}, "facts": {}},
        {"call": {"run": "r", "round": 1, "request": "train", "merged": {}}, "facts": []},
    ],
)
def test_a_question_with_a_wrong_part_is_malformed(facts):
    with pytest.raises(Malformed, match="no question"):
        wire.read_question(to_bytes(Message({}, facts)))


@pytest.mark.parametrize(
    "facts", [{}, {"code": 1}, {"code": "Mr Smith, 1950"}, {"code": "x" * 81}, {"code": "failed", "reply": {}}]
)
def test_an_answer_that_is_neither_reply_nor_code_is_malformed(facts):
    assert wire.read_answer(to_bytes(Message({}, facts))) == "malformed"
    assert wire.read_answer(None) == "malformed"


def test_no_words_of_a_failure_cross():
    def fail(call, message):
        raise RuntimeError("Mr Smith, born 1950")

    def refuse(call, message):
        raise Refused("policy_request") from ValueError("Mr Smith, born 1950")

    question = wire.build_question(Call("r", 1, "train", {}), Message())
    assert wire.read_answer(wire.answer(fail, question)) == "failed"
    assert wire.read_answer(wire.answer(refuse, question)) == "policy_request"
    assert b"Smith" not in wire.answer(fail, question) + wire.answer(refuse, question)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_none_is_refused_however_it_is_spelt(number, tmp_path):
    good = to_bytes(Message({}, {"reply": {"loss": 1234567.5}}))
    spelt = good.replace(b"1234567.5", number.encode().rjust(9))
    assert wire.read_answer(good) == Message({}, {"loss": 1234567.5})
    with pytest.raises(Malformed):
        from_bytes(spelt)
    assert wire.read_answer(spelt) == "malformed"
    (tmp_path / "file").write_bytes(spelt)
    with pytest.raises(Malformed):
        from_file(tmp_path / "file")


def test_typed_facts_are_read_or_refused_by_name():
    facts = {"a": 1, "b": 0.5, "c": [1, 2], "d": "1", "e": True, "f": None, "losses": {"1": 0.5, "2": None}}
    assert number_of(facts, "a") == 1.0 and number_of(facts, "b") == 0.5 and whole_of(facts, "a") == 1
    assert number_of(facts, "f", 2.0) == number_of(facts, "missing", 2.0) == 2.0 and whole_of(facts, "f", 3) == 3
    assert wholes_of(facts, "c") == [1, 2] and numbers_of(facts, "c") == [1.0, 2.0]
    assert losses_of(facts) == {1: 0.5} and losses_of({}) == {}
    for name in ("d", "e", "f", "missing", "c"):
        for read in (number_of, whole_of):
            with pytest.raises(ValueError, match=f"{name} must be a"):
                read(facts, name)
    with pytest.raises(ValueError, match=r"b must be a whole number, found 0\.5"):
        whole_of(facts, "b")
    with pytest.raises(ValueError, match="a must be a list"):
        wholes_of(facts, "a")
    with pytest.raises(ValueError, match="c must be a number"):
        numbers_of({"c": [1, "2"]}, "c")
