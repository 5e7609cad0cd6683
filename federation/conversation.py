"""Exactly once: a site commits its reply and its memory together before anything is sent.

One file per answered call of a run holds both. A repeated call gets the stored bytes: nothing is trained or spent
again. A call after a lost reply starts from the memory of the last round that was merged, so a site and the coordinator
never drift apart.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from federation.algorithm import Memory
from privacy.folder import Folder
from privacy.message import Call, Message, from_bytes, sealed, to_bytes, unsealed
from privacy.release.gate import Refused

Work: TypeAlias = Callable[[Memory], tuple[Message, Memory]]
JUMP = 1000
"""Rounds of a run in which a site may not have been asked, one after the other: a round further off is none of it."""


class Answer(NamedTuple):
    """reply: the bytes that may leave. memory: what was committed with them. before: what the work began with. again:
    they were committed before, and nothing was worked on.
    """

    reply: bytes
    memory: Memory
    before: Memory
    again: bool


def once(folder: Folder, call: Call, site: str, work: Work) -> Answer:
    """Answer a call from the folder of its run, or do the work and commit it first.

    Raises:
        Malformed: the committed file is corrupt.
        Refused: `stale_round`: a later round of this run was answered, so this one must not be trained again;
        `malformed_round`: so far beyond the last one that was answered, that all rounds before it would be stale.
    """
    name = f"{call.request}-{call.round}"
    if folder.has(name):
        reply, memory = _unpack(folder.read(name))
        return Answer(reply, memory, Message(), True)
    trained = _trained(folder) if call.request in ("train", "finish") else []
    if any(round_ >= call.round for round_ in trained):
        raise Refused("stale_round")
    if call.round > max(trained, default=0) + JUMP:
        raise Refused("malformed_round") from ValueError(
            f"round {call.round} is more than {JUMP} rounds after the last that was answered here"
        )
    merged = call.merged.get(site, 0)
    before = remembered(folder, merged)
    message, memory = work(before)
    reply = to_bytes(message)
    folder.write(name, _pack(reply, to_bytes(memory)))
    for round_ in trained if call.request == "train" else []:
        if round_ != merged:
            folder.remove(f"train-{round_}")
    return Answer(reply, memory, before, False)


def remembered(folder: Folder, merged: int) -> Memory:
    """The memory after round `merged` (0: after the introduction; nothing before it).

    Raises:
        Refused: `no_memory`: a round of this site was merged, and what it remembered of it is gone.
    """
    name = f"train-{merged}" if merged else "introduce-0"
    if merged and not folder.has(name):
        raise Refused("no_memory")
    return _unpack(folder.read(name))[1] if folder.has(name) else Message()


def newest(folder: Folder) -> Memory:
    """The memory of the last thing that this site did in this run."""
    names = sorted(folder.names(), key=lambda name: int(name.rpartition("-")[2]))
    return _unpack(folder.read(names[-1]))[1] if names else Message()


def stored_reply(folder: Folder, name: str) -> bytes:
    """The reply that was committed under a name."""
    return _unpack(folder.read(name))[0]


def _trained(folder: Folder) -> list[int]:
    found = (name.rpartition("-") for name in folder.names())
    return [int(round_) for request, _, round_ in found if request == "train"]


def _pack(reply: bytes, memory: bytes) -> bytes:
    return sealed(struct.pack("<Q", len(reply)), reply, memory)


def _unpack(data: bytes) -> tuple[bytes, Memory]:
    body = unsealed(data)
    (length,) = struct.unpack("<Q", body[:8])
    return body[8 : 8 + length], from_bytes(body[8 + length :])
