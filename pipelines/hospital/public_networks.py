"""Networks that public pictures alone shaped: learnt once, and kept beside the runs for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from filelock import FileLock

from federation import randomization
from harmonize import wgan
from harmonize.networks import Inputs
from harmonize.randomized import Randomized
from harmonize.scale import Progress
from pipelines.loader.validation import to_plain
from pipelines.runs.store import HIDDEN, DiskFolder, digest, short
from privacy.folder import Folder
from privacy.message import Json, Malformed, Message, Params, from_bytes, sealed, to_bytes, unsealed

PUBLIC = ".public"
"""Folder beside the runs, for networks trained on public images only; all runs share it."""


def learnt_once(folder: Folder, about: Mapping[str, Json], learn: Callable[[], Params]) -> Params:
    """What `learn` returns; from the folder, if it was learnt there before with this code. about: all that decides it.

    A damaged file is learnt again. Of hospitals that work at the same time one learns, and the others wait for it.
    """
    name = f"{short(digest({**about, 'code': _code()}))}.safetensors"
    with _alone(folder, name):
        if folder.has(name):
            try:
                return from_bytes(unsealed(folder.read(name))).tensors
            except Malformed:
                folder.remove(name)
        params = learn()
        folder.write(name, sealed(to_bytes(Message(params))))
        return params


def _alone(folder: Folder, name: str) -> AbstractContextManager[object]:
    """Held by one process at a time, for a file of a folder on the disk."""
    if not isinstance(folder, DiskFolder):
        return nullcontext()
    folder.root.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.root / f"{HIDDEN}{name}.lock", thread_local=False)


def translation(folder: Path, how: Randomized, inputs: Inputs, *, progress: Progress, device: str) -> Params:
    """A translator's parameters; hospitals and coordinator learn the same."""
    about: dict[str, Json] = {"translator": to_plain(how), "inputs": list(inputs)}
    return learnt_once(DiskFolder(folder), about, lambda: how.learnt(inputs, progress=progress, device=device))


def _code() -> str:
    """A digest of the code, so that other code makes other networks."""
    files = [*sorted(Path(wgan.__file__).parent.glob("*.py")), Path(randomization.__file__)]
    return digest({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
