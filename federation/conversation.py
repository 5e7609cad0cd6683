"""Exactly-once replies: a site commits its reply and its memory together before anything is sent.

One file per answered call of a run contains both. A repeated call gets the stored bytes, so neither training nor
privacy cost is repeated. A call after a lost reply starts from the memory of the last merged round, so site and
coordinator stay consistent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from federation.algorithm import Memory
from privacy.folder import Folder
from privacy.message import (
    LARGE,
    Buffer,
    Call,
    Malformed,
    Message,
    add_checksum,
    count_bytes,
    from_bytes,
    lay_out_bytes,
    unseal_parts,
)
from privacy.release.gate import Refused

Work: TypeAlias = Callable[[Memory], tuple[Message, Memory]]
JUMP = 1000
"""Most consecutive rounds of a run that a site may miss: a call of a later round is refused."""


class Answer(NamedTuple):
    """reply: the bytes that may leave the site; many of them are those of the committed file. memory: committed with
    the reply. before: the memory at the start of the work. again: whether both were committed earlier, so that no work
    was done.
    """

    reply: Buffer
    memory: Memory
    before: Memory
    again: bool


def answer_once(folder: Folder, call: Call, site: str, work: Work) -> Answer:
    """Answer a call from the folder of its run, or do the work and commit it first.

    Raises:
        Malformed: the committed file is corrupt.
        Refused: `stale_round`: a later round of this run was answered, so this one must not be trained again;
            `malformed_round`: more than `JUMP` rounds after the last answered round.
    """
    name = f"{call.request}-{call.round}"
    if folder.has(name):
        return Answer(*_unpack_answer(folder.map(name)), Message(), True)
    trained = _list_trained_rounds(folder) if call.request in ("train", "finish") else []
    if any(round_ >= call.round for round_ in trained):
        raise Refused("stale_round")
    if call.round > max(trained, default=0) + JUMP:
        raise Refused("malformed_round") from ValueError(
            f"round {call.round} is more than {JUMP} rounds after the last that was answered here"
        )
    merged = call.merged.get(site, 0)
    before = load_memory(folder, merged)
    reply, memory = _commit_answer(folder, name, *work(before))
    for round_ in trained if call.request == "train" else []:
        if round_ != merged:
            folder.remove(f"train-{round_}")
    return Answer(reply, memory, before, False)


def load_memory(folder: Folder, merged: int) -> Memory:
    """The memory after round `merged` (0: after the introduction; empty without one).

    Raises:
        Refused: `no_memory`: a round of this site was merged, and its memory of it is missing.
    """
    name = f"train-{merged}" if merged else "introduce-0"
    if merged and not folder.has(name):
        raise Refused("no_memory")
    return _unpack_answer(folder.map(name))[1] if folder.has(name) else Message()


def load_newest_memory(folder: Folder) -> Memory:
    """This site's latest memory in this run."""
    names = sorted(folder.names(), key=lambda name: int(name.rpartition("-")[2]))
    return _unpack_answer(folder.map(names[-1]))[1] if names else Message()


def load_newest_intact_memory(folder: Folder) -> Memory:
    """This site's latest undamaged memory in a finished run; a damaged file is treated as a missing one."""
    for name in sorted(folder.names(), key=lambda name: -int(name.rpartition("-")[2])):
        with suppress(Malformed):
            return _unpack_answer(folder.map(name))[1]
    return Message()


def load_stored_reply(folder: Folder, name: str) -> bytes:
    """The reply in a committed file. name: `<request>-<round>`."""
    return bytes(_unpack_answer(folder.map(name))[0])


def _list_trained_rounds(folder: Folder) -> list[int]:
    """The rounds of `train` requests that this site has answered."""
    name_parts = (name.rpartition("-") for name in folder.names())
    return [int(round_) for request, _, round_ in name_parts if request == "train"]


def _commit_answer(folder: Folder, name: str, message: Message, memory: Memory) -> tuple[Buffer, Memory]:
    """Write a reply and a memory; returns both, large ones as they lie in the file, so that memory holds neither."""
    reply, parts = lay_out_bytes(message), lay_out_bytes(memory)
    size = count_bytes(reply)
    folder.write_parts(name, add_checksum([struct.pack("<Q", size), *reply, *parts]))
    if size + count_bytes(parts) <= LARGE:
        return b"".join(reply), memory
    return _unpack_answer(folder.map(name))


def _unpack_answer(data: memoryview) -> tuple[memoryview, Memory]:
    """The reply and the memory of a committed file: the length of the reply, the reply, the memory.

    Raises:
        Malformed: it is corrupt.
    """
    body = unseal_parts(data)
    (length,) = struct.unpack("<Q", body[:8])
    return body[8 : 8 + length], from_bytes(body[8 + length :])
