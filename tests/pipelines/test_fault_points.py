"""An operation on a file fails once; the same command again ends right, and nothing is spent twice.

The whole sweep is `benchmarks/faults.py`, with its figures in docs/results/faults.md; here are a few points of it, and
with `--thorough` some hundreds.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import fault_sweep
import pytest
import torch
from fault_sweep import Case, Result, counted, prepared, result, tried, verdict
from injected import CUT, FAULTS, POWER, Points, injected
from limited import CRASHED, Ended, in_copy
from small_run import PRIVATE

from pipelines.runs.store import DiskFolder

PRIVATE_RUN = Case("private run", PRIVATE, exact=False)
POINTS = [("write", "ENOSPC", 0.9), ("fsync", POWER, 0.7), ("fsync", "EIO", 0.95), ("rename", POWER, 0.5)]
POINTS += [("read", "EIO", 0.3), ("open", "EMFILE", 0.6), ("study", "MemoryError", 0.5)]
"""Kind, fault, and how far into the command."""


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> tuple[Path, dict[str, list[str]], Result]:
    """A folder where the private run begins, where it makes its operations, and where it ends."""
    folder = tmp_path_factory.mktemp("faults")
    fault_sweep.warmed(folder / "warm")
    begin = prepared(PRIVATE_RUN, folder / "start")
    places = counted(PRIVATE_RUN, begin, folder / "work")
    return begin, places, result(PRIVATE_RUN, folder / "work")


@pytest.mark.parametrize(("kind", "fault", "far"), POINTS)
def test_a_private_run_goes_on_after_a_fault_and_spends_what_it_would_have(start, tmp_path, kind, fault, far):
    begin, places, wanted = start
    at = int(len(places[kind]) * far)
    outcome = tried(PRIVATE_RUN, begin, wanted, tmp_path / "work", kind, fault, at)
    assert outcome.place in places[kind], outcome
    assert outcome.what == "right", outcome
    assert outcome.first in ({CUT} if fault == POWER else {0, 7, 9}), outcome


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
    (tmp_path / "runs/tiny/sites/a").mkdir(parents=True)
    assert "other files" in verdict(PRIVATE_RUN, tmp_path, wanted, good, good)
    less = Result(wanted.files, dict.fromkeys(wanted.spent, -1.0))
    assert "spent twice" in verdict(PRIVATE_RUN, tmp_path, less, good, good)
