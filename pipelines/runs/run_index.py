"""`index.html` beside the folders of runs: the page of all runs, written anew when a run begins and when it has ended.

It holds what the coordinator's pages of these runs hold, and lies where their owner alone may read. What was read of a
run that has ended is kept in `.index.json`, and holds until its artifacts change: so hundreds of runs cost little. Two
runs that end at once write one after the other, and the later one sees that both have ended. A page that cannot be
written ends no run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from rich.console import Console

from evaluation.run_list import TITLE, RunLine, State, render_run_list
from pipelines.runs.holdings import OVERVIEW, list_runs
from pipelines.runs.store import MANIFEST, replace_file
from pipelines.runs.summaries import (
    find_page,
    is_at_work,
    list_artifact_folders,
    list_training_states,
    sort_lines,
    summarize_run,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

RECORDS, LOCK = ".index.json", ".index.lock"
HEAD = b"runs 1"
"""First line of the file of kept lines. Another number where a program reads other things of a run."""
COMMAND = "python -m pipelines.overview"
READ_S = 0.5
"""So long a run that ends reads others of which nothing is kept; the next one goes on with it."""
WAIT_S = 5.0
"""So long it waits for another run that writes the page."""


class ForeignPage(Exception):
    """A file with the page's name that this program did not write."""


@dataclass(frozen=True)
class Record:
    """What was read of a run that had ended. trace: of its artifacts, see `trace_run`."""

    trace: str
    line: RunLine


@contextmanager
def list_while_at_work(root: Path, console: Console) -> Iterator[None]:
    """The page lists a run as at work, and afterwards as it ended. Enter it with the run's lock, and leave it without.
    A page that cannot be written is said once, at the end.
    """
    renew_index(root.parent, [root], read_s=0.0)
    try:
        yield
    finally:
        if trouble := renew_index(root.parent, [root]):
            console.print(f"! {trouble}", markup=False, highlight=False, soft_wrap=True)


def renew_index(folder: Path, changed: Collection[Path], read_s: float = READ_S) -> str:
    """Write the page after some runs have changed; returns why that was not possible, in words, and raises nothing.
    read_s: as in `write_index`.
    """
    try:
        write_index(folder, changed=changed, read_s=read_s)
    except Exception as error:  # whatever other runs' folders hold, these are as they are
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{folder / OVERVIEW} was not written, the list of all runs ({type(error).__name__}: {words})"
    return ""


def write_index(
    folder: Path, *, changed: Collection[Path] | None = None, read_s: float | None = None, reload_s: int | None = None
) -> list[RunLine]:
    """Write the page of all runs of a folder, and return what it says, in its order.

    changed: runs that are read whatever is kept of them; None = all. read_s: seconds after which other runs of which
    nothing is kept are listed by name alone; None = all are read. reload_s: after so many seconds a browser reads the
    page again, while a run works; None = it does not.

    Raises:
        ForeignPage: another program's page is in its place. TimeoutError: another process has written it for `WAIT_S`.
        OSError: the folder cannot be listed or written.
    """
    if not folder.is_dir():  # a lock would make it
        raise FileNotFoundError(f"{folder} is gone")
    with FileLock(folder / LOCK, timeout=WAIT_S):
        _check_place(folder / OVERVIEW)
        records = {} if changed is None else read_records(folder / RECORDS)
        until = None if read_s is None else time.monotonic() + read_s
        lines, next_records = list[RunLine](), dict[str, Record]()
        changed_runs = [run for run in changed or () if run.is_dir()]
        for run in [*changed_runs, *(run for run in list_runs(folder) if run not in changed_runs)]:
            is_changed = run in changed_runs
            before = None if is_changed else records.get(run.name)
            line, trace = _read_or_keep(run, before, None if is_changed else until)
            lines.append(line)
            if trace:
                next_records[run.name] = Record(trace, line)
        lines = sort_lines(lines)
        replace_file(folder / RECORDS, HEAD + b"\n" + _adapt_records().dump_json(next_records))
        date = datetime.now(UTC).isoformat(timespec="seconds")
        follows = reload_s if any(line.state == "at work" for line in lines) else None
        replace_file(folder / OVERVIEW, render_run_list(lines, folder.resolve().name, date, follows).encode())
        return lines


def _read_or_keep(run: Path, before: Record | None, until: float | None) -> tuple[RunLine, str]:
    """What the page says of a run, and the trace under which that may be kept; empty: it may not.

    before: what is kept of it. until: after this time (`time.monotonic`) a run of which nothing is kept is not read.
    """
    try:
        works, trace = is_at_work(run), trace_run(run)
    except OSError:  # reading it says why
        works, trace = False, ""
    if before is not None and trace == before.trace and not works:
        return replace(before.line, name=run.name, page=find_page(run, before.line.state)), trace
    if until is not None and time.monotonic() > until:
        return _name_alone(run, "at work" if works else "unknown"), ""
    line = summarize_run(run)
    return line, trace if line.state in ("done", "stopped") and not line.trouble else ""


def _name_alone(run: Path, state: State) -> RunLine:
    """A run that is listed and was not read."""
    trouble = f"not read yet; {COMMAND} {run.parent} reads it"
    return RunLine(run.name, state, None, 0.0, 0, page=find_page(run, state), trouble=trouble)


def trace_run(run: Path) -> str:
    """SHA-256 of the names, sizes and times of what the page says of a run that is not at work: its artifacts, and how
    far its trainings are. What is in them is not read.

    Raises:
        OSError: a folder cannot be listed.
    """
    digest = hashlib.sha256()
    for path in (*(folder / MANIFEST for folder in list_artifact_folders(run)), *list_training_states(run)):
        status = path.lstat() if path.is_file() else None
        facts = None if status is None else (status.st_size, status.st_mtime_ns)
        digest.update(f"{path.relative_to(run)} {facts}\n".encode())
    return digest.hexdigest()


@cache
def _adapt_records() -> TypeAdapter[dict[str, Record]]:
    """Reads and writes kept lines; their numbers may be NaN."""
    from pydantic import ConfigDict, TypeAdapter  # `--help` needs none of it

    return TypeAdapter(dict[str, Record], config=ConfigDict(ser_json_inf_nan="constants"))


def read_records(path: Path) -> dict[str, Record]:
    """What is kept of runs, by name; nothing where the file is missing, damaged, or another program's."""
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        return _adapt_records().validate_json(body) if head == HEAD else {}
    except (OSError, ValueError):
        return {}


def _check_place(page: Path) -> None:
    """Raises: ForeignPage."""
    if page.is_file():
        with page.open("rb") as file:
            if f"<title>{TITLE}".encode() not in file.read(8192):
                raise ForeignPage(
                    f"{page} is there and no page of runs; move it, or keep runs in a folder of their own"
                )
