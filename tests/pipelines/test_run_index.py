"""The page of all runs, which a run writes when it begins and when it ends: it says what reading all runs anew says, it
costs little, two runs may write it at once, and it ends no run.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from small_run import smallest

from evaluation.run_list import RunLine
from pipelines.clean import main as clean
from pipelines.coordinator import run as coordinator
from pipelines.coordinator.stages import evaluate
from pipelines.run import main
from pipelines.runs import run_index
from pipelines.runs.exits import Exit
from pipelines.runs.holdings import OVERVIEW, PAGE, list_runs
from pipelines.runs.run_index import (
    LOCK,
    RECORDS,
    list_while_at_work,
    read_records,
    renew_index,
    trace_run,
    write_index,
)
from pipelines.runs.stopping import RunLock, Stopped
from pipelines.runs.summaries import sort_lines, summarize_run

QUIET = Console(quiet=True)


@pytest.fixture
def folder(finished_run, tmp_path: Path) -> Path:
    """A folder with three copies of a finished run, of which nothing is kept."""
    done = finished_run(smallest(name="first")) / "runs" / "first"
    for name in ("first", "second", "third"):
        shutil.copytree(done, tmp_path / "runs" / name)
    return tmp_path / "runs"


def write_down(lines: Iterable[RunLine]) -> list[str]:
    """Lines as text, so that NaN equals NaN."""
    return [repr(line) for line in lines]


def read_anew(folder: Path) -> list[str]:
    """What the page should say, without anything that is kept."""
    return write_down(sort_lines(summarize_run(run) for run in list_runs(folder)))


def states(folder: Path) -> dict[str, str]:
    """Run -> state, as the page says it."""
    text = (folder / OVERVIEW).read_text()
    names = [run.name for run in list_runs(folder)]
    rows = {name: text.partition(f">{name}</a></th>")[2].partition("</td>")[0] for name in names}
    return {name: row.rpartition(">")[2] for name, row in rows.items()}


def test_a_run_is_on_the_page_while_it_works_and_as_it_ended_and_its_own_page_links_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(smallest()))
    seen, run = list[str](), evaluate.STAGE.run

    def look(*given: Any) -> Any:
        seen.append(states(Path("runs"))["tiny"])
        return run(*given)

    looking = replace(evaluate.STAGE, run=look)
    monkeypatch.setattr(
        coordinator, "STAGES", tuple(looking if s.name == "evaluate" else s for s in coordinator.STAGES)
    )
    assert main(["small.yaml", "--check"]) == 0 and not Path("runs", OVERVIEW).exists()
    assert main(["small.yaml", "--explain"]) == 0 and not Path("runs", OVERVIEW).exists()
    capsys.readouterr()
    assert main(["small.yaml", "--until", "train"]) == 0 and states(Path("runs")) == {"tiny": "stopped after train"}
    assert capsys.readouterr().out.splitlines()[-1] == "all runs: runs/index.html"
    assert main(["small.yaml"]) == 0 and seen == ["at work after train"] and states(Path("runs")) == {"tiny": "done"}
    assert capsys.readouterr().out.splitlines()[-1] == "all runs: runs/index.html"
    assert f'href="../{OVERVIEW}"' in Path("runs/tiny", PAGE).read_text()
    assert main(["small.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all_runs"] == "runs/index.html"
    assert all(path.stat().st_mode & 0o077 == 0 for path in Path("runs").iterdir())


@pytest.mark.parametrize(("error", "code"), [(Stopped("SIGTERM"), 8), (ValueError("x"), 5), (KeyboardInterrupt(), 130)])
def test_a_run_that_ends_early_is_on_the_page_too(error, code, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(yaml.safe_dump(smallest()))
    broken = replace(evaluate.STAGE, run=fail)
    monkeypatch.setattr(coordinator, "STAGES", tuple(broken if s.name == "evaluate" else s for s in coordinator.STAGES))
    assert main(["small.yaml"]) == code and states(Path("runs")) == {"tiny": "stopped after train"}
    assert 'href="tiny/progress.html"' in Path("runs", OVERVIEW).read_text()


CHANGES = {
    "nothing": lambda run: None,
    "report gone": lambda run: shutil.rmtree(run / "report"),
    "training gone": lambda run: shutil.rmtree(next(run.glob("train/*"))),
    "training damaged": lambda run: next(run.glob("train/*/manifest.json")).write_text("{"),
    "page gone": lambda run: (run / PAGE).unlink(),
    "state grew": lambda run: next(run.glob("federation/*/state")).write_bytes(b"x" * 10**4),
    "gone": lambda run: shutil.rmtree(run),
    "no run any more": lambda run: (run / ".lock").unlink(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_kept_of_a_run_is_what_reading_it_again_says_whatever_became_of_it(what, folder):
    write_index(folder, changed=[])
    CHANGES[what](folder / "second")
    lines, anew = write_index(folder, changed=[folder / "first"]), read_anew(folder)
    if what == "page gone":  # its size is that at the run's end
        (second,) = (line for line in lines if line.name == "second")
        assert second.page == "second/progress.html"
        lines = [replace(line, size=summarize_run(folder / line.name).size) for line in lines]
    assert write_down(lines) == anew


def test_of_runs_that_are_as_they_were_nothing_is_read_again(folder, monkeypatch):
    lines, read_runs = write_down(write_index(folder, changed=[])), list[str]()
    monkeypatch.setattr(run_index, "summarize_run", lambda run: read_runs.append(run.name) or summarize_run(run))
    assert write_down(write_index(folder, changed=[folder / "third"])) == lines and read_runs == ["third"]
    shutil.copytree(folder / "first", folder / "copy")
    with RunLock(folder / "second"):
        write_index(folder, changed=[])
    assert read_runs == ["third", "copy", "second"], "what is kept is of a name, and of no run at work"
    read_runs.clear()
    assert write_down(write_index(folder)) == read_anew(folder) and sorted(read_runs) == [
        "copy",
        "first",
        "second",
        "third",
    ]


def test_kept_lines_that_are_damaged_are_read_again_and_numbers_stay(folder):
    lines = write_down(write_index(folder, changed=[]))
    whole = (folder / RECORDS).read_bytes()
    assert sorted(write_down(each.line for each in read_records(folder / RECORDS).values())) == sorted(lines)
    for damaged in (b"", b"{}", whole[:-9], whole.replace(b"runs 1", b"runs 2"), whole.replace(b'"state"', b'"stat"')):
        (folder / RECORDS).write_bytes(damaged)
        assert read_records(folder / RECORDS) == {} and write_down(write_index(folder, changed=[])) == lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(at=st.integers(0, 10**6), size=st.integers(0, 9))
def test_the_trace_of_a_run_changes_with_time_and_size_of_any_artifact(at, size, folder):
    run = folder / "first"
    paths = [*run.glob("*/*/manifest.json"), *run.glob("federation/*/state")]
    path, before = paths[at % len(paths)], trace_run(run)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1 + at))
    changed = trace_run(run)
    path.write_bytes(path.read_bytes() + b"x" * (size + 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1 + at))
    assert len({before, changed, trace_run(run)}) == 3


def test_reading_ends_after_its_time_and_the_next_run_goes_on_with_it(folder, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(run_index.time, "monotonic", lambda: now[0])

    def read(run: Path) -> RunLine:
        now[0] += 2 * run_index.READ_S / 3
        return summarize_run(run)

    monkeypatch.setattr(run_index, "summarize_run", read)
    for name in ("fourth", "fifth"):
        shutil.copytree(folder / "first", folder / name)
    left, lists = list[int](), list[list[str]]()
    for _ in range(3):
        assert renew_index(folder, [folder / "third"]) == ""
        text = (folder / OVERVIEW).read_text()
        left.append(text.count("not read yet; python -m pipelines.overview"))
        lists.append([run.name for run in list_runs(folder) if f">{run.name}</a>" in text])
    assert left == [3, 2, 1] and all(names == lists[0] for names in lists) and len(lists[0]) == 5
    monkeypatch.undo()
    assert renew_index(folder, [folder / "third"]) == "" and "not read yet" not in (folder / OVERVIEW).read_text()


def end_run(folder: Path, name: str, barrier: Barrier) -> None:
    """A process whose run ends with others."""
    with list_while_at_work(folder / name, QUIET), RunLock(folder / name):
        barrier.wait()


def test_of_runs_that_end_at_once_the_last_page_says_that_all_have_ended(folder):
    context = get_context("fork")
    for _ in range(3):
        barrier = context.Barrier(3)
        runs = [context.Process(target=end_run, args=(folder, name, barrier)) for name in ("first", "second", "third")]
        for each in runs:
            each.start()
        for each in runs:
            each.join()
        assert {each.exitcode for each in runs} == {0} and set(states(folder).values()) == {"done"}
    assert not list(folder.glob(".*.part"))


def test_whoever_writes_waits_for_another_who_writes_and_sees_what_ended_meanwhile(folder, monkeypatch):
    """The order in which the later run ends before the earlier one has written."""
    first, ended, order = RunLock(folder / "first"), [], list[str]()
    replace_file = run_index.replace_file

    def write(path: Path, data: bytes) -> None:
        order.append("write")
        if not ended and path.name == OVERVIEW:
            ended.append(Thread(target=end_first))
            ended[0].start()
            time.sleep(0.3)
        replace_file(path, data)

    def end_first() -> None:
        first.__exit__(None, None, None)
        renew_index(folder, [folder / "first"])

    first.__enter__()
    monkeypatch.setattr(run_index, "replace_file", write)
    assert renew_index(folder, [folder / "second"]) == ""
    ended[0].join()
    assert set(states(folder).values()) == {"done"} and len(order) == 4


@pytest.mark.parametrize("what", ["read-only", "page of others", "a folder in its place", "locked", "gone", "bug"])
def test_a_page_that_cannot_be_written_is_said_and_ends_no_run(what, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(run_index, "WAIT_S", 0.1)
    lock = run_index.FileLock(folder / LOCK)
    page = folder / OVERVIEW
    if what == "read-only":
        monkeypatch.setattr(
            run_index, "FileLock", lambda *_, **__: lock.acquire() and refuse(PermissionError(13, "no"))
        )
    elif what == "page of others":
        page.write_text("<title>My home</title>")
    elif what == "a folder in its place":
        page.mkdir()
    elif what == "locked":
        lock.acquire()
    elif what == "gone":
        monkeypatch.setattr(run_index, "list_runs", lambda _: refuse(FileNotFoundError(2, "gone")))
    else:
        monkeypatch.setattr(run_index, "summarize_run", lambda _: refuse(RuntimeError("a bug")))
    Path("small.yaml").write_text(yaml.safe_dump(smallest(name="first")))
    assert main(["small.yaml", "--from", "report"]) == Exit.OK
    said = capsys.readouterr()
    assert said.err.count("runs/index.html was not written") == 1 and "report: runs/first/report.html" in said.out
    assert ("all runs:" in said.out) == (what == "page of others")
    assert what != "page of others" or page.read_text() == "<title>My home</title>"
    lock.release()


def refuse(error: Exception) -> Any:
    raise error


def test_a_broken_run_stands_beside_the_others_and_is_read_again(folder):
    next((folder / "first").glob("report/*/answers.json")).write_text("[1")
    (folder / "second" / "train").rename(folder / "second" / "aside")
    (folder / "second" / "train").symlink_to("train")
    for _ in range(2):
        assert renew_index(folder, [folder / "third"]) == ""
        assert "its report cannot be read" in (folder / OVERVIEW).read_text()
    assert set(read_records(folder / RECORDS)) <= {"second", "third"}


def test_what_is_cleaned_is_linked_no_more(folder, capsys):
    write_index(folder)
    assert f'href="first/{PAGE}"' in (folder / OVERVIEW).read_text()
    assert clean([str(folder), "--older-than", "0h", "--kind", "reports", "--run", "first", "--needed", "--yes"]) == 0
    assert f'href="first/{PAGE}"' not in (folder / OVERVIEW).read_text()
    (folder / OVERVIEW).unlink()
    assert clean([str(folder), "--older-than", "0h", "--kind", "reports", "--yes"]) == 0
    assert not (folder / OVERVIEW).exists() and "written" not in capsys.readouterr().err


def test_a_folder_that_was_removed_is_not_made_again(tmp_path):
    assert "is gone" in renew_index(tmp_path / "runs", []) and not (tmp_path / "runs").exists()
