"""Serialization of questions and answers for engines over a network: safetensors with JSON facts, and nothing else."""

from __future__ import annotations

import re

from federation.engine import Worker
from privacy.message import Call, Json, Malformed, Message, as_mapping, from_bytes, to_bytes
from privacy.release.bounds import BYTES, HEADER
from privacy.release.gate import Refused

CODE = re.compile(r"[a-z][a-z0-9_]{0,79}")


def build_question(call: Call, message: Message) -> bytes:
    """The bytes of a call and its message. Equal ones give equal bytes."""
    call_facts: dict[str, Json] = {
        "run": call.run,
        "round": call.round,
        "request": call.request,
        "merged": {**call.merged},
    }
    return to_bytes(Message(message.tensors, {"call": call_facts, "facts": dict(message.facts)}))


def read_question(data: bytes) -> tuple[Call, Message]:
    """Read the bytes of `build_question`. Raises: Malformed."""
    if len(data) > BYTES + HEADER or int.from_bytes(data[:8], "little") > HEADER:
        raise Malformed(
            f"{len(data)} bytes are too many for a question, or {HEADER} too few for what stands before them"
        )
    full_message = from_bytes(data)
    call_facts, facts = as_mapping(full_message.facts.get("call")), full_message.facts.get("facts")
    run, round_, request, merged = (call_facts.get(key) for key in ("run", "round", "request", "merged"))
    if not (isinstance(run, str) and isinstance(request, str) and _is_count(round_) and isinstance(merged, dict)):
        raise Malformed(f"{len(data)} bytes are no question: run, round, request or merged is missing or no such thing")
    if not isinstance(facts, dict) or not all(_is_count(value) for value in merged.values()):
        raise Malformed(f"{len(data)} bytes are no question: facts or merged are no such thing")
    rounds = {site: value for site, value in merged.items() if isinstance(value, int)}
    return Call(run, round_ if isinstance(round_, int) else 0, request, rounds), Message(full_message.tensors, facts)


def answer(worker: Worker, data: bytes) -> bytes:
    """A site's answer to a question: its reply, or a code. It never raises, because the text of an exception could
    quote a patient.
    """
    try:
        call, message = read_question(data)
        reply = worker(call, message)
        return to_bytes(Message(reply.tensors, {"reply": dict(reply.facts)}))
    except Refused as refused:
        return code_answer(refused.code)
    except Malformed:
        return code_answer("malformed")
    except Exception:
        return code_answer("failed")


def code_answer(code: str) -> bytes:
    """A code in place of a reply."""
    return to_bytes(Message({}, {"code": code}))


def read_answer(data: object) -> Message | str:
    """A site's reply, or the code in its place; `malformed` if it is neither. It never raises."""
    try:
        message = from_bytes(data) if isinstance(data, bytes) else Message()
    except Malformed:
        return "malformed"
    code, reply = message.facts.get("code"), message.facts.get("reply")
    if isinstance(reply, dict) and code is None:
        return Message(message.tensors, reply)
    return code if isinstance(code, str) and CODE.fullmatch(code) and reply is None else "malformed"


def _is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
