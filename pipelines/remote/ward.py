"""What FLARE starts in a hospital: its worker, with the hospital's own settings and nobody else's.

FLARE builds it by its path from a job that the coordinator wrote. The job can say that path and nothing more: the
settings come from the file that the hospital's own start put into the environment.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from federation.engine import Worker
from federation.flare import Ward
from pipelines.config import chosen_device
from pipelines.remote.place import Place, read_place
from pipelines.site.hospital import Hospital
from pipelines.site.worker import worker
from pipelines.stopping import LockedError, RunLock
from privacy.message import Call, Message

SETTINGS = "CONSILIUM_SITE"
"""Environment variable: path of site.yaml."""
PATIENCE_S = 120.0
"""How long to wait for the process of an earlier job to leave the hospital's folder."""


def ward() -> Ward:
    """The hospital's side. Raises: RuntimeError: without words of the cause, which FLARE would hand on."""
    os.umask(0o077)
    try:
        path = Path(os.environ[SETTINGS])
        place = read_place(str(path))
        os.chdir(path.parent)
        lock = alone(Path(place.root))
        return Ward(held(worker(hospital_of(place)), lock))
    except Exception as error:
        raise RuntimeError(f"the hospital cannot take part ({type(error).__name__}); its own log says why") from None


def hospital_of(place: Place) -> Hospital:
    """The hospital, in its own folder."""
    if place.threads:
        torch.set_num_threads(place.threads)
    root = Path(place.root)
    return Hospital(place.name, root, place.site, _now, device=chosen_device(place.device), public=root / ".public")


def alone(root: Path, patience_s: float = PATIENCE_S) -> RunLock:
    """Be the only one in the folder. Raises: LockedError: somebody else is, and stays."""
    until = time.monotonic() + patience_s
    while True:
        lock = RunLock(root)
        try:
            return lock.__enter__()
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def held(own: Worker, lock: RunLock) -> Worker:
    """The worker, which keeps the lock for as long as it lives."""

    def answer(call: Call, message: Message) -> Message:
        if not lock.root.is_dir():
            raise OSError(f"{lock.root} is gone")
        return own(call, message)

    return answer


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
