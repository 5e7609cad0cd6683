"""What FLARE starts in a hospital: its worker, with the hospital's own settings and nobody else's.

FLARE builds it by its path from a job that the coordinator wrote. The job can say that path and nothing more: the
settings come from the file that the hospital's own start put into the environment.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from federation.engine import Worker
from federation.flare import Ward
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import worker
from pipelines.remote.site_config import Place, read_place
from pipelines.runs.exits import trace
from pipelines.runs.stopping import LockedError, RunLock
from pipelines.runs.store import clean
from pipelines.settings.config import chosen_device
from privacy.message import Call, Message
from privacy.release.gate import Refused

SETTINGS = "CONSILIUM_SITE"
"""Environment variable: path of site.yaml."""
PATIENCE_S = 120.0
"""How long to wait for the process of an earlier job to leave the hospital's folder."""


def ward() -> Ward:
    """The hospital's side. Never an exception, which would end the job for all hospitals and cross with its words."""
    os.umask(0o077)
    try:
        path = Path(os.environ[SETTINGS])
        place = read_place(str(path))
        os.chdir(path.parent)
        return Ward(opened(place))
    except Exception as error:
        sys.stderr.write(f"the hospital cannot take part: {trace(error)}\n")
        return Ward(unavailable)


def unavailable(call: Call, message: Message) -> Message:
    """A hospital that could not begin. Raises: Refused."""
    raise Refused("unavailable")


def opened(place: Place) -> Worker:
    """The worker, which takes its folder with the first question and keeps it for as long as it lives."""
    own: list[Worker] = []

    def answer(call: Call, message: Message) -> Message:
        if not own:
            try:
                alone(Path(place.root))
            except LockedError as error:  # the process of an earlier job is still at work
                raise Refused("busy") from error
            clean(Path(place.root))
            own.append(worker(hospital_of(place)))
        return own[0](call, message)

    return answer


def hospital_of(place: Place) -> Hospital:
    """The hospital, in its own folder."""
    if place.threads:
        torch.set_num_threads(place.threads)
    root = Path(place.root)
    device, public = chosen_device(place.device), root / ".public"
    return Hospital(place.name, root, place.site, _now, device=device, public=public, simulation=False)


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
