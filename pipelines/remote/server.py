"""What FLARE starts at the coordinator: the same run as in one process, with hospitals that are far away.

An order is a JSON file in the run's folder, written by `pipelines.remote.operate`: the command line, where and with
which environment it was called, and who takes part. What becomes of it is written beside it: `told.txt`, what a person
would have seen on the way; `alive`, touched every other second; `gone.json`, hospitals that were lost; `done.json`, the
exit code and the standard output.
"""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from federation.flare import Bureau
from federation.remote import Reach, Remote
from pipelines.remote.order import ALIVE, DONE, GONE, STOP, TOLD, read_order
from pipelines.runs.stopping import Stop

LOOK_S = 2.0
WIDTH = 160


def bureau(order: str) -> Bureau:
    """The coordinator's side. order: path of an order."""
    return Bureau(partial(carry_out, Path(order)))


def carry_out(path: Path, reached: Mapping[str, Reach]) -> None:
    """Run what was ordered, and write down how it ended. No exception: FLARE would only say that there was one."""
    from pipelines.coordinator.arguments import parse
    from pipelines.coordinator.run import Engines, run_command  # seconds that FLARE's start need not wait for

    order, place = read_order(path), path.parent
    os.chdir(order.folder)
    os.environ.update(order.environment)
    lost = losses(place)
    inside, outside = (
        Remote(reached, sites, silence_s=order.silence_s, on_gone=lost) for sites in (order.inside, order.outside)
    )
    with (place / TOLD).open("a", encoding="utf-8", buffering=1) as told, watched(place) as stop:
        console, said = Console(file=told, width=WIDTH), io.StringIO()
        with redirect_stdout(said):
            engines = Engines(inside, outside, order.command)
            code = run_command(parse(order.arguments), console, engines=engines, stop=stop)
    (place / DONE).write_text(json.dumps({"exit": code, "said": said.getvalue()}))


def losses(place: Path) -> Callable[[str], None]:
    """Writes down who is gone. Several hospitals may be lost at one moment, and the operator reads at any: the list is
    there whole or as it was before.
    """
    gone: set[str] = set()
    lock = threading.Lock()

    def lost(site: str) -> None:
        with lock:
            gone.add(site)
            part = place / f".{GONE}"
            part.write_text(json.dumps(sorted(gone)))
            part.replace(place / GONE)

    return lost


@contextmanager
def watched(place: Path) -> Iterator[Stop]:
    """A stop that is requested as soon as its file is there; while it is watched for, the sign of life is renewed."""
    stop, over = Stop(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            with suppress(OSError):
                (place / ALIVE).touch()
                if (place / STOP).exists() and not stop.requested:
                    stop.request((place / STOP).read_text() or "by the operator")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        over.set()
        watcher.join()
