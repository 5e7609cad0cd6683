"""Networks that drawn pictures taught the coordinator, kept for all runs of a folder, and all that decides them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import federation
import harmonize
import privacy
from pipelines.hospital.public_networks import PUBLIC, WAITING, learnt_once
from pipelines.runs.progress import ShowStep
from pipelines.runs.stopping import Stop
from pipelines.runs.store import DiskFolder, digest_json, library_versions
from privacy.message import Json, Params

ROOMS = tuple(Path(room).parent for room in (federation.__file__, harmonize.__file__, privacy.__file__))


def list_decisive_files() -> list[Path]:
    """The files of code that can shape a network: whole rooms, for which of their files do is easily got wrong, and
    what stands here about public pictures.
    """
    files = Path(__file__).parent.glob("public*.py")
    return sorted([*files, *(path for room in ROOMS for path in room.rglob("*.py"))])


def code_of(files: list[Path]) -> str:
    """A digest of files of code."""
    return digest_json([[path.name, hashlib.sha256(path.read_bytes()).hexdigest()] for path in files])


CODE = code_of(list_decisive_files())
"""Of the code as it was imported: whoever edits it while a run works changes nothing of what that run learns."""


def learn_or_load(
    root: Path, about: Mapping[str, Json], learn: Callable[[], Params], waits: Callable[[], None]
) -> Params:
    """As `learnt_once`, in the folder beside a run. about: the settings that decide what is learnt. Code, libraries and
    what rounds (threads, the processor's instructions) are looked after here. root: the run's folder.
    """
    rounds: dict[str, Json] = {
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    all_settings: dict[str, Json] = {**about, **rounds, "by": CODE, "versions": {**library_versions()}}
    return learnt_once(DiskFolder(root.parent / PUBLIC), all_settings, learn, waits=waits)


def make_waiter(stop: Stop, step: ShowStep, done: float = 0, total: float | None = None) -> Callable[[], None]:
    """Shows on a stage's progress that it waits for another process, and stops on request."""

    def show_waiting() -> None:
        stop.check()
        step(done, total, WAITING)

    return show_waiting
