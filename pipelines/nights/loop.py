"""One night: find, and then of each task fetch, work and store, as far as each is not done yet.

One task after another goes all the way, so memory and disk hold one series at a time, and what is cut off costs one
step. An archive that stops answering ends fetching and storing for tonight; what is on the disk already is worked on.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from pipelines.nights import lookup, worklist
from pipelines.nights.events import Log, count_facts
from pipelines.nights.worklist import NO_ANSWER, Result, Task
from pipelines.pacs.archive import NOT_WHOLE, Archive, Entry, Odd, Query, Unreachable
from pipelines.runs.exits import format_trace
from pipelines.runs.stopping import Stop
from privacy.durable import flush_files
from privacy.message import Json
from privacy.system_errors import classify_failure

IMAGES, RESULTS = "images", "results"
DOUBTED = 2  # tasks in a row without an answer, after which the archive counts as away


class Unread(Exception):
    """Images that had arrived whole, or masks, cannot be read from our own disk: it says nothing of what they hold."""


class Made(NamedTuple):
    """What became of a series. rows: of the night's table, one a stack of images. files: number of files that were
    used, quarantined, not_selected and not_imaging. refused: why there is no result, if there is none.
    """

    results: Sequence[Result]
    rows: Sequence[Json]
    files: Mapping[str, int]
    odd: Sequence[Odd]
    refused: Odd | None = None


class Worker(Protocol):
    """Applies the model to the images of a task, and writes results into a folder. The same images and time give the
    same files. earlier: files of the version that this one supersedes.

    Raises:
        OSError: the disk.
        Unread: images cannot be read from it.
    """

    def __call__(self, task: Task, images: Path, results: Path, earlier: Sequence[Result]) -> Made:
        """Do it."""
        ...


@dataclass
class Tonight:
    """What happened. seen: answers by what they were to us. ended: tasks by their state or reason. unreachable: what
    the archive said last, if it stopped answering. denied: why it refuses us. cut: why its answer to the query is not
    whole. left: tasks that wait for another night. redo: series to be done again that the archive did not name. bugs:
    tasks that ended by an error of ours. short: what failed on this machine, if a task could not be done for it.
    doubted: tasks to which the archive gave no answer, and what it said; if it answers the next one, they are at fault,
    and else it has stopped answering.
    """

    seen: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)
    tasks: list[int] = field(default_factory=list)
    unreachable: str = ""
    denied: str = ""
    cut: str = ""
    left: int = 0
    redo: frozenset[str] = frozenset()
    doubted: list[tuple[Task, str]] = field(default_factory=list)
    bugs: int = 0
    short: Literal["", "disk", "memory"] = ""


@dataclass(frozen=True)
class Desk:
    """Everything that the steps of a task need. model: digest of the model's file. target: takes the results; None:
    they are kept here. tries: nights in which a task may fail. drop: whether images go as soon as their task ends.
    """

    db: sqlite3.Connection
    folder: Path
    model: str
    archive: Archive
    target: Archive | None
    worker: Worker
    log: Log
    tries: int
    drop: bool = True
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


def find_series(desk: Desk, query: Query, tonight: Tonight, *, redo: frozenset[str] = frozenset()) -> None:
    """Ask the archive, and note what it has. redo: series that are done again; `*` = all that match."""
    start, tonight.redo = time.monotonic(), redo - {"*"}
    try:
        for entry in desk.archive.find(query):
            if isinstance(entry, Entry):
                again = "*" in redo or entry.series in redo
                tonight.redo -= {entry.series}
                tonight.seen[worklist.note_series(desk.db, entry, desk.model, desk.now(), redo=again)] += 1
            else:
                tonight.seen["odd"] += 1
                tonight.cut = f"{entry.reason}: {entry.detail}" if entry.reason in NOT_WHOLE else tonight.cut
                worklist.note_odd(desk.db, entry, desk.now())
    except Unreachable as error:
        tonight.unreachable = str(error)
        desk.log("unreachable", doing="find")
    desk.log("found", seconds=time.monotonic() - start, **{f"series_{name}": n for name, n in tonight.seen.items()})


def advance_tasks(
    desk: Desk, tonight: Tonight, stop: Stop, *, until: float = float("inf")
) -> Iterator[tuple[int, int]]:
    """Advance every open task as far as it goes; yields how many of how many are through. until: seconds of
    `time.monotonic` after which no further task begins.

    Raises:
        Stopped: a stop was requested; all that is done is written down.
        Denied: the archive refuses us.
        OSError: the disk.
    """
    tasks = lookup.open_tasks(desk.db, desk.model)
    for number, task in enumerate(tasks):
        if time.monotonic() >= until:
            break
        stop.check()
        _advance_task(desk, task, tonight)
        if desk.drop and worklist.one_task(desk.db, task.id).state not in worklist.OPEN:
            shutil.rmtree(images_of(desk.folder, task), ignore_errors=True)
        yield number + 1, len(tasks)
    _settle_last_task(desk, tonight)
    tonight.left = len(lookup.open_tasks(desk.db, desk.model))


def _advance_task(desk: Desk, task: Task, tonight: Tonight) -> None:
    steps = {"waiting": _fetch_task, "retrieved": _work_on_task, "done": _store_task}
    tonight.tasks.append(task.id)
    while task.state in steps:
        if task.state != "retrieved" and tonight.unreachable:
            return
        try:
            further = steps[task.state](desk, task, tonight)
        except Unreachable as error:
            tonight.doubted.append((task, str(error)))
            worklist.note_unanswered(desk.db, task, Odd(task.series, NO_ANSWER, str(error)), desk.now())
            if len(tonight.doubted) == DOUBTED:
                tonight.unreachable = str(error)
            desk.log("unreachable", task=task.id, doing=task.state)
            return
        except Exception as error:
            if classify_failure(error) != "memory":
                raise
            tonight.short = "memory"
            _try_later(desk, task, [Odd(task.series, "short_memory", "too little memory")], tonight, time.monotonic())
            return
        if task.state != "retrieved":
            _settle_doubt(desk, tonight)
        if not further:
            return
        task = worklist.one_task(desk.db, task.id)


def _settle_doubt(desk: Desk, tonight: Tonight) -> None:
    """The archive answers, so those tasks are at fault to which it did not."""
    while tonight.doubted:
        task, reason = tonight.doubted.pop()
        odd = Odd(task.series, NO_ANSWER, f"the archive answers others, and not this one: {reason}")
        _try_later(desk, task, [odd], tonight, time.monotonic())


def _settle_last_task(desk: Desk, tonight: Tonight) -> None:
    """After the last task: if it was not answered, whether a question about its study is."""
    if not tonight.doubted or tonight.unreachable:
        return
    try:
        list(desk.archive.find(Query(more={"StudyInstanceUID": tonight.doubted[-1][0].study})))
    except Unreachable as error:
        tonight.unreachable = str(error)
    else:
        _settle_doubt(desk, tonight)


def _fetch_task(desk: Desk, task: Task, tonight: Tonight) -> bool:
    start, folder = time.monotonic(), empty_folder(images_of(desk.folder, task))
    fetched = desk.archive.fetch(Entry(task.study, task.series, instances=task.instances), folder)
    about_series = [
        odd for odd in fetched.odd if odd.what == task.series
    ]  # said of the series: it is no file that came
    received = len(fetched.files) + len(fetched.odd) - len(about_series)
    promised = task.instances
    if not fetched.files or about_series or (promised is not None and received < promised):
        short = f"{len(fetched.files)} images came, and {'some' if promised is None else promised} were promised"
        short = "; ".join([short, *(f"{odd.reason}: {odd.detail}" for odd in about_series)])
        odd = [*fetched.odd, Odd(task.series, "incomplete" if fetched.files else "nothing_came", short)]
        return _try_later(desk, task, odd, tonight, start)
    flush_files(fetched.files)
    worklist.note_retrieved(desk.db, task, len(fetched.files), fetched.odd, desk.now())
    desk.log("fetched", task=task.id, seconds=time.monotonic() - start, files=received, odd=len(fetched.odd))
    return True


def _work_on_task(desk: Desk, task: Task, tonight: Tonight) -> bool:
    start, images = time.monotonic(), images_of(desk.folder, task)
    image_count = sum(1 for _ in images.iterdir()) if images.is_dir() else 0
    if image_count < task.files.get("kept", 1):  # removed by a person, or a disk that was put back
        again = Odd(task.series, "images_gone", "the images that were retrieved are gone; they are fetched again")
        worklist.fetch_again(desk.db, task, again, desk.now())
        return True
    if task.tries >= desk.tries:  # each of them ended here without a word
        problem = f"{task.tries} nights were killed while they worked on it, as for want of memory; --redo tries again"
        worklist.note_refused(desk.db, task, Odd(task.series, "cut_off", problem), desk.now())
        tonight.ended["cut_off"] += 1
        desk.log("refused", task=task.id, seconds=0.0, reason="cut_off")
        return False
    worklist.count_tries(desk.db, task, 1)
    results = empty_folder(desk.folder / RESULTS / f"{task.id}")
    try:
        made = desk.worker(task, images, results, lookup.list_earlier_results(desk.db, task))
    except OSError:
        worklist.count_tries(desk.db, task, 0)
        raise
    except Unread as error:
        tonight.short, odd = "disk", Odd(task.series, "disk_error", str(error))
        _try_later(desk, task, [odd], tonight, start)
        if worklist.one_task(desk.db, task.id).state == "retrieved":
            worklist.fetch_again(desk.db, task, odd, desk.now())
        return False
    except Exception as error:  # one series must not keep the others from being done
        if classify_failure(error) == "memory":
            raise
        tonight.bugs += 1
        return _try_later(desk, task, [Odd(task.series, "not_foreseen", format_trace(error))], tonight, start)
    worklist.count_tries(desk.db, task, 0)
    flush_files(desk.folder / result.file for result in made.results)
    unread = lookup.count_unread_files(desk.db, task)
    files = {**made.files, "quarantined": made.files.get("quarantined", 0) + unread}
    files["received"] = sum(files.values())
    tonight.files.update(files)
    if made.refused is not None:
        for odd in made.odd:
            worklist.note_odd(desk.db, odd, desk.now(), task.id)
        worklist.note_refused(desk.db, task, made.refused, desk.now(), files=files)
        tonight.ended[made.refused.reason] += 1
        desk.log(
            "refused", task=task.id, seconds=time.monotonic() - start, reason=made.refused.reason, **count_facts(files)
        )
        return False
    worklist.note_finished(desk.db, task, made.results, made.rows, files, made.odd, desk.now())
    desk.log("worked", task=task.id, seconds=time.monotonic() - start, results=len(made.results), **count_facts(files))
    return True


def _store_task(desk: Desk, task: Task, tonight: Tonight) -> bool:
    start, files = time.monotonic(), lookup.files_of(desk.db, task)
    if desk.target is not None:
        paths = [desk.folder / result.file for result in files]
        if missing := [path for path in paths if not path.is_file()]:
            gone = Odd(task.series, "results_gone", f"{len(missing)} of {len(files)} results are gone; made again")
            worklist.fetch_again(desk.db, task, gone, desk.now())
            return True
        if refused := desk.target.store(paths) if paths else ():
            uids, not_taken = {result.uid for result in files}, {odd.what for odd in refused}
            if not_taken <= uids:  # else a file could not be read, and its UID is not known
                worklist.note_taken(desk.db, sorted(uids - not_taken), desk.now())
            return _try_later(desk, task, refused, tonight, start)
    worklist.note_stored(desk.db, task, desk.now())
    tonight.ended["stored"] += 1
    desk.log("stored", task=task.id, seconds=time.monotonic() - start, results=len(files))
    return False


def _try_later(desk: Desk, task: Task, odd: Sequence[Odd], tonight: Tonight, start: float) -> bool:
    over = worklist.note_failed(desk.db, task, odd, desk.tries, desk.now())
    reason = odd[-1].reason
    tonight.ended[reason if over else "later"] += 1
    desk.log("refused" if over else "later", task=task.id, seconds=time.monotonic() - start, reason=reason)
    return False


def images_of(folder: Path, task: Task) -> Path:
    """Where the images of a task are."""
    return folder / IMAGES / f"{task.id}"


def empty_folder(folder: Path) -> Path:
    """The folder, without what an earlier try left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
