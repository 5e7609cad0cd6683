"""What was seen, done, stored or refused, in one SQLite file that survives a kill at any moment.

A task is one series, one model and one version: a series that grew, or that is done again on request, gets a task of
the next version, and the older one is superseded once the new one's results are stored. Its state goes

    waiting -> retrieved -> done -> stored        or from any of the first three to refused

and each step is one transaction, after the files that it speaks of are on the disk. A step that was cut off is done
again: folders of a task are named by its number and emptied first, and the time that goes into the results' UIDs is
written down with `retrieved`, so the same files come out, and an archive that has them already keeps one of each.

Tasks are named by number in logs. Patients' names never come here; UIDs, accession numbers and scores do, so the file
stays in the hospital.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from pipelines.nights.schema import SCHEMA, VERSION
from pipelines.pacs.archive import Entry, Odd
from privacy.formats import describe_later_version
from privacy.message import Json

State: TypeAlias = Literal["waiting", "retrieved", "done", "stored", "refused"]
STATES: tuple[State, ...] = get_args(State)
OPEN: tuple[State, ...] = ("waiting", "retrieved", "done")
Kind: TypeAlias = Literal["segmentation", "report", "capture", "rejection"]
Seen: TypeAlias = Literal["new", "grew", "known", "own"]

NO_ANSWER = "no_answer"
NO_TASK = 0  # in `odd`: an answer of the archive that belongs to no task


class Damaged(Exception):
    """The worklist cannot be read as one of ours; the message says what to do."""


class Task(NamedTuple):
    """A series to be done with a model. instances: that the archive promised when the task was made. made_at: the time
    that its results bear; empty while it waits. files: number of received files by what became of them.
    """

    id: int
    study: str
    series: str
    model: str
    version: int
    state: State
    instances: int | None
    tries: int
    made_at: str
    accession: str
    reason: str
    detail: str
    files: Mapping[str, int]


class Result(NamedTuple):
    """A file to hand over. uid: its SOP Instance UID. file: below the state folder. of: the stack of images that it is
    of, as the tables name it. sop_class, series_uid, study_uid: its other UIDs, for a later result that replaces it.
    """

    uid: str
    kind: Kind
    file: str
    of: str = ""
    sop_class: str = ""
    series_uid: str = ""
    study_uid: str = ""


def open_worklist(path: Path) -> sqlite3.Connection:
    """Open or make the worklist.

    Raises:
        Damaged: it is no worklist, is damaged, or was written by a later version.
        sqlite3.OperationalError: the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, isolation_level=None)
    remedy = f"put a backup of {path} back, or move it away: all of the query is then done, and stored, once more"
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and tables == 0:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version > VERSION:
            raise Damaged(f"{path}: a worklist that was made by {describe_later_version(version, VERSION)}")
        elif version != VERSION:
            raise Damaged(f"{path}: a worklist of version {version}, and {VERSION} is read here; {remedy}")
        (check_result,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if check_result != "ok":
            raise Damaged(f"{path}: damaged ({check_result}); {remedy}")
    except sqlite3.OperationalError:
        db.close()
        raise
    except sqlite3.DatabaseError as error:
        db.close()
        raise Damaged(f"{path}: {error}; {remedy}") from error
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA synchronous = FULL")  # a finished step is on the disk before the next one begins
    return db


@contextmanager
def step(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def note_series(db: sqlite3.Connection, entry: Entry, model: str, now: datetime, *, redo: bool = False) -> Seen:
    """Note a series that the archive has, and make its task if there is something to do for this model: it was never
    done, has another number of instances than before, or `redo`. `own`: it holds our results, and is no work.

    One that has changed while its images wait here is fetched again. One that now stands in another study, as after
    the merging of patients, is noted as `moved`; whether to do it again is left to a person.
    """
    with step(db):
        if db.execute("SELECT 1 FROM result WHERE series_uid = ?", (entry.series,)).fetchone():
            return "own"
        known = db.execute("SELECT instances, study FROM series WHERE series = ?", (entry.series,)).fetchone()
        count = entry.instances if entry.instances is not None or known is None else known[0]
        day = "" if entry.day is None else entry.day.isoformat()
        values = (entry.study, entry.modality, entry.description, day, entry.accession, count, now.isoformat())
        if known is None:
            db.execute(
                "INSERT INTO series VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (entry.series, *values, now.isoformat())
            )
        else:
            db.execute(
                "UPDATE series SET study = ?, modality = ?, description = ?, day = ?, accession = ?, instances = ?, "
                "last_seen = ? WHERE series = ?",
                (*values, entry.series),
            )
        last = db.execute(
            "SELECT id, version, state, instances, files FROM task WHERE series = ? AND model = ? "
            "ORDER BY version DESC",
            (entry.series, model),
        ).fetchone()
        if last is None:
            _add_task(db, entry.series, model, 1, count, now)
            return "new"
        number, version, state, before, files = last
        grew = count is not None and count not in (before, json.loads(files).get("received"))
        moved = known is not None and known[1] != entry.study and state != "waiting"
        if moved:
            after = "it is fetched again" if state in OPEN else "its results stay where they are; --redo makes new ones"
            _insert_odd(db, number, [Odd(entry.series, "moved", f"it now stands in another study: {after}")], now)
        if state == "waiting":  # it was not read yet: there is nothing to supersede
            db.execute("UPDATE task SET instances = ? WHERE id = ?", (count, number))
        elif (grew and state == "retrieved") or (moved and state in OPEN):
            db.execute("UPDATE task SET instances = ? WHERE id = ?", (count, number))
            _begin_anew(db, one_task(db, number), now)
        elif grew or (redo and state not in OPEN):
            _add_task(db, entry.series, model, version + 1, count, now)
        return "grew" if grew else "known"


def _add_task(db: sqlite3.Connection, series: str, model: str, version: int, count: int | None, now: datetime) -> None:
    db.execute(
        "INSERT INTO task (series, model, version, state, instances, changed) VALUES (?, ?, ?, 'waiting', ?, ?)",
        (series, model, version, count, now.isoformat()),
    )


def task_of(row: tuple[object, ...]) -> Task:
    """A task, from a row of `told`."""
    *known, files, _day = row
    return Task._make([*known, json.loads(str(files))])


def note_retrieved(db: sqlite3.Connection, task: Task, image_count: int, odd: Sequence[Odd], now: datetime) -> None:
    """Its images are on the disk, in the task's folder. kept: how many. odd: those that came and were of no use."""
    with step(db):
        _insert_odd(db, task.id, odd, now)
        files = json.dumps({"received": image_count + len(odd), "kept": image_count})
        _move_task(db, task, ("waiting",), "retrieved", now, made_at=now.isoformat(), files=files)


def note_finished(
    db: sqlite3.Connection,
    task: Task,
    results: Sequence[Result],
    rows: Sequence[Json],
    files: Mapping[str, int],
    odd: Sequence[Odd],
    now: datetime,
) -> None:
    """Its results are on the disk. rows: what the table of the night tells."""
    with step(db):
        _insert_odd(db, task.id, odd, now)
        db.executemany(
            "INSERT OR REPLACE INTO result VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')",
            [(result.uid, task.id, *result[1:]) for result in results],
        )
        _move_task(db, task, ("retrieved",), "done", now, files=json.dumps(files), rows=json.dumps(rows))


def note_taken(db: sqlite3.Connection, uids: Sequence[str], now: datetime) -> None:
    """These results are in the archive, and others of their task are not."""
    with step(db):
        db.executemany("UPDATE result SET stored = ? WHERE uid = ?", [(now.isoformat(), uid) for uid in uids])


def note_stored(db: sqlite3.Connection, task: Task, now: datetime) -> None:
    """Its results are in the archive; older versions of it are superseded."""
    with step(db):
        db.execute("UPDATE result SET stored = ? WHERE task = ?", (now.isoformat(), task.id))
        _move_task(db, task, ("done",), "stored", now)
        db.execute(
            "UPDATE task SET superseded = ? WHERE series = ? AND model = ? AND version < ? AND superseded IS NULL",
            (task.id, task.series, task.model, task.version),
        )
        db.execute(
            "UPDATE task SET state = 'refused', reason = 'superseded', changed = ? WHERE series = ? AND model = ? AND "
            "version < ? AND state IN ('waiting', 'retrieved', 'done')",
            (now.isoformat(), task.series, task.model, task.version),
        )


def note_refused(
    db: sqlite3.Connection, task: Task, odd: Odd, now: datetime, *, files: Mapping[str, int] | None = None
) -> None:
    """It ends without a result, for a reason that stands in the tables."""
    with step(db):
        _insert_odd(db, task.id, [odd], now)
        more = {} if files is None else {"files": json.dumps(files)}
        _move_task(db, task, OPEN, "refused", now, why=odd, **more)


def note_failed(db: sqlite3.Connection, task: Task, odd: Sequence[Odd], most: int, now: datetime) -> bool:
    """A try did not succeed: it waits for the next night, or is refused after `most` tries. Returns whether it was."""
    with step(db):
        _insert_odd(db, task.id, odd, now)
        db.execute("UPDATE task SET tries = ? WHERE id = ?", (task.tries + 1, task.id))
        last = odd[-1] if odd else Odd(task.series, "incomplete", "")
        if over := task.tries + 1 >= most:
            _move_task(db, task, OPEN, "refused", now, why=last)
        else:
            db.execute("UPDATE task SET reason = ?, detail = ? WHERE id = ?", (last.reason, last.detail, task.id))
    return over


def note_unanswered(db: sqlite3.Connection, task: Task, odd: Odd, now: datetime) -> None:
    """The archive gave no answer, be it away or only unable to give this one: the task comes after the others."""
    with step(db):
        _insert_odd(db, task.id, [odd], now)
        db.execute("UPDATE task SET reason = ?, detail = ? WHERE id = ?", (odd.reason, odd.detail, task.id))


def count_tries(db: sqlite3.Connection, task: Task, more: int) -> None:
    """Count `more` tries than it had: 1 before work begins, and 0 when it ended. What kills its process is known so."""
    with step(db):
        db.execute("UPDATE task SET tries = ? WHERE id = ?", (task.tries + more, task.id))


def fetch_again(db: sqlite3.Connection, task: Task, odd: Odd, now: datetime) -> None:
    """What was on the disk is gone: it waits as it did at first, and its results will bear another time."""
    with step(db):
        _insert_odd(db, task.id, [odd], now)
        _begin_anew(db, task, now)


def _begin_anew(db: sqlite3.Connection, task: Task, now: datetime) -> None:
    db.execute("DELETE FROM result WHERE task = ?", (task.id,))
    _move_task(db, task, ("retrieved", "done"), "waiting", now, made_at="", files="{}", rows="[]")


def note_odd(db: sqlite3.Connection, odd: Odd, now: datetime, task: int | None = None) -> None:
    """Something that could not be used: of a task, or an answer of the archive that belongs to none."""
    with step(db):
        _insert_odd(db, task, [odd], now)


def _insert_odd(db: sqlite3.Connection, task: int | None, odd: Sequence[Odd], now: datetime) -> None:
    db.executemany(
        "INSERT INTO odd VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO UPDATE SET detail = ?4, last_seen = ?5",
        [(task or NO_TASK, odd_file.what, odd_file.reason, odd_file.detail, now.isoformat()) for odd_file in odd],
    )


def _move_task(
    db: sqlite3.Connection,
    task: Task,
    before: Sequence[State],
    after: State,
    now: datetime,
    *,
    why: Odd | None = None,
    **also: str,
) -> None:
    """why: the reason that is told with the state. also: columns that change with it; the others stay."""
    state = db.execute("SELECT state FROM task WHERE id = ?", (task.id,)).fetchone()[0]
    if state not in before:
        raise RuntimeError(f"task {task.id} is {state}, not {' or '.join(before)}, so it cannot become {after}")
    reason = ("", "") if why is None else (why.reason, why.detail)
    db.execute(
        "UPDATE task SET state = ?, changed = ?, reason = ?, detail = ?, made_at = coalesce(?, made_at), "
        "files = coalesce(?, files), rows = coalesce(?, rows) WHERE id = ?",
        (after, now.isoformat(), *reason, *(also.get(name) for name in ("made_at", "files", "rows")), task.id),
    )


def one_task(db: sqlite3.Connection, number: int) -> Task:
    """A task as it stands now."""
    return task_of(db.execute("SELECT * FROM told WHERE id = ?", (number,)).fetchone())
