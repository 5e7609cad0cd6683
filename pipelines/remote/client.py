"""The app that FLARE starts in a hospital: its worker, with settings from the hospital only.

FLARE imports it by the path in a job that the coordinator wrote. The job contains only that path: the settings come
from the file that the hospital's own start command put into the environment.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from federation.engine import Worker
from federation.flare import ClientApp
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.remote.site_config import Place, read_place
from pipelines.runs.exits import format_trace
from pipelines.runs.stopping import LockedError, RunLock
from pipelines.runs.store import remove_unfinished
from pipelines.settings.config import select_device
from privacy.message import Call, Message
from privacy.release.gate import Refused
from privacy.system_errors import classify_failure

SETTINGS = "CONSILIUM_SITE"
"""Environment variable: path of site.yaml."""
PATIENCE_S = 120.0
"""How long to wait for the process of an earlier job to release the hospital's folder."""


def client_app() -> ClientApp:
    """The hospital's app. Never raises: an exception would end the job for all hospitals and send its message."""
    os.umask(0o077)
    try:
        path = Path(os.environ[SETTINGS])
        place = read_place(str(path))
        os.chdir(path.parent)
        return ClientApp(lazy_worker(place), folder=Path(place.root))
    except Exception as error:
        sys.stderr.write(f"the hospital cannot take part: {format_trace(error)}\n")
        return ClientApp(refuse_unavailable)


def refuse_unavailable(call: Call, message: Message) -> Message:
    """The worker of a hospital that could not start. Raises: Refused."""
    raise Refused("unavailable")


def lazy_worker(place: Place) -> Worker:
    """A worker that locks its folder at the first question and keeps the lock until the process ends."""
    workers: list[Worker] = []

    def answer(call: Call, message: Message) -> Message:
        if not workers:
            try:
                lock_folder(Path(place.root))
                remove_unfinished(Path(place.root))
                workers.append(make_worker(hospital_of(place)))
            except LockedError as error:  # the process of an earlier job still runs
                raise Refused("busy") from error
            except Exception as error:
                sys.stderr.write(f"the hospital cannot begin: {format_trace(error)}\n")
                raise Refused(classify_failure(error)) from error
        return workers[0](call, message)

    return answer


def hospital_of(place: Place) -> Hospital:
    """The hospital of a site file, in its own folder."""
    if place.threads:
        torch.set_num_threads(place.threads)
    root = Path(place.root)
    device, public = select_device(place.device), root / ".public"
    return Hospital(place.name, root, place.site, _iso_time, device=device, public=public, simulation=False)


def lock_folder(root: Path, patience_s: float = PATIENCE_S) -> RunLock:
    """Lock the folder, waiting for an earlier process. Raises: LockedError: it is still locked after `patience_s`."""
    until = time.monotonic() + patience_s
    while True:
        lock = RunLock(root)
        try:
            return lock.__enter__()
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def _iso_time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
