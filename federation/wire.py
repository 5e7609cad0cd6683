"""Serialization of questions and answers for engines over a network: safetensors with JSON facts, and nothing else."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

from federation.engine import Worker
from privacy.message import Buffer, Call, Json, Malformed, Message, as_mapping, from_bytes, lay_out_bytes, to_bytes
from privacy.release.bounds import BYTES, HEADER
from privacy.release.gate import Refused

CODE = re.compile(r"[a-z][a-z0-9_]{0,79}")
HEAD = struct.Struct("<8sQQ32s")
MARK = b"\xff" * 8
"""How a piece begins, and no message does: it would have 2^64 - 1 bytes of names."""


class Piece(NamedTuple):
    """A part of a question or an answer. start: its place. size: bytes of the whole; 0 = this piece is asked for.
    digest: sha256 of the whole.
    """

    start: int
    size: int
    digest: bytes
    data: bytes = b""


def write_piece(piece: Piece) -> bytes:
    """The bytes of a piece."""
    return HEAD.pack(MARK, *piece[:3]) + piece.data


def read_piece(data: object) -> Piece | None:
    """What `write_piece` wrote; None: it is something else."""
    if not isinstance(data, bytes) or len(data) < HEAD.size or not data.startswith(MARK):
        return None
    _, start, size, digest = HEAD.unpack(data[: HEAD.size])
    return Piece(start, size, digest, data[HEAD.size :])


def cut_parts(parts: Sequence[Buffer], start: int, length: int) -> bytes:
    """So many bytes from a place of parts that follow one another; fewer at their end."""
    cuts, place = list[Buffer](), 0
    for part in parts:
        cuts.append(part[max(0, start - place) : max(0, start + length - place)])
        place += len(part)
    return b"".join(cuts)


def build_question(call: Call, message: Message) -> bytes:
    """The bytes of a call and its message. Equal ones give equal bytes."""
    return b"".join(lay_out_question(call, message))


def lay_out_question(call: Call, message: Message) -> list[Buffer]:
    """The bytes of `build_question` in parts, without a copy of its tensors."""
    call_facts: dict[str, Json] = {
        "run": call.run,
        "round": call.round,
        "request": call.request,
        "merged": {**call.merged},
    }
    return lay_out_bytes(Message(message.tensors, {"call": call_facts, "facts": dict(message.facts)}))


def read_question(data: Buffer) -> tuple[Call, Message]:
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


def answer(worker: Worker, data: Buffer) -> bytes:
    """A site's answer to a question: its reply, or a code. It never raises, because the text of an exception could
    quote a patient.
    """
    return b"".join(lay_out_answer(worker, data))


def lay_out_answer(worker: Worker, data: Buffer) -> list[Buffer]:
    """The bytes of `answer` in parts, without a copy of the reply's tensors."""
    try:
        call, message = read_question(data)
        reply = worker(call, message)
        return lay_out_bytes(Message(reply.tensors, {"reply": dict(reply.facts)}))
    except Refused as refused:
        return [code_answer(refused.code)]
    except Malformed:
        return [code_answer("malformed")]
    except Exception:
        return [code_answer("failed")]


def code_answer(code: str) -> bytes:
    """A code in place of a reply."""
    return to_bytes(Message({}, {"code": code}))


def read_answer(data: object) -> Message | str:
    """A site's reply, or the code in its place; `malformed` if it is neither. It never raises."""
    try:
        message = from_bytes(data) if isinstance(data, bytes | memoryview) else Message()
    except Malformed:
        return "malformed"
    code, reply = message.facts.get("code"), message.facts.get("reply")
    if isinstance(reply, dict) and code is None:
        return Message(message.tensors, reply)
    return code if isinstance(code, str) and CODE.fullmatch(code) and reply is None else "malformed"


def _is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
