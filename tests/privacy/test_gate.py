"""Every byte that leaves stands in the ledger; what may not leave does not."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.dp.events import NON_PRIVATE, NOTHING, compose_events, describe_event
from privacy.message import Call
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused, release_reply
from privacy.release.policy import REQUESTS, Policy

CALL = Call("run", 3, "train", {})


def let(tmp_path, reply=b"abc", call=CALL, policy=None, replay=False):
    release_reply(
        reply,
        describe_event(NON_PRIVATE),
        forms=None,
        call=call,
        policy=policy or Policy(),
        ledger=tmp_path / "ledger.jsonl",
        recipient="coordinator",
        now="2026-01-01T00:00:00Z",
        replay=replay,
    )


def test_what_leaves_is_written_down_first(tmp_path):
    let(tmp_path)
    let(tmp_path, replay=True)
    one, two = ledgers.read_lines(tmp_path / "ledger.jsonl")
    assert (one["bytes"], one["round"], one["request"], one["again"]) == (3, 3, "train", False)
    assert one["sha256"] == hashlib.sha256(b"abc").hexdigest() and one["event"] == {"kind": "non_private"}
    assert two["again"] is True


def test_a_replay_of_what_never_left_is_no_repetition(tmp_path):
    """The site died between commit and ledger, or its policy refused the first time: the cost must be booked now."""
    with pytest.raises(Refused):
        let(tmp_path, policy=Policy(max_bytes=2))
    let(tmp_path, replay=True)
    let(tmp_path, replay=True)
    assert [line["again"] for line in ledgers.read_lines(tmp_path / "ledger.jsonl")] == [False, False, True]


@pytest.mark.parametrize(
    ("policy", "call", "code"),
    [
        (Policy(requests=("survey",)), CALL, "policy_request"),
        (Policy(max_bytes=2), CALL, "policy_bytes"),
        (Policy(), Call("run", 0, "pool", {}), "policy_request"),
    ],
)
def test_a_refusal_names_its_code_and_is_written_down_with_no_bytes(tmp_path, policy, call, code):
    with pytest.raises(Refused, match=code):
        let(tmp_path, call=call, policy=policy)
    (line,) = ledgers.read_lines(tmp_path / "ledger.jsonl")
    assert (line["refused"], line["bytes"]) == (code, 0)


def test_pooling_needs_its_own_word():
    assert not Policy(requests=REQUESTS).allows("pool")
    assert Policy(pooling=True).allows("pool")
    with pytest.raises(ValueError, match="unknown teleport"):
        Policy(requests=("teleport",))
    with pytest.raises(ValueError, match="max_bytes"):
        Policy(max_bytes=0)


@given(st.lists(st.sampled_from([NON_PRIVATE, NOTHING]), max_size=5))
def test_one_non_private_part_makes_the_whole_non_private(events):
    whole = describe_event(compose_events(events))
    assert (whole == {"kind": "non_private"}) == (NON_PRIVATE in events)


def test_an_event_that_nobody_knows_is_not_booked_as_nothing():
    with pytest.raises(ValueError, match="does not know"):
        describe_event(object())  # type: ignore[arg-type]


def test_a_torn_line_is_closed_and_reported_and_nothing_is_lost(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    let(tmp_path)
    ledger.write_bytes(ledger.read_bytes() + b'{"bytes": 12')
    let(tmp_path)
    first, torn, last = ledgers.read_lines(ledger)
    assert torn == {"torn": True, "line": 2}
    assert first["bytes"] == last["bytes"] == 3
