"""Replies of many sites, simulated or remote: stored on disk, not in memory, until they are merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from federation.engine import Worker
from pipelines.runs.exits import format_trace
from pipelines.runs.store import make_hidden_name
from privacy.message import Call, Message
from privacy.release.gate import Refused
from privacy.system_errors import classify_failure

ALIGNED = 64  # bytes: each tensor begins at a multiple, as its numbers require
SMALL = 2**17
"""Bytes of a reply up to which it waits in memory: to store it takes longer than to make it, and a thousand of them
take less than one network's gradients."""


def store_replies(worker: Worker, folder: Path, log: Callable[[str], None]) -> Worker:
    """A worker whose replies' tensors, of more than `SMALL` bytes, lie in unnamed temporary files in `folder` and are
    read on access.

    So a round of 64 sites does not hold 64 models in memory. The system frees a file's space with the last of its
    tensors, or with the process. Files are not flushed to disk: a lost reply is requested again. A reply that cannot be
    stored is lost with the code `disk`, `memory` or `failed`, and `log` gets a line about it.
    """

    def answer(call: Call, message: Message) -> Message:
        return keep_reply(call, worker(call, message))

    keep_reply = make_reply_store(folder, log)
    return answer


def make_reply_store(folder: Path, log: Callable[[str], None]) -> Callable[[Call, Message], Message]:
    """A function that keeps a reply as `store_replies` does; it raises Refused if the reply cannot be stored."""

    def keep_reply(call: Call, reply: Message) -> Message:
        if sum(tensor.nbytes for tensor in reply.tensors.values()) <= SMALL:
            return Message({name: tensor.detach().cpu().clone() for name, tensor in reply.tensors.items()}, reply.facts)
        try:
            return _map_to_file(reply, folder)
        except Exception as error:
            log(
                f"{call.run} round {call.round} {call.request}: the reply cannot wait in {folder}:"
                f" {format_trace(error)}"
            )
            raise Refused(classify_failure(error)) from error

    return keep_reply


def _map_to_file(reply: Message, folder: Path) -> Message:
    """The reply with its tensors in one memory mapping of a file that has no name any more."""
    folder.mkdir(parents=True, exist_ok=True)
    path, offsets, end = make_hidden_name(folder), list[int](), 0
    try:
        with path.open("xb") as file:
            for tensor in reply.tensors.values():
                offsets.append(end)
                data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                file.write(data.numpy().data)
                end += file.write(bytes(-len(data) % ALIGNED)) + len(data)
        mapped = torch.from_file(str(path), shared=False, size=end, dtype=torch.uint8)
    finally:
        path.unlink(missing_ok=True)
    return Message(
        {
            name: mapped[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for offset, (name, tensor) in zip(offsets, reply.tensors.items(), strict=True)
        },
        reply.facts,
    )
