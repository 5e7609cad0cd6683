"""Networks that public pictures alone shaped: learnt once, and kept beside the runs for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from federation import randomization
from harmonize import wgan
from harmonize.networks import Inputs
from harmonize.randomized import Randomized
from harmonize.scale import Progress
from pipelines.loader.validation import to_plain
from pipelines.runs.store import UNFINISHED, DiskFolder, digest_json, short_digest
from privacy.folder import Folder
from privacy.message import Json, Malformed, Message, Params, from_bytes, seal_parts, to_bytes, unseal_parts

PUBLIC = ".public"
"""Folder beside the runs, for networks trained on public images only; all runs share it."""
WAITING = "another process learns it, which this one waits for"
TELL_S = 1.0  # between two signs of life while it waits


def learnt_once(
    folder: Folder, about: Mapping[str, Json], learn: Callable[[], Params], *, waits: Callable[[], None] = lambda: None
) -> Params:
    """What `learn` returns; from the folder, if it was learnt there before with this code. about: all that decides it.

    A damaged file is learnt again. Of processes that work at the same time one learns; the others wait for it, and call
    `waits` each second, which may raise. Where nothing can be kept, because a folder is full or is somebody else's,
    everybody learns by itself: that costs time, and not the run.
    """
    name = f"{short_digest(digest_json({**about, 'code': _digest_code()}))}.safetensors"
    with _lock_file(folder, name, waits):
        if (params := _load_kept(folder, name)) is None:
            params = learn()
            with suppress(OSError):
                folder.write(name, seal_parts(to_bytes(Message(params))))
        return params


def _load_kept(folder: Folder, name: str) -> Params | None:
    with suppress(Malformed, OSError):
        return from_bytes(unseal_parts(folder.read(name))).tensors if folder.has(name) else None
    return None


def _lock_file(folder: Folder, name: str, waits: Callable[[], None]) -> AbstractContextManager[object]:
    """Held by one process at a time, for a file of a folder on the disk."""
    if not isinstance(folder, DiskFolder):
        return nullcontext()
    lock = FileLock(folder.root / f"{UNFINISHED}{name}.lock", thread_local=False)
    while True:
        try:
            folder.root.mkdir(parents=True, exist_ok=True)
            return lock.acquire(timeout=TELL_S)
        except Timeout:
            waits()
        except OSError:
            return nullcontext()


def learn_translation(
    folder: Path,
    how: Randomized,
    inputs: Inputs,
    *,
    progress: Progress,
    device: str,
    waits: Callable[[], None] | None = None,
) -> Params:
    """A translator's parameters; hospitals and coordinator learn the same. waits: see `learnt_once`; None = `progress`
    tells that it waits.
    """
    about: dict[str, Json] = {"translator": to_plain(how), "inputs": list(inputs)}
    return learnt_once(
        DiskFolder(folder),
        about,
        lambda: how.learn_parameters(inputs, progress=progress, device=device),
        waits=waits or (lambda: progress(0, how.steps, WAITING)),
    )


def _digest_code() -> str:
    """A digest of the code, so that other code makes other networks."""
    files = [*sorted(Path(wgan.__file__).parent.glob("*.py")), Path(randomization.__file__)]
    return digest_json({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
