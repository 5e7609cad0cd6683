"""The app that FLARE starts at the coordinator: the same run as in one process, with remote hospitals.

An order is a JSON file in the run's folder, written by `pipelines.remote.operate`: the command line, its working
directory and environment, and the hospitals that take part. The results are written beside it: `told.txt`, the
messages for the operator; `alive`, touched every other second; `gone.json`, lost hospitals; `done.json`, the exit code
and the standard output.
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

from federation.flare import ServerApp
from federation.remote import Reach, Remote
from pipelines.remote.order import ALIVE, DONE, GONE, MESSAGES, STOP, is_resumable, read_order
from pipelines.runs.replies import make_reply_store
from pipelines.runs.stopping import Stop

LOOK_S = 2.0
WIDTH = 160


def server_app(order: str) -> ServerApp:
    """The coordinator's app. order: path of an order."""
    return ServerApp(partial(execute_order, Path(order)))


def execute_order(path: Path, reached: Mapping[str, Reach]) -> None:
    """Run an order, and write its exit code. Raises nothing: FLARE would only report that there was an exception."""
    from pipelines.coordinator.arguments import parse_arguments
    from pipelines.coordinator.run import Engines, run_command  # slow imports, which FLARE's start need not wait for

    order, place = read_order(path), path.parent
    os.chdir(order.folder)
    os.environ.update(order.environment)
    lost = make_loss_recorder(place)
    with (place / MESSAGES).open("a", encoding="utf-8", buffering=1) as messages, watch_for_stop(place) as stop:
        console, answer = Console(file=messages, width=WIDTH, emoji=False), io.StringIO()
        keep = make_reply_store(place, partial(console.print, markup=False, highlight=False, soft_wrap=True))
        inside, outside = (
            Remote(reached, sites, silence_s=order.silence_s, on_gone=lost, keep=keep, folder=place)
            for sites in (order.inside, order.outside)
        )
        with redirect_stdout(answer):
            engines = Engines(inside, outside, order.command, lambda code: is_resumable(place, code))
            code = run_command(parse_arguments(order.arguments), console, engines=engines, stop=stop)
    (place / DONE).write_text(json.dumps({"exit": code, "said": answer.getvalue()}))


def make_loss_recorder(place: Path) -> Callable[[str], None]:
    """A callback that records lost hospitals. It may be called by several threads while the operator reads the list, so
    the list is replaced atomically.
    """
    gone: set[str] = set()
    lock = threading.Lock()

    def record_loss(site: str) -> None:
        with lock:
            gone.add(site)
            part = place / f".{GONE}"
            part.write_text(json.dumps(sorted(gone)))
            part.replace(place / GONE)

    return record_loss


@contextmanager
def watch_for_stop(place: Path) -> Iterator[Stop]:
    """A stop that is requested as soon as the stop file exists; while this runs, the file `alive` is touched."""
    stop, over = Stop(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            with suppress(OSError):
                (place / ALIVE).touch()
                if (place / STOP).exists() and not stop.is_requested:
                    stop.request((place / STOP).read_text() or "by the operator")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        over.set()
        watcher.join()
