"""What stands in the worklist: tasks that are open, results to hand over, and what nights' tables tell."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

from pipelines.nights.schema import SCHEMA
from pipelines.nights.worklist import Result, Task, one_task, open_worklist, task_of
from pipelines.pacs.archive import Odd
from privacy.message import Json


def copy_worklist(path: Path) -> sqlite3.Connection:
    """The worklist as it stands, in memory; an empty one if there is none. What is noted in it changes no file."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    if not path.is_file():
        copy.executescript(SCHEMA)
        return copy
    with closing(open_worklist(path)) as db:
        db.backup(copy)
    return copy


def open_tasks(db: sqlite3.Connection, model: str) -> list[Task]:
    """Tasks that are not finished; those that are further first, then those that failed less often, then the newest
    studies; at the end those that the archive did not answer. Of each series the newest version alone, and an older one
    whose results may be in the archive in part.
    """
    rows = db.execute(
        "SELECT * FROM told WHERE model = ? AND state IN ('waiting', 'retrieved', 'done') AND (state = 'done' OR "
        "version = "
        "(SELECT max(version) FROM task AS other WHERE other.series = told.series AND other.model = told.model)) "
        "ORDER BY reason = 'no_answer', state = 'done' DESC, state = 'retrieved' DESC, tries, day DESC, id",
        (model,),
    )
    return [task_of(row) for row in rows]


def all_tasks(db: sqlite3.Connection, model: str | None = None) -> list[Task]:
    """Every task, in the order in which they were made."""
    rows = db.execute("SELECT * FROM told WHERE ?1 IS NULL OR model = ?1 ORDER BY id", (model,))
    return [task_of(row) for row in rows]


def files_of(db: sqlite3.Connection, task: Task) -> list[Result]:
    """The files of a task."""
    rows = db.execute(
        "SELECT uid, kind, file, of, sop_class, series_uid, study_uid FROM result WHERE task = ? ORDER BY file",
        (task.id,),
    )
    return [Result(*row) for row in rows]


def list_earlier_results(db: sqlite3.Connection, task: Task) -> list[Result]:
    """Results of the last older version of which the archive has some: those that this one supersedes."""
    rows = db.execute(
        "SELECT uid, kind, file, of, sop_class, series_uid, study_uid FROM result "
        "WHERE stored != '' AND kind != 'rejection' AND task = (SELECT max(task.id) FROM task "
        "JOIN result AS one ON one.task = task.id AND one.stored != '' WHERE series = ? AND model = ? AND version < ?) "
        "ORDER BY file",
        (task.series, task.model, task.version),
    )
    return [Result(*row) for row in rows]


def count_unread_files(db: sqlite3.Connection, task: Task) -> int:
    """How many of the files that came were of no use before anything read them."""
    files = one_task(db, task.id).files
    return files.get("received", 0) - files.get("kept", 0)


def rows_of(db: sqlite3.Connection, task: Task) -> list[Json]:
    """What the table of the night tells of a task."""
    (text,) = db.execute("SELECT rows FROM task WHERE id = ?", (task.id,)).fetchone()
    rows: list[Json] = json.loads(text)
    return rows


def odd_of(db: sqlite3.Connection, since: datetime) -> list[tuple[int | None, Odd]]:
    """What could not be used, of tasks and of answers without one, since a time."""
    rows = db.execute(
        "SELECT task, what, reason, detail FROM odd WHERE last_seen >= ? ORDER BY task, what", (since.isoformat(),)
    )
    return [(task or None, Odd(*fields)) for task, *fields in rows]


def last_changes(db: sqlite3.Connection) -> dict[str, datetime]:
    """When each task last changed, by its number as a text."""
    return {str(task): datetime.fromisoformat(when) for task, when in db.execute("SELECT id, changed FROM task")}


def list_ended_tasks(db: sqlite3.Connection, model: str) -> Iterator[tuple[Task, datetime, list[Json]]]:
    """Tasks of a model that are stored or refused, when that was, and the rows of the stored ones."""
    for number, changed, rows in db.execute(
        "SELECT id, changed, rows FROM task WHERE model = ? AND state IN ('stored', 'refused') ORDER BY id", (model,)
    ):
        yield one_task(db, number), datetime.fromisoformat(changed), json.loads(rows)
