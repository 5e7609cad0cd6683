"""Replies of many sites simulated in one process: kept on disk, not in memory, until they are merged."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

from federation.engine import Worker
from pipelines.runs.store import HIDDEN
from privacy.message import Call, Message, from_file, to_bytes


def on_disk(worker: Worker, folder: Path) -> Worker:
    """A worker whose replies' tensors lie in unnamed temporary files in `folder` and are read on access.

    So a round of 64 sites does not hold 64 models in memory. The system frees a file's space with the last of its
    tensors, or with the process. Files are not flushed to disk: a lost reply is requested again.
    """

    def answer(call: Call, message: Message) -> Message:
        reply = worker(call, message)
        if not reply.tensors:
            return reply
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, prefix=HIDDEN) as file:
            file.write(to_bytes(reply))
            file.flush()
            kept = from_file(Path(file.name))
        return Message({name: kept.tensors[name] for name in reply.tensors}, reply.facts)  # in their order

    return answer
