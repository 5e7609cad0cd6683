"""An operation on a file fails once; the same command again ends right, and nothing is spent twice.

The whole sweep is `benchmarks/faults/faults.py`, with its figures in docs/results/faults.md; here are a few points of
it, and with `--thorough` some hundreds.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import fault_sweep
import pytest
import torch
from fault_sweep import RUN, Case, Outcome, Result, called, commanded, counted, prepared, result, tried, verdict
from injected import CUT, FAULTS, LIE, POWER, Points, injected
from limited import CRASHED, Ended, in_copy, in_no_more_memory
from small_run import PRIVATE, SMALL

from pipelines.data.intake import run_in_order
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to a limit of memory")
PRIVATE_RUN = Case("private run", PRIVATE, exact=False)
POINTS = [("write", "ENOSPC", 0.9), ("fsync", POWER, 0.7), ("study", "MemoryError", 0.5)]
MORE = [("fsync", "EIO", 0.95), ("rename", POWER, 0.5), ("read", "EIO", 0.3), ("open", "EMFILE", 0.6)]
"""Kind, fault, and how far into the command. More are tried with `--thorough`."""


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> tuple[Path, dict[str, list[str]], Result]:
    """A folder where the private run begins, where it makes its operations, and where it ends."""
    folder = tmp_path_factory.mktemp("faults")
    fault_sweep.warmed(folder / "warm")
    begin = prepared(PRIVATE_RUN, folder / "start")
    places = counted(PRIVATE_RUN, begin, folder / "work")
    return begin, places, result(PRIVATE_RUN, folder / "work")


@pytest.fixture(scope="module")
def beginning(tmp_path_factory) -> Callable[[Case], Path]:
    """Gives the folder in which a case begins, made once for all cases that begin alike; it is tried in copies."""
    made: dict[str, Path] = {}

    def begin(case: Case) -> Path:
        alike = "predict" if case.name == "clean" else case.name
        if alike not in made:
            made[alike] = prepared(case, tmp_path_factory.mktemp("begins") / "start")
        return made[alike]

    return begin


@pytest.mark.parametrize(("kind", "fault", "far"), [*POINTS, *(pytest.param(*p, marks=pytest.mark.slow) for p in MORE)])
def test_a_private_run_goes_on_after_a_fault_and_spends_what_it_would_have(start, tmp_path, kind, fault, far):
    begin, places, wanted = start
    at = int(len(places[kind]) * far)
    outcome = tried(PRIVATE_RUN, begin, wanted, tmp_path / "work", kind, fault, at)
    assert outcome.place in places[kind], outcome
    assert outcome.what == "right", outcome
    assert outcome.first in ({CUT} if fault == POWER else {0, 7, 9}), outcome


def test_cleaning_removes_nothing_more_because_something_could_not_be_listed_or_read(start, beginning, tmp_path):
    """An artifact that is overlooked keeps nothing, so what it refers to would go."""
    case = next(case for case in fault_sweep.CASES if case.name == "clean")
    begin = shutil.copytree(beginning(case), tmp_path / "begin")
    (begin / "runs/index.html").unlink()  # the page of all runs is written after it, and says what it could not read
    places = counted(case, begin, tmp_path / "count")
    wanted = result(case, tmp_path / "count")
    assert len(wanted.files) > 50
    looked = [(kind, place, at) for kind in ("list", "read") for at, place in enumerate(places[kind])]
    looked = [one for one in looked if one[1].startswith("runs/tiny/train") and ":_list_leftovers" not in one[1]]
    of_training = {(kind, place): at for kind, place, at in looked if kind == "read" or "train " in place}
    assert {kind for kind, _ in of_training} == {"list", "read"}
    for (kind, _), at in of_training.items():
        found = tried(case, begin, wanted, tmp_path / "work", kind, {"list": "EACCES", "read": "EIO"}[kind], at)
        assert (found.first, found.then, found.what) == (Exit.DISK, Exit.OK, "right"), found


FOUND = [
    ("deidentify", "rename", POWER, "durable.py:write_whole < pipelines/batch/deidentification.py", {CUT}),
    ("night", "read", "EIO", "state/images/#/#", {Exit.DISK}),
    ("night", "open", "EACCES", "inbox.py:check_file", {Exit.DISK}),
    ("night", "list", "EACCES", "folder.py:walk_folder < pipelines/data/dicom/reader.py", {Exit.DISK}),
    ("night", "read", "MemoryError", "state/images/#/#", {Exit.MEMORY}),
]
"""Command, kind, fault, a part of the place, and how the command ends: what the sweep found, each once wrong."""


@pytest.mark.parametrize("name", ["deidentify", "night"])
def test_what_the_sweep_found_at_night_and_in_deidentified_files_stays_mended(start, beginning, name, tmp_path):
    case = next(case for case in fault_sweep.CASES if case.name == name)
    begin = beginning(case)
    places = counted(case, begin, tmp_path / "count")
    wanted = result(case, tmp_path / "count")
    for _, kind, fault, place, ends in (one for one in FOUND if one[0] == name):
        at = max(number for number, said in enumerate(places[kind]) if place in said)
        outcome = tried(case, begin, wanted, tmp_path / "work", kind, fault, at)
        assert place in outcome.place, outcome
        assert (outcome.first in ends, outcome.then, outcome.what) == (True, Exit.OK, "right"), outcome


@pytest.mark.slow
@pytest.mark.parametrize("case", fault_sweep.CASES, ids=lambda case: case.name)
def test_each_command_goes_on_after_faults_all_over_its_life(case, tmp_path):
    begin = prepared(case, tmp_path / "start")
    places = counted(case, begin, tmp_path / "count")
    wanted = result(case, tmp_path / "count")
    for kind, fault in [(each, fault) for each in places for fault in FAULTS[each]]:
        for at in range(0, len(places[kind]), max(1, len(places[kind]) // 3)):
            what = tried(case, begin, wanted, tmp_path / "work", kind, fault, at).what
            assert what.partition(" ")[0] in ("right", "named"), f"{kind} {fault} {at}: {what}"


PAGES = {"runs/.index.json", "runs/index.html", "runs/tiny/progress.html"}
"""Of all runs, and of one at work: whatever command made them, they are written anew."""
UNFORCED = {
    "run over FLARE, operator": ["runs/tiny/remote/#/order.json"],
    "night": ["state/nights/#/log.jsonl"],
}
"""What else a loss of power may take: an order that a job has read, and the end of a log."""
QUICK = ("run", "predict", "deidentify with a new key", "night")


@pytest.mark.parametrize(
    "case",
    [pytest.param(one, id=one.name, marks=[] if one.name in QUICK else pytest.mark.slow) for one in fault_sweep.CASES],
)
def test_what_a_command_has_made_when_it_ends_no_loss_of_power_takes(start, beginning, case, tmp_path):
    left = fault_sweep.unforced(case, shutil.copytree(beginning(case), tmp_path / "work"))
    left = [re.sub(r"(?<=nights/)[^/]+", "#", name) for name in left if name not in PAGES]
    assert left == UNFORCED.get(case.name, [])


def test_a_fault_meets_the_operation_that_was_named_and_no_other(tmp_path):
    folder = DiskFolder(tmp_path)
    for kind, number in (("open", errno.EACCES), ("write", errno.ENOSPC), ("fsync", errno.EIO), ("rename", errno.EIO)):
        with (
            injected(Points(tmp_path, kind, errno.errorcode[number], 0)),
            pytest.raises(OSError, match="Errno") as met,
        ):
            folder.write("a", b"12345678")
        assert met.value.errno == number
        assert not list(tmp_path.iterdir()), "what was begun is removed"
        with injected(Points(tmp_path, kind, errno.errorcode[number], 9)):
            folder.write("a", b"12345678")
        folder.remove("a")
    with injected(Points(tmp_path, "allocation", "MemoryError", 1), allocations=True):
        torch.zeros(2)
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
            torch.zeros(2)


@pytest.mark.parametrize("safe", [True, False])
def test_a_power_cut_takes_what_was_not_forced_to_the_disk(tmp_path, safe):
    def cut() -> int:
        with injected(Points(tmp_path, "unlink", POWER, 0)):
            with open(tmp_path / "a", "wb") as file:
                file.write(b"12345678")
                file.flush()
                if safe:
                    os.fsync(file.fileno())
            (tmp_path / "a").rename(tmp_path / "b")
            (tmp_path / "b").unlink()
        return 0

    assert in_copy(cut).code == CUT
    assert (tmp_path / "b").read_bytes() == (b"12345678" if safe else b"")


def test_the_judge_sees_what_is_wrong(start, tmp_path):
    begin, _, wanted = start
    good = Ended(0, "")
    assert "99" in verdict(PRIVATE_RUN, begin, wanted, Ended(CRASHED, "a traceback"), good)
    assert "-9" in verdict(PRIVATE_RUN, begin, wanted, good, Ended(-9, ""))
    assert verdict(PRIVATE_RUN, begin, wanted, good, Ended(7, "full")).startswith("named 7")
    assert "MemoryError ended with 3" in verdict(
        PRIVATE_RUN, begin, wanted, Ended(3, "a bad file"), good, "MemoryError"
    )
    (tmp_path / "runs/tiny/sites/a").mkdir(parents=True)
    assert "other files" in verdict(PRIVATE_RUN, tmp_path, wanted, good, good)
    less = Result(wanted.files, dict.fromkeys(wanted.spent, -1.0))
    assert "spent twice" in verdict(PRIVATE_RUN, tmp_path, less, good, good)
    run = Case("run", SMALL)
    scores = tmp_path / "runs/tiny/sites/a/scores/fedavg-0123456789ab.global.1.safetensors"
    scores.parent.mkdir()
    scores.write_bytes(b"")
    once, nothing = result(run, tmp_path), Ended(CUT, "")
    assert verdict(run, tmp_path, once, nothing, good) == "right"
    scores.rename(scores.with_name("fedavg-0123456789ab-1.global.1.safetensors"))
    assert "other files" in verdict(run, tmp_path, once, nothing, good), "only a disk that lied may cost a training"
    assert verdict(run, tmp_path, once, nothing, good, LIE).startswith("again")
    next(scores.parent.iterdir()).unlink()
    assert "other files" in verdict(run, tmp_path, once, nothing, good, LIE), "and nothing of the new one is lost"


@LINUX
@pytest.mark.parametrize(
    ("until", "more"),
    [
        ("", 0),
        ("evaluate", 2**16),
        *(pytest.param(until, 2**size, marks=pytest.mark.slow) for until in ("", "evaluate") for size in range(15, 22)),
    ],
)
def test_a_run_that_gets_no_more_memory_ends_and_goes_on_with_more(start, tmp_path, until, more):
    """With the code for it, but where a library in another language ends the process or says nothing."""
    begin, _, wanted = start
    work = shutil.copytree(begin, tmp_path / "work")
    if until:  # what is tried is the stage after it
        assert called(PRIVATE_RUN, work, [*RUN, "--until", until]).code == 0
    ended = in_no_more_memory(lambda: commanded(PRIVATE_RUN, work), more=more)
    unsaid = ended.code == Exit.FAILED and "without exception set" in ended.said  # a library failed and did not say why
    assert unsaid or ended.code in (Exit.OK, Exit.MEMORY, -signal.SIGSEGV, -signal.SIGABRT), ended
    ended = Ended(CUT, ended.said) if ended.code < 0 else ended
    assert verdict(PRIVATE_RUN, work, wanted, ended, called(PRIVATE_RUN, work)) == "right"


@LINUX
def test_nobody_waits_for_a_thread_that_ended_before_it_could_say_that_it_began():
    def read() -> int:
        return len(list(run_in_order(range(50), bytes, readers=4)))

    for more in (0, 2**16, 2**24):
        ended = in_no_more_memory(read, more=more, seconds=20)
        assert ended.code == 50, ended


def test_the_sweep_begins_with_places_that_nobody_has_tried_and_leaves_none_out(tmp_path):
    from benchmarks.faults import faults as sweep

    places = {"open": ["x", "y", "x"], "rename": ["x"]}
    asked = sweep.trials("run", places, ["open", "rename"])
    assert sorted({one[1:] for one in asked}) == sorted(
        (kind, fault, at) for kind in places for fault in FAULTS[kind] for at in range(len(places[kind]))
    )
    made = [Outcome("clean", "open", "EACCES", 0, 7, 0, "right", "x")]
    new = [places[one.kind][one.at] for one in sweep.ordered(asked, {"run": places}, [])[:3]]
    assert sorted(new) == ["x", "x", "y"], "each place of each kind, once"
    first = sweep.ordered(asked, {"run": places}, made)
    assert [(one.kind, places[one.kind][one.at]) for one in first[:2]] in (
        [("open", "y"), ("rename", "x")],
        [("rename", "x"), ("open", "y")],
    )
    assert sorted(first) == sorted(asked)
    sweep.note(tmp_path / "counts", "run", places)
    sweep.note(tmp_path / "counts", "clean", {"open": ["z", "x"]})
    assert sweep.counts_of(tmp_path / "counts") == {
        "run": {"open": (3, ["x", "y"]), "rename": (1, ["x"])},
        "clean": {"open": (2, ["x", "z"])},
    }


def test_the_tests_that_the_page_names_are_there():
    page = (ROOT / "docs/results/faults.md").read_text()
    named = re.findall(r"`(test_\w+\.py)` ·\s`(test_\w+)`", page)
    assert len(named) > 12
    assert not [test for file, test in named if f"def {test}(" not in (ROOT / "tests/pipelines" / file).read_text()]
