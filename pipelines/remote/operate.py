"""--engine flare: hand the run to FLARE, show how far it is, and go on where hospitals or the server come back.

A run is a job of FLARE's, and goes on from its folder like any other. A hospital whose FLARE process begins anew gets
no place in a job that runs: as soon as it is there again, the job stops at its next safe point and a new one goes on.
The server may end and begin anew as well; then a new job goes on too.
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

from rich.console import Console

from federation.flare import Jobs
from pipelines.coordinator.arguments import PROG, selection
from pipelines.loader.document import DATA_ROOT, ConfigError, Document, problem_at
from pipelines.loader.validation import validate
from pipelines.remote.order import ALIVE, DONE, GONE, STOP, TOLD, Order, write_order
from pipelines.remote.startup_kit import write_job
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import RunLock, Stop, Stopped, safe_stop
from pipelines.settings.config import Config
from privacy.settings_error import Problem

FOLDER = "remote"
LOOK_S, ALIVE_S, BEGIN_S = 2.0, 40.0, 120.0
ATTEMPTS = 20
"""Jobs without one that got further, before it is given up."""


@dataclass
class Desk:
    """What the operator holds: the run, the door to FLARE, and how much of its story was shown.

    heard: a hospital's last sign of life as FLARE dates it, and when that reached us. lost: when we learnt that a
    hospital was gone.
    """

    config: Config
    kit: Path
    place: Path
    console: Console
    stop: Stop
    patience_s: float
    jobs: Jobs | None = None
    shown: int = 0
    heard: dict[str, tuple[str, float]] = field(default_factory=dict)
    lost: dict[str, float] = field(default_factory=dict)


def operate(said: Document, options: argparse.Namespace, console: Console) -> int:
    """Carry a run out at hospitals that are far away; returns its exit code.

    Raises:
        ConfigError: everything that is wrong with settings and kit.
        Stopped: somebody asked; the same command goes on.
    """
    config = validate(said, Config)
    if problems := unfit(config, options):
        raise ConfigError([problem_at(said, problem) for problem in problems])
    base = Path(config.runs).resolve() / config.name / FOLDER
    place = base / secrets.token_hex(4)  # of this command: what an earlier one's job still writes lies elsewhere
    order = Order(
        tuple(selection(options)),
        os.getcwd(),
        {name: os.environ[name] for name in (DATA_ROOT,) if name in os.environ},
        tuple(sorted(set(config.sites) - set(config.outside))),
        tuple(sorted(config.outside)),
        options.silence,
        _command(options),
    )
    with RunLock(base), safe_stop() as stop:
        place.mkdir()
        desk = Desk(config, Path(options.kit), place, console, stop, 60 * options.patience)
        try:
            return _carried(desk, order)
        finally:
            if desk.jobs is not None:
                desk.jobs.close()


def unfit(config: Config, options: argparse.Namespace) -> list[Problem]:
    """What cannot be done with hospitals that are far away."""
    problems = [
        Problem(
            ("train", "methods", label),
            f"{label} pools the images of all hospitals, which only a simulation can; remove it for --engine flare",
        )
        for label, method in config.train.methods.items()
        if method.name == "central"
    ]
    if config.pooling == "allowed" and not problems:
        problems.append(Problem(("pooling",), "images stay where they are with --engine flare; say refused"))
    for flag, there in (("--check", options.check), ("--explain", options.explain)):
        if there:
            text = f"{flag}: looks at this machine alone; run it without --engine flare"
            problems.append(Problem((), text))
    if not options.patience > 0 or not options.silence > 0:
        problems.append(
            Problem((), f"--patience and --silence must be > 0, found {options.patience} and {options.silence}")
        )
    kit = Path(options.kit or "")
    if options.kit is None or not (kit / "startup" / "fed_admin.json").is_file():
        text = f"--kit: {options.kit or 'missing'}; name the folder of the kit of who submits runs, with startup/ in it"
        problems.append(Problem((), text))
    return problems


def _carried(desk: Desk, order: Order) -> int:
    """Job after job, until one says how the run ended."""
    attempts, reached = 0, 0.0
    for other in sorted(one for one in desk.place.parent.iterdir() if one.is_dir() and one != desk.place):
        _let_end(desk, other)
        shutil.rmtree(other, ignore_errors=True)
    while True:
        _wait_for_hospitals(desk, (*order.inside, *order.outside))
        path = desk.place / "order.json"
        write_order(path, order)
        desk.shown = 0
        job = _submitted(desk, path, order)
        _followed(desk, job)
        done = _read(desk.place / DONE)
        if isinstance(done, dict) and not _to_be_gone_on(desk, int(done["exit"])):
            print(done["said"], end="")  # noqa: T201 - the answer
            return int(done["exit"])
        if desk.stop.requested:
            raise Stopped("asked for", order.command)
        before, reached = reached, _reached(desk)
        attempts = 0 if reached > before else attempts + 1
        if attempts >= ATTEMPTS:
            _say(desk, f"given up after {attempts} jobs; what happened stands in {desk.place}")
            return int(Exit.FAILED)
        _say(desk, "a new job goes on from what is saved")


def _reached(desk: Desk) -> float:
    """When the run last saved anything of its own."""
    root = desk.place.parents[1]
    saved = (*root.glob("federation/**/state"), *root.glob("*/*/manifest.json"))
    return max((path.stat().st_mtime for path in saved), default=0.0)


def _let_end(desk: Desk, place: Path) -> None:
    """A job that an earlier command handed in stops at its next safe point. Raises: Stopped."""
    told = False
    while _lives(place, 0.0) and not (place / DONE).exists():
        if not told:
            _say(desk, "a job of an earlier command is at work: it stops at its next safe point")
            (place / STOP).write_text("another command took over")
            told = True
        desk.stop.check()
        time.sleep(LOOK_S)


def _lives(place: Path, since: float) -> bool:
    """Whether the job gave a sign of life a moment ago, or time to give one is not over."""
    with suppress(OSError):
        since = (place / ALIVE).stat().st_mtime
    return time.time() - since < ALIVE_S


def _to_be_gone_on(desk: Desk, code: int) -> bool:
    """Whether the run ended only because hospitals were lost, or made room for one that is back."""
    return code in (Exit.STOPPED, Exit.LOCKED) or (code == Exit.SITE and bool(_read(desk.place / GONE)))


def _command(options: argparse.Namespace) -> str:
    own = ["--engine", "flare", "--kit", str(options.kit), "--patience", str(options.patience)]
    whole = [*selection(options), *own, "--silence", str(options.silence)]
    return f"{PROG} {shlex.join(whole)}"


def _wait_for_hospitals(desk: Desk, sites: tuple[str, ...]) -> None:
    """Until all are there. Raises: Stopped."""
    until, told = time.monotonic() + desk.patience_s, ""
    while True:
        alive = _alive(desk)
        missing = [site for site in sites if site not in alive]
        if not missing:
            desk.lost = {}
            return
        text = f"waiting for {', '.join(missing)}" if desk.jobs is not None else "waiting for FLARE's server"
        if text != told:
            _say(desk, text)
            told = text
        if time.monotonic() > until:
            raise Stopped(f"nobody there after {desk.patience_s / 60:.0f} min: {text}")
        desk.stop.check()
        time.sleep(LOOK_S)


def _alive(desk: Desk) -> set[str]:
    """Hospitals that FLARE heard a moment ago, and since they were lost if they were."""
    now = time.monotonic()
    with _talking(desk):
        for site, when in _door(desk).signs_of_life().items():
            if desk.heard.get(site, ("", now))[0] != when:
                desk.heard[site] = (when, now)
    return {site for site, (_, at) in desk.heard.items() if now - at < ALIVE_S and at > desk.lost.get(site, 0.0)}


def _submitted(desk: Desk, path: Path, order: Order) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), desk.config.name, path, (*order.inside, *order.outside))
        while True:
            with _talking(desk):
                job = _door(desk).submit(Path(folder))
                _say(desk, f"job {job} of {', '.join((*order.inside, *order.outside))}")
                return job
            desk.stop.check()
            time.sleep(LOOK_S)


def _followed(desk: Desk, job: str) -> None:
    """Show what the job tells until it ends; make it stop where somebody asks, or a lost hospital is back."""
    over, begun = 0, time.time() + BEGIN_S
    while True:
        time.sleep(LOOK_S)
        _tell(desk)
        lost = _read(desk.place / GONE)
        for site in lost if isinstance(lost, list) else ():
            desk.lost.setdefault(str(site), time.monotonic())
        if (desk.place / DONE).exists():
            return
        asked = desk.stop.requested
        back = _alive(desk) & set(desk.lost)
        if (asked or back) and not (desk.place / STOP).exists():
            why = "the operator asked" if asked else f"{', '.join(sorted(back))} is back"
            _say(desk, f"{why}: the job stops at its next safe point")
            (desk.place / STOP).write_text(why)
        ended = False
        with _talking(desk):
            ended = not _door(desk).running(job)
        over = over + 1 if ended else 0
        dead = not _lives(desk.place, begun)  # FLARE says of a job that died with its server that it runs
        if over > 2 or dead:
            _tell(desk)
            _say(desk, "the job gives no sign of life" if dead else "FLARE says that the job is over")
            with _talking(desk):
                _door(desk).abort(job)
            return


def _door(desk: Desk) -> Jobs:
    if desk.jobs is None:
        desk.jobs = Jobs(desk.kit)
    return desk.jobs


@contextmanager
def _talking(desk: Desk) -> Iterator[None]:
    """A server that is not there is no error: it may come back."""
    try:
        yield
    except ConnectionError:
        if desk.jobs is not None:
            desk.jobs.close()
        desk.jobs = None


def _tell(desk: Desk) -> None:
    """Show what the job wrote since we looked last."""
    with suppress(OSError):
        text = (desk.place / TOLD).read_text(encoding="utf-8")
        desk.console.print(text[desk.shown :], markup=False, highlight=False, soft_wrap=True, end="")
        desk.shown = len(text)


def _say(desk: Desk, text: str) -> None:
    desk.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _read(path: Path) -> object:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None
