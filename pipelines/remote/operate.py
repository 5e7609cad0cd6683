"""--engine flare: submit the run to FLARE, show its progress, and resume it when hospitals or the server come back.

A run is a FLARE job, and resumes from its folder like any other run. A hospital whose FLARE process restarts cannot
rejoin a running job: as soon as it is connected again, the job stops at its next safe point and a new one resumes the
run. The same happens after a restart of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from federation.flare import Jobs
from pipelines.coordinator.arguments import PROG, transport_free_arguments
from pipelines.loader.document import DATA_ROOT, ConfigError, Document, problem_at
from pipelines.loader.validation import validate_settings
from pipelines.remote.order import ALIVE, DONE, GONE, MESSAGES, STOP, Ended, Order, is_resumable, write_order
from pipelines.remote.startup_kit import write_job
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import RunLock, Stop, Stopped, safe_stop
from pipelines.settings.benchmark import BenchmarkSettings, is_benchmark
from pipelines.settings.config import Config
from privacy.settings_error import Problem

FOLDER = "remote"
LOOK_S, ALIVE_S, BEGIN_S = 2.0, 40.0, 120.0
ATTEMPTS = 20
"""Successive jobs without progress after which the run fails."""


@dataclass
class Operation:
    """The state of this command: the run's name, the connection to FLARE, and the number of characters already shown.

    last_seen: hospital -> FLARE's time of its last heartbeat, and our time when that value changed. lost: hospital ->
    our time when it was reported lost.
    """

    name: str
    kit: Path
    place: Path
    console: Console
    stop: Stop
    patience_s: float
    jobs: Jobs | None = None
    shown: int = 0
    last_seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)


def operate_run(document: Document, options: argparse.Namespace, console: Console) -> int:
    """Execute a run with remote hospitals, print its answer, and return its exit code. Raises: as `operated`."""
    ended = execute_remotely(document, options, console)
    print(ended.output, end="")  # noqa: T201 - the answer
    return ended.code


def execute_remotely(document: Document, options: argparse.Namespace, console: Console) -> Ended:
    """Execute a run with remote hospitals.

    Raises:
        ConfigError: all problems with settings and kit. Stopped: on request; the same command resumes the run.
    """
    request = _parse_request(document)
    if problems := [*request.problems, *flare_problems(options)]:
        raise ConfigError([problem_at(document, problem) for problem in problems])
    base = Path(request.runs).resolve() / request.name / FOLDER
    place = base / secrets.token_hex(4)  # a new folder: the job of an earlier command may still write to its own
    order = Order(
        tuple(transport_free_arguments(options)),
        os.getcwd(),
        {name: os.environ[name] for name in (DATA_ROOT,) if name in os.environ},
        request.inside,
        request.outside,
        options.silence,
        _command_line(options),
    )
    with RunLock(base), safe_stop() as stop:
        place.mkdir()
        operation = Operation(request.name, Path(options.kit), place, console, stop, 60 * options.patience)
        try:
            return _run_jobs(operation, order)
        finally:
            if operation.jobs is not None:
                operation.jobs.close()


class RemoteRequest(NamedTuple):
    """What is run: its name and folder, the hospitals inside and outside, and why it cannot run over FLARE."""

    name: str
    runs: str
    inside: tuple[str, ...]
    outside: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def _parse_request(document: Document) -> RemoteRequest:
    """Of a run, or of a benchmark, whose models are looked at before anybody gets them. Raises: ConfigError."""
    if is_benchmark(document.data):
        from pipelines.benchmark.run import open_models  # slow to import

        settings = validate_settings(document, BenchmarkSettings)
        open_models(settings, document)
        return RemoteRequest(settings.name, settings.runs, tuple(sorted(settings.sites)))
    config = validate_settings(document, Config)
    inside, outside = tuple(sorted(set(config.sites) - set(config.outside))), tuple(sorted(config.outside))
    return RemoteRequest(config.name, config.runs, inside, outside, tuple(_find_pooling_problems(config)))


def _find_pooling_problems(config: Config) -> Iterator[Problem]:
    """What only a simulation can do."""
    central = [label for label, method in config.train.methods.items() if method.name == "central"]
    for label in central:
        text = f"{label} pools the images of all hospitals, which only a simulation can; remove it for --engine flare"
        yield Problem(("train", "methods", label), text)
    if config.pooling == "allowed" and not central:
        yield Problem(("pooling",), "images stay at the hospitals with --engine flare; set refused")


def flare_problems(options: argparse.Namespace) -> list[Problem]:
    """Problems with options that do not work with remote hospitals."""
    problems: list[Problem] = []
    for flag, is_set in (("--check", options.check), ("--explain", options.explain)):
        if is_set:
            text = f"{flag}: checks this machine only; run it without --engine flare"
            problems.append(Problem((), text))
    kit = Path(options.kit or "")
    if options.kit is None or not (kit / "startup" / "fed_admin.json").is_file():
        kit_text = options.kit or "missing"
        text = f"--kit: {kit_text}; give the folder of the kit of the user who submits runs, with startup/ in it"
        problems.append(Problem((), text))
    return problems


def _run_jobs(operation: Operation, order: Order) -> Ended:
    """Run jobs, one after another, until one reports how the run ended."""
    attempts, reached = 0, 0.0
    for other in sorted(
        folder for folder in operation.place.parent.iterdir() if folder.is_dir() and folder != operation.place
    ):
        _wait_for_earlier_job(operation, other)
        shutil.rmtree(other, ignore_errors=True)
    while True:
        _wait_for_hospitals(operation, (*order.inside, *order.outside))
        path = operation.place / "order.json"
        write_order(path, order)
        operation.shown = 0
        job = _submit_job(operation, path, order)
        _follow_job(operation, job)
        done = _read_json(operation.place / DONE)
        if isinstance(done, dict) and not is_resumable(operation.place, int(done["exit"])):
            return Ended(int(done["exit"]), str(done["said"]))
        if operation.stop.is_requested:
            raise Stopped("asked for", order.command)
        before, reached = reached, _last_saved(operation)
        attempts = 0 if reached > before else attempts + 1
        if attempts >= ATTEMPTS:
            _print_text(
                operation, f"given up after {attempts} jobs without progress; their output is in {operation.place}"
            )
            return Ended(int(Exit.FAILED))
        _print_text(operation, "a new job resumes the run from its saved state")


def _last_saved(operation: Operation) -> float:
    """The time when the run last saved a state or an artifact."""
    root = operation.place.parents[1]
    saved = (*root.glob("federation/**/state"), *root.glob("*/*/manifest.json"))
    return max((path.stat().st_mtime for path in saved), default=0.0)


def _wait_for_earlier_job(operation: Operation, place: Path) -> None:
    """Wait until the job of an earlier command stops at its next safe point. Raises: Stopped."""
    has_warned = False
    while _job_is_alive(place, 0.0) and not (place / DONE).exists():
        if not has_warned:
            _print_text(operation, "a job of an earlier command is running: it stops at its next safe point")
            (place / STOP).write_text("another command took over")
            has_warned = True
        operation.stop.check()
        time.sleep(LOOK_S)


def _job_is_alive(place: Path, since: float) -> bool:
    """Whether the job touched its file `alive` recently, or has only just begun (`since`)."""
    with suppress(OSError):
        since = (place / ALIVE).stat().st_mtime
    return time.time() - since < ALIVE_S


def _command_line(options: argparse.Namespace) -> str:
    transport_options = ["--engine", "flare", "--kit", str(options.kit), "--patience", str(options.patience)]
    all_options = [*transport_free_arguments(options), *transport_options, "--silence", str(options.silence)]
    return f"{PROG} {shlex.join(all_options)}"


def _wait_for_hospitals(operation: Operation, sites: tuple[str, ...]) -> None:
    """Wait until all hospitals are connected. Raises: Stopped."""
    until, last_text = time.monotonic() + operation.patience_s, ""
    while True:
        alive = _connected_hospitals(operation)
        missing = [site for site in sites if site not in alive]
        if not missing:
            operation.lost = {}
            return
        text = f"waiting for {', '.join(missing)}" if operation.jobs is not None else "waiting for FLARE's server"
        if text != last_text:
            _print_text(operation, text)
            last_text = text
        if time.monotonic() > until:
            raise Stopped(f"no connection after {operation.patience_s / 60:.0f} min: {text}")
        operation.stop.check()
        time.sleep(LOOK_S)


def _connected_hospitals(operation: Operation) -> set[str]:
    """Hospitals with a recent heartbeat, and since their loss if they were lost."""
    now = time.monotonic()
    with _ignoring_lost_connection(operation):
        for site, when in _open_connection(operation).signs_of_life().items():
            if operation.last_seen.get(site, ("", now))[0] != when:
                operation.last_seen[site] = (when, now)
    lost, seen = operation.lost, operation.last_seen
    return {site for site, (_, at) in seen.items() if now - at < ALIVE_S and at > lost.get(site, 0.0)}


def _submit_job(operation: Operation, path: Path, order: Order) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), operation.name, path, (*order.inside, *order.outside))
        while True:
            with _ignoring_lost_connection(operation):
                job = _open_connection(operation).submit(Path(folder))
                _print_text(operation, f"job {job} of {', '.join((*order.inside, *order.outside))}")
                return job
            operation.stop.check()
            time.sleep(LOOK_S)


def _follow_job(operation: Operation, job: str) -> None:
    """Show the job's messages until it ends; stop it on request, or if a lost hospital is back."""
    over, latest_start = 0, time.time() + BEGIN_S
    while True:
        time.sleep(LOOK_S)
        _show_messages(operation)
        lost = _read_json(operation.place / GONE)
        for site in lost if isinstance(lost, list) else ():
            operation.lost.setdefault(str(site), time.monotonic())
        if (operation.place / DONE).exists():
            return
        is_stop_requested = operation.stop.is_requested
        back = _connected_hospitals(operation) & set(operation.lost)
        if (is_stop_requested or back) and not (operation.place / STOP).exists():
            why = "on the operator's request" if is_stop_requested else f"{', '.join(sorted(back))} is back"
            _print_text(operation, f"{why}: the job stops at its next safe point")
            (operation.place / STOP).write_text(why)
        ended = False
        with _ignoring_lost_connection(operation):
            ended = not _open_connection(operation).running(job)
        over = over + 1 if ended else 0
        dead = not _job_is_alive(
            operation.place, latest_start
        )  # FLARE lists a job that died with its server as running
        if over > 2 or dead:
            _show_messages(operation)
            _print_text(operation, "the job gives no sign of life" if dead else "FLARE says that the job is over")
            with _ignoring_lost_connection(operation):
                _open_connection(operation).abort(job)
            return


def _open_connection(operation: Operation) -> Jobs:
    if operation.jobs is None:
        operation.jobs = Jobs(operation.kit)
    return operation.jobs


@contextmanager
def _ignoring_lost_connection(operation: Operation) -> Iterator[None]:
    """Ignore a lost connection to the server: it may come back."""
    try:
        yield
    except ConnectionError:
        if operation.jobs is not None:
            operation.jobs.close()
        operation.jobs = None


def _show_messages(operation: Operation) -> None:
    """Show the job's new messages."""
    with suppress(OSError):
        text = (operation.place / MESSAGES).read_text(encoding="utf-8")
        operation.console.print(text[operation.shown :], markup=False, highlight=False, soft_wrap=True, end="")
        operation.shown = len(text)


def _print_text(operation: Operation, text: str) -> None:
    operation.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _read_json(path: Path) -> object:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None
