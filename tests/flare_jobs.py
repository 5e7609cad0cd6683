"""A run with hospitals on other machines, on one machine and without FLARE: its jobs are copies of this process.

The operator's command, the coordinator's app and the hospitals' apps are the real ones (`pipelines.remote`); between
them stand `flare_in_process` in place of FLARE's calls, and `Jobs` in place of its session. All of it is one machine:
where power is cut, every process of it ends.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from injected import CUT
from limited import CRASHED

import pipelines.remote.operate
import pipelines.remote.server
from federation.flare import COORDINATOR, ClientApp, build_reach
from flare_in_process import InProcessProxy
from pipelines.remote.client import SETTINGS, client_app
from pipelines.remote.server import execute_order
from privacy.message import Call, Message

LOOK_S, ALIVE_S = 0.05, 1.0
"""In place of the seconds between two looks, and of those without a sign of life."""

Around = Callable[[], AbstractContextManager[object]]


def written(folder: Path, sites: Mapping[str, Mapping[str, Any]]) -> Path:
    """The hospitals' own settings, and the kit of a user who may submit. Hospitals have the folders of a simulation."""
    for name, said in sites.items():
        place = {"name": name, "kit": "kit", "root": f"runs/tiny/sites/{name}", "device": "cpu", "threads": 1}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**place, "site": said}))
    admin = folder / "kit/startup/fed_admin.json"
    admin.parent.mkdir(parents=True)
    admin.write_text(json.dumps({"admin": {"username": "lead"}}))
    return folder / "kit"


class Jobs:
    """As `federation.flare.Jobs`. around: what a job works in. patience_s: seconds after which a job is ended."""

    def __init__(self, kit: Path, *, around: Around = nullcontext, patience_s: int = 300) -> None:
        self._around, self._patience_s = around, patience_s
        self._codes: dict[str, int | None] = {}
        self._beats = 0

    def submit(self, folder: Path) -> str:
        said = json.loads((folder / "server_app/config/config_fed_server.json").read_text())
        sites = json.loads((folder / "meta.json").read_text())["deploy_map"]["client_app"]
        order = Path(said["components"][0]["args"]["order"])
        child = os.fork()
        if child == 0:
            signal.alarm(self._patience_s)
            code = CRASHED
            try:
                with self._around():
                    execute_order(order, _apps(sites))
                code = 0
            finally:
                os._exit(code)
        self._codes[str(child)] = None
        return str(child)

    def running(self, job: str) -> bool:
        if self._codes[job] is None:
            child, status = os.waitpid(int(job), os.WNOHANG)
            if child:
                self._codes[job] = os.waitstatus_to_exitcode(status)
        if self._codes[job] == CUT:
            os._exit(CUT)
        return self._codes[job] is None

    def signs_of_life(self) -> dict[str, str]:
        self._beats += 1
        return dict.fromkeys("ab", str(self._beats))

    def abort(self, job: str) -> None:
        if self._codes[job] is None:
            os.kill(int(job), signal.SIGKILL)

    def close(self) -> None:
        pass


def _apps(sites: list[str]) -> dict[str, Any]:
    """The hospitals that a job reaches. They share a process, so they share its chance: one works at a time."""
    turn, reached = threading.Lock(), {}
    for site in sites:
        os.environ[SETTINGS] = f"{site}.yaml"
        app = client_app()
        worker = app._pending._worker

        def in_turn(worker: Any, call: Call, message: Message) -> Message:
            with turn:
                answer: Message = worker(call, message)
            return answer

        reached[site] = build_reach(InProcessProxy(ClientApp(functools.partial(in_turn, worker), lambda: COORDINATOR)))
    return reached


@contextmanager
def here(around: Around = nullcontext) -> Iterator[None]:
    """Within it, `--engine flare` is played in this process and its copies. around: what each job works in."""
    exchanged = {"Jobs": functools.partial(Jobs, around=around), "LOOK_S": LOOK_S, "ALIVE_S": ALIVE_S}
    with (
        patch.multiple(pipelines.remote.operate, **exchanged),
        patch.object(pipelines.remote.server, "LOOK_S", LOOK_S),
    ):
        yield
