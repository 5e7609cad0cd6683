"""Replies of many sites, simulated or far away: kept on disk, not in memory, until they are merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from federation.engine import Worker
from pipelines.runs.exits import trace
from pipelines.runs.store import HIDDEN
from privacy.message import Call, Message, from_file, to_bytes
from privacy.release.gate import Refused
from privacy.system_errors import failure


def on_disk(worker: Worker, folder: Path, log: Callable[[str], None]) -> Worker:
    """A worker whose replies' tensors lie in unnamed temporary files in `folder` and are read on access.

    So a round of 64 sites does not hold 64 models in memory. The system frees a file's space with the last of its
    tensors, or with the process. Files are not flushed to disk: a lost reply is requested again. A reply that cannot be
    kept is lost with the code `disk`, `memory` or `failed`, and a line for `log`.
    """

    def answer(call: Call, message: Message) -> Message:
        return keep(call, worker(call, message))

    keep = kept_in(folder, log)
    return answer


def kept_in(folder: Path, log: Callable[[str], None]) -> Callable[[Call, Message], Message]:
    """What `on_disk` does with a reply; it raises Refused where the reply cannot be kept."""

    def keep(call: Call, reply: Message) -> Message:
        if not reply.tensors:
            return reply
        try:
            kept = _kept(reply, folder)
        except Exception as error:
            log(f"{call.run} round {call.round} {call.request}: the reply cannot wait in {folder}: {trace(error)}")
            raise Refused(failure(error)) from error
        return Message({name: kept.tensors[name] for name in reply.tensors}, reply.facts)  # in their order

    return keep


def _kept(reply: Message, folder: Path) -> Message:
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix=HIDDEN) as file:
        file.write(to_bytes(reply))
        file.flush()
        return from_file(Path(file.name))
