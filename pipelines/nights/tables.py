"""What a night leaves for people and for machines: two tables, a summary, and numbers for a monitor.

The tables name series by their UIDs, studies by their accession numbers and patients by their number in the files, so
they stay in the hospital; the numbers for the monitor and the summary are counts alone.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from evaluation.csv_text import csv_text
from pipelines.nights import lookup, worklist
from pipelines.nights.loop import Tonight
from pipelines.runs.exits import Exit
from privacy.durable import write_whole
from privacy.message import Json, as_mapping

FILES = ("received", "used", "quarantined", "not_selected", "not_imaging")
SERIES = ("task", "state", "reason", "study", "series", "accession", "version", "tries", *FILES, "detail")
TASK_COLUMNS = ("task", "series", "accession")
ODD_TABLE = "odd.csv"  # the last one that is written
ODD = ("task", "what", "reason", "detail")


def write_tables(db: sqlite3.Connection, tonight: Tonight, start: datetime, out: Path) -> None:
    """series.csv: each task of the night, what became of it and of its files. found.csv: scores and sizes of masks, a
    line for each stack of images. odd.csv: what could not be used, and why.

    Raises:
        OSError: the disk.
    """
    tasks = [worklist.one_task(db, number) for number in tonight.tasks]
    lines = [
        (
            *(task.id, task.state, task.reason, task.study, task.series, task.accession, task.version, task.tries),
            *(task.files.get(name, "") for name in FILES),
            task.detail,
        )
        for task in tasks
    ]
    write_whole(out / "series.csv", csv_text(SERIES, lines).encode("utf-8", "surrogateescape"))
    rows = [(task, as_mapping(row)) for task in tasks for row in lookup.rows_of(db, task)]
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    table_rows = [(task.id, task.series, task.accession, *(row.get(name, "") for name in names)) for task, row in rows]
    write_whole(out / "found.csv", csv_text((*TASK_COLUMNS, *names), table_rows).encode("utf-8", "surrogateescape"))
    odd = [("" if task is None else task, *row_of_odd) for task, row_of_odd in lookup.odd_of(db, start)]
    write_whole(out / ODD_TABLE, csv_text(ODD, odd).encode("utf-8", "surrogateescape"))


def tell_of_killed(db: sqlite3.Connection, nights: Path) -> None:
    """Write the tables of nights that ended without, as the worklist knows what they did. nights: their folder.

    Raises:
        OSError: the disk.
    """
    for out in sorted(path for path in nights.iterdir() if path.is_dir() and not (path / ODD_TABLE).exists()):
        try:
            start = datetime.fromisoformat(out.name.replace("_", ":"))
        except ValueError:
            continue
        done = [int(task) for task, when in lookup.last_changes(db).items() if when >= start]
        write_tables(db, Tonight(tasks=done), start, out)


def night_facts(tonight: Tonight, code: Exit, seconds: float) -> dict[str, Json]:
    """The night as JSON facts: counts alone."""
    return {
        "series": dict(sorted(tonight.seen.items())),
        "tasks": {**dict(sorted(tonight.ended.items())), "left": tonight.left},
        "files": {name: tonight.files.get(name, 0) for name in FILES},
        "unreachable": bool(tonight.unreachable),
        "denied": bool(tonight.denied),
        "answer_cut": bool(tonight.cut),
        "redo_not_found": len(tonight.redo),
        "seconds": round(seconds, 1),
        "exit": int(code),
    }


def describe_night(tonight: Tonight, seconds: float, out: Path) -> str:
    """The night in a few lines."""
    seen, ended, files = tonight.seen, dict(tonight.ended), tonight.files
    stored, later = ended.pop("stored", 0), ended.pop("later", 0)
    text = f"{sum(seen.values())} series found: {seen['new']} new, {seen['grew']} changed, {seen['known']} known"
    text += f", {seen['own']} results of ours" if seen["own"] else ""
    text += f", {seen['odd']} answers of no use.\n" if seen["odd"] else ".\n"
    text += f"{stored} done and handed over, {sum(ended.values())} refused, {later} to be tried again, "
    text += f"{tonight.left} left for another night; {seconds:.0f} s.\n"
    if ended:
        text += "refused: " + ", ".join(f"{n} {reason}" for reason, n in sorted(ended.items())) + ".\n"
    counts = ", ".join(f"{files[name]} {name.replace('_', ' ')}" for name in FILES[1:])
    text += f"{files['received']} files received: {counts}.\n"
    if tonight.unreachable:
        text += f"! the archive stopped answering: {tonight.unreachable}. The same command goes on.\n"
    if tonight.denied:
        text += f"! the archive refuses us: {tonight.denied}. Correct it; the same command goes on.\n"
    if tonight.cut:
        text += f"! its answer to the query is not whole ({tonight.cut}); there may be series that it did not name.\n"
    if tonight.redo:
        text += f"! {len(tonight.redo)} series of --redo are not among the answers; give --since, or check the UID.\n"
    if tonight.short:
        text += f"! this machine's {tonight.short} failed at a series; odd.csv says at which.\n"
    if tonight.bugs:
        text += f"! {tonight.bugs} series ended by an error that was not foreseen; please report what odd.csv says.\n"
    return f"{text}{out}"


def write_metrics(
    path: Path, db: sqlite3.Connection, tonight: Tonight, code: Exit, start: datetime, seconds: float
) -> None:
    """Numbers for Prometheus's textfile collector, whole or not at all.

    Raises:
        OSError: the disk.
    """
    states = Counter(task.state for task in lookup.all_tasks(db))
    last = start.timestamp() + seconds
    numbers: list[tuple[str, str, Mapping[str, float]]] = [
        ("end_timestamp_seconds", "When the last night ended.", {"": last}),
        ("duration_seconds", "How long it took.", {"": seconds}),
        ("exit_code", "Its exit code; 0 and 8 are good.", {"": int(code)}),
        ("series", "Series that the archive answered with.", {f'what="{k}"': v for k, v in tonight.seen.items()}),
        ("tasks_ended", "Tasks of the night, by outcome.", {f'outcome="{k}"': v for k, v in tonight.ended.items()}),
        ("files", "Files of the night.", {f'what="{k}"': tonight.files.get(k, 0) for k in FILES}),
        ("worklist_tasks", "Tasks in the worklist.", {f'state="{k}"': states.get(k, 0) for k in worklist.STATES}),
        ("archive_unreachable", "1: the archive stopped answering.", {"": float(bool(tonight.unreachable))}),
    ]
    lines: list[str] = []
    for name, what, values in numbers:
        lines += [f"# HELP consilium_night_{name} {what}", f"# TYPE consilium_night_{name} gauge"]
        lines += [
            f"consilium_night_{name}{f'{{{label}}}' if label else ''} {value:.15g}" for label, value in values.items()
        ]
    write_whole(path, ("\n".join(lines) + "\n").encode())
