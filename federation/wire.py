"""Serialization of questions and answers for engines over a network: safetensors with JSON facts, and nothing else."""

from __future__ import annotations

import re

from federation.engine import Worker
from privacy.message import Call, Json, Malformed, Message, as_mapping, from_bytes, to_bytes
from privacy.release.bounds import BYTES, HEADER
from privacy.release.gate import Refused

CODE = re.compile(r"[a-z][a-z0-9_]{0,79}")


def question(call: Call, message: Message) -> bytes:
    """A call and its message. Equal ones give equal bytes."""
    said: dict[str, Json] = {"run": call.run, "round": call.round, "request": call.request, "merged": {**call.merged}}
    return to_bytes(Message(message.tensors, {"call": said, "facts": dict(message.facts)}))


def read_question(data: bytes) -> tuple[Call, Message]:
    """Read the bytes of `question`. Raises: Malformed."""
    if len(data) > BYTES + HEADER or int.from_bytes(data[:8], "little") > HEADER:
        raise Malformed(
            f"{len(data)} bytes are too many for a question, or {HEADER} too few for what stands before them"
        )
    whole = from_bytes(data)
    said, facts = as_mapping(whole.facts.get("call")), whole.facts.get("facts")
    run, round_, request, merged = (said.get(key) for key in ("run", "round", "request", "merged"))
    if not (isinstance(run, str) and isinstance(request, str) and _count(round_) and isinstance(merged, dict)):
        raise Malformed(f"{len(data)} bytes are no question: run, round, request or merged is missing or no such thing")
    if not isinstance(facts, dict) or not all(_count(value) for value in merged.values()):
        raise Malformed(f"{len(data)} bytes are no question: facts or merged are no such thing")
    rounds = {site: value for site, value in merged.items() if isinstance(value, int)}
    return Call(run, round_ if isinstance(round_, int) else 0, request, rounds), Message(whole.tensors, facts)


def answer(worker: Worker, data: bytes) -> bytes:
    """A site's answer to a question: its reply, or a code. Never an exception, because its text could quote a
    patient.
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
    """A site's reply, or the code in its place; `malformed` if it is neither. Never an exception."""
    try:
        whole = from_bytes(data) if isinstance(data, bytes) else Message()
    except Malformed:
        return "malformed"
    code, reply = whole.facts.get("code"), whole.facts.get("reply")
    if isinstance(reply, dict) and code is None:
        return Message(whole.tensors, reply)
    return code if isinstance(code, str) and CODE.fullmatch(code) and reply is None else "malformed"


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
