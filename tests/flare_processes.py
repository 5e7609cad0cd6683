"""FLARE's server and clients as processes on this machine: kits, start, kill and disturb them. Loopback only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import yaml

PROJECT = Path(__file__).parents[1] / "deploy" / "flare" / "project.yml"
SLOW_DISK = Path(__file__).with_name("slow_disk")
LEAD = "runs@coordinator.example"
PLAIN_RUN: dict[str, Any] = {
    "name": "far",
    "privacy": "none",
    "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
    "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
    "evaluate": {"copies": 20, "public": False, "reference": None},
    "audit": {"membership": False},
}
"""Settings that the runs of these tests share: small phantoms, and no request that needs a policy's permission."""


@dataclass
class Federation:
    """folder: of kits, hospitals' homes and logs. sites: name -> the group `site` of its YAML. homes: the folder of the
    hospitals' homes, in `folder`. fsync_s: what each fsync of these processes takes at least.
    """

    folder: Path
    sites: dict[str, dict[str, Any]]
    homes: str = "homes"
    fsync_s: float = 0.0
    kits: Path = field(init=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kits = provisioned(self.folder, tuple(self.sites))

    def home(self, site: str) -> Path:
        return self.folder / self.homes / site

    def settings(self, site: str) -> Path:
        path = self.folder / f"{site}.yaml"
        said = {"name": site, "kit": f"kits/{site}", "root": f"{self.homes}/{site}", "device": "cpu", "threads": 1}
        path.write_text(yaml.safe_dump({**said, "kit": str(self.kits / site), "site": self.sites[site]}))
        return path

    def start(self, *names: str) -> None:
        """Start hospitals, or `server`, unless they are running."""
        for name in names or ("server", *self.sites):
            old = self.running.get(name)
            if old is not None and old.poll() is None:
                continue
            module = "pipelines.remote.serve" if name == "server" else "pipelines.site"
            argument = self.kits / "localhost" if name == "server" else self.settings(name)
            with (self.folder / f"{name}.out").open("ab") as out:
                self.running[name] = subprocess.Popen(
                    [sys.executable, "-m", module, str(argument)],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=self._environment(),
                )
            if name == "server":
                listening(self.port)

    def _environment(self) -> dict[str, str]:
        """Of a process."""
        path = os.pathsep.join([str(SLOW_DISK), *filter(None, [os.environ.get("PYTHONPATH")])])
        slow = {"PYTHONPATH": path, "CONSILIUM_TEST_FSYNC_S": str(self.fsync_s)} if self.fsync_s else {}
        return {**os.environ, "OMP_NUM_THREADS": "1", **slow}

    @property
    def port(self) -> int:
        return int((self.folder / "port").read_text())

    def everything_of(self, name: str) -> list[psutil.Process]:
        """Its process and those that it started: of a hospital that is the job's."""
        with suppress(psutil.NoSuchProcess, KeyError):
            first = psutil.Process(self.running[name].pid)
            return [*first.children(recursive=True), first]
        return []

    def kill(self, *names: str) -> None:
        """As a power cut would: everything at once."""
        for name in names:
            for process in self.everything_of(name):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            self.running[name].wait()

    def freeze(self, name: str, frozen: bool) -> None:
        for process in self.everything_of(name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def catch(self, names: tuple[str, ...], there: Callable[[], object], patience_s: float) -> None:
        """Freeze these while something is there that comes and goes within milliseconds. What went on too far goes on,
        until the next time.
        """
        end = time.monotonic() + patience_s
        ids = [process.pid for name in names for process in self.everything_of(name)]
        while True:
            until(there, end - time.monotonic(), 0.0)
            send(ids, signal.SIGSTOP)
            time.sleep(0.05)
            if there():
                return
            send(ids, signal.SIGCONT)

    def submit(self, config: Path, *more: str, out: IO[str] | int = subprocess.PIPE) -> subprocess.Popen[str]:
        """The operator, in a folder of its own. out: where what it says goes."""
        place = self.folder / "coordinator"
        place.mkdir(exist_ok=True)
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "pipelines.run", str(config), "--engine", "flare"),
                *("--kit", str(self.kits / LEAD), "--patience", "3", *more),
            ],
            cwd=place,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def end(self) -> None:
        self.kill(*(name for name, process in self.running.items() if process.poll() is None))


@contextmanager
def federation(
    folder: Path,
    sites: dict[str, dict[str, Any]],
    start: tuple[str, ...] = (),
    homes: str = "homes",
    fsync_s: float = 0.0,
) -> Iterator[Federation]:
    """start: who is started, where not all are. homes, fsync_s: see `Federation`."""
    made = Federation(folder, sites, homes, fsync_s)
    try:
        made.start(*start)
        yield made
    finally:
        made.end()


def provisioned(folder: Path, sites: tuple[str, ...]) -> Path:
    """Kits for these hospitals, on a port that is free: the project file that we ship, with other names."""
    project = yaml.safe_load(PROJECT.read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "port").write_text(str(port))
    server, _, _, lead = project["participants"]
    server |= {"name": "localhost", "fed_learn_port": port, "admin_port": port}
    clients = [{"name": site, "type": "client", "org": f"{site}_hospital"} for site in sites]
    project["participants"] = [server, *clients, lead]
    path = folder / "project.yml"
    path.write_text(yaml.safe_dump(project))
    subprocess.run(
        [Path(sys.executable).parent / "nvflare", "provision", "-p", path, "-w", folder / "workspace"],
        check=True,
        capture_output=True,
    )
    return folder / "workspace" / "consilium" / "prod_00"


def send(ids: list[int], what: signal.Signals) -> None:
    """To those that are still there, at once."""
    for one in ids:
        with suppress(ProcessLookupError):
            os.kill(one, what)


def listening(port: int, patience_s: float = 120.0) -> None:
    """Until the server is there."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens on port {port}")


def until(there: Callable[[], object], patience_s: float, step_s: float = 0.05) -> None:
    """Until something is so."""
    end = time.monotonic() + patience_s
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {patience_s} s")
        time.sleep(step_s)
