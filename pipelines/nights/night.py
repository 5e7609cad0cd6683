"""A whole night: settings, lock, archive, model, the loop, and what is left for people, machines and the scheduler."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import time
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from pipelines.batch.loop import NOTICE, print_text, run_batch
from pipelines.loader.document import ConfigError, render
from pipelines.nights import lookup, worklist
from pipelines.nights.events import Log
from pipelines.nights.loop import Desk, Tonight, advance_tasks, find_series
from pipelines.nights.page import write_page
from pipelines.nights.retention import NIGHTS, remove_old_files
from pipelines.nights.settings import Night, read_night
from pipelines.nights.tables import describe_night, night_facts, tell_of_killed, write_metrics, write_tables
from pipelines.nights.worker import NOTHING, Model, make_worker, open_model
from pipelines.pacs.archive import Archive, Denied, Entry, Query, Unreachable
from pipelines.pacs.opening import Missing, open_archive
from pipelines.runs.exits import Exit
from pipelines.runs.progress import show_progress
from pipelines.runs.stopping import RunLock, Stop, Stopped, safe_stop
from privacy.settings_error import SettingsError

WORKLIST, METRICS, LOG, PAGE = "worklist.sqlite", "night.prom", "log.jsonl", "night.html"
SHOWN = 20  # series that --dry-run lists


class Opened(NamedTuple):
    """What a night works with."""

    night: Night
    folder: Path
    model: Model
    query: Query
    redo: frozenset[str]


def one_night(options: argparse.Namespace) -> int:
    """The command `python -m pipelines.night`; returns the exit code."""
    torch.set_num_threads(1)

    def run(console: Console) -> int:
        try:
            return _run(options, console)
        except ConfigError as error:
            raise ValueError(render(error, options.settings)) from error
        except (SettingsError, Missing, Denied, worklist.Damaged) as error:
            raise ValueError(str(error)) from error

    return run_batch(run, also={Unreachable: Exit.SITE, sqlite3.Error: Exit.DISK})


def _run(options: argparse.Namespace, console: Console) -> int:
    night = read_night(options.settings)
    place = Path(options.settings).resolve().parent
    os.chdir(place)  # paths are relative to the folder of the settings
    folder = Path(night.state).resolve()
    opened = Opened(night, folder, open_model(night), _build_query(night, options.since), _parse_redo(options.redo))
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(night.archive))
        if options.check or options.dry_run:
            return _look_at_archive(opened, archive, console, listed=options.dry_run)
        stack.enter_context(RunLock(folder))
        stop = stack.enter_context(safe_stop())
        target: Archive | None = archive
        if not night.write.store:
            target = None
        elif night.results_to is not None:
            target = stack.enter_context(open_archive(night.results_to))
        db = stack.enter_context(closing(worklist.open_worklist(folder / WORKLIST)))
        return _run_night(opened, archive, target, db, stop, console, as_json=options.json)


def _build_query(night: Night, since: date | None) -> Query:
    ask = night.ask
    begin = since
    if begin is None and ask.days is not None:
        begin = datetime.now().astimezone().date() - timedelta(days=ask.days)
    return Query(modality=ask.modality, description=ask.description, since=begin, more=ask.more)


def _parse_redo(values: list[str]) -> frozenset[str]:
    return frozenset("*" if value == "all" else value for value in values)


def _run_night(
    opened: Opened,
    archive: Archive,
    target: Archive | None,
    db: sqlite3.Connection,
    stop: Stop,
    console: Console,
    *,
    as_json: bool,
) -> int:
    night, folder, start, clock = opened.night, opened.folder, datetime.now(UTC), time.monotonic()
    out = folder / NIGHTS / start.isoformat(timespec="seconds").replace(":", "_")
    if out.parent.is_dir():
        tell_of_killed(db, out.parent)
    out.mkdir(parents=True, exist_ok=True)
    log, tonight, code = Log(out / LOG, out.name), Tonight(), Exit.OK
    log("begin", model=opened.model.ready.digest)
    worker = make_worker(opened.model, night, folder, console)
    drop = night.keep.images == 0
    desk = Desk(db, folder, opened.model.ready.digest, archive, target, worker, log, night.tries, drop)
    until = clock + 60 * night.minutes if night.minutes is not None else float("inf")
    try:
        with show_progress("night", console=console) as step:
            find_series(desk, opened.query, tonight, redo=opened.redo)
            for done, total in advance_tasks(desk, tonight, stop, until=until):
                step(done, total)
    except Stopped:
        code = Exit.STOPPED
    except Denied as error:
        tonight.denied, code = str(error), Exit.CONFIG
        log("unreachable", doing="denied")
    tonight.left = len(lookup.open_tasks(db, desk.model))
    code = code or _exit_code(tonight, late=time.monotonic() >= until)
    remove_old_files(db, folder, night.keep, datetime.now(UTC))
    seconds = time.monotonic() - clock
    write_tables(db, tonight, start, out)
    write_page(folder / PAGE, db, desk.model, opened.model.label, datetime.now(UTC))
    facts = night_facts(tonight, code, seconds)
    log("end", summary=facts)
    write_metrics(folder / METRICS, db, tonight, code, start, seconds)
    if as_json:
        print(json.dumps({**facts, "out": str(out)}))  # noqa: T201 - the machine's answer
    else:
        print_text(console, f"{describe_night(tonight, seconds, out)}\n{NOTICE}")
    return int(code)


def _exit_code(tonight: Tonight, *, late: bool) -> Exit:
    """OK if nothing is left to a person; FAILED after an error of ours; DISK or MEMORY if series were left for it;
    SITE if the archive went away, or its answer to the query is not whole; DATA if there were series for the model, and
    each was refused.
    """
    if tonight.bugs:
        return Exit.FAILED
    if tonight.short:
        return Exit[tonight.short.upper()]
    if tonight.unreachable or tonight.cut:
        return Exit.SITE
    ended = tonight.ended.total() - tonight.ended["later"] - tonight.ended[NOTHING]
    if ended and not tonight.ended["stored"]:
        return Exit.DATA
    return Exit.STOPPED if late and tonight.left else Exit.OK


def _look_at_archive(opened: Opened, archive: Archive, console: Console, *, listed: bool) -> int:
    """What the archive has, and what a night would do; nothing is fetched, stored or written. The answers are noted as
    in a night, in a copy of the worklist that is in memory.
    """
    model, tonight = opened.model.ready.digest, Tonight()
    with closing(lookup.copy_worklist(opened.folder / WORKLIST)) as db:
        for entry in archive.find(opened.query):
            if isinstance(entry, Entry):
                again = "*" in opened.redo or entry.series in opened.redo
                tonight.seen[worklist.note_series(db, entry, model, datetime.now(UTC), redo=again)] += 1
            else:
                tonight.seen["odd"] += 1
                if listed:
                    print_text(console, f"  {entry.what}: {entry.reason}. {entry.detail}")
        tasks = lookup.open_tasks(db, model)
    words = f"model {opened.model.label}, digest {model}, reads {opened.model.ready.images.kind}.\n"
    counts = ", ".join(f"{number} {name}" for name, number in sorted(tonight.seen.items()))
    words += f"{tonight.seen.total()} series match{f': {counts}' if counts else ''}; {len(tasks)} are to be done.\n"
    if listed:
        words += "".join(f"  {task.state}: {task.series}\n" for task in tasks[:SHOWN])
        words += f"  and {len(tasks) - SHOWN} more\n" if len(tasks) > SHOWN else ""
    print_text(console, f"{words}Nothing was fetched, stored or written.")
    return int(Exit.OK)
