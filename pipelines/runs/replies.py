"""Replies of many sites played in one process: on the disk until they are merged, not in memory."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile

from federation.engine import Worker
from pipelines.runs.store import HIDDEN
from privacy.message import Call, Message, from_file, to_bytes


def on_disk(worker: Worker, folder: Path) -> Worker:
    """The same site, its replies' tensors in files without a name in `folder`, read when somebody looks at them.

    So a round of 64 sites holds no 64 models in memory. The system gives a file's place back with the last of its
    tensors, or with the process. Nothing is forced to the disk: a reply that is lost is asked for again.
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
