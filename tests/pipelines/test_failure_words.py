"""What a machine says when it fails: one line a hospital, what was kept, and a command that goes on, where one does."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from small_run import smallest

from federation.rounds import QuorumLost
from pipelines.coordinator import run as coordinator
from pipelines.coordinator.arguments import parse_arguments
from pipelines.coordinator.failures import code_of, report_failure
from pipelines.coordinator.stages import train
from pipelines.coordinator.world import SitesMissing
from pipelines.hospital import worker
from pipelines.hospital.hospital import Hospital
from pipelines.remote.order import GONE, is_resumable
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.runner import StageFailed
from privacy.release.refusals import UNDECIDED

ROOT = Path(__file__).parents[2]


def options(*more: str) -> argparse.Namespace:
    return parse_arguments(["tiny.yaml", *more])


def said(error: Exception, capsys: pytest.CaptureFixture[str], **more: object) -> str:
    report_failure(error, None, options(), Console(stderr=True), **more)  # type: ignore[arg-type]
    return capsys.readouterr().err


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_machine_that_is_full_says_what_to_do_and_the_command_that_goes_on(error, capsys):
    told = said(error, capsys)
    assert "free" in told and told.rstrip().endswith("to go on:\npython -m pipelines.run tiny.yaml")
    assert said(ValueError("a bug"), capsys).count("to go on") == 0


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        (["disk"], Exit.DISK),
        (["disk", "disk"], Exit.DISK),
        (["memory"], Exit.MEMORY),
        (["disk", "memory"], Exit.MEMORY),
        (["no_files", "bad_source"], Exit.DATA),
        (["disk", "lost"], Exit.SITE),
        (["memory", "budget"], Exit.SITE),
        (["no_files", "disk"], Exit.SITE),
    ],
)
def test_a_run_has_the_code_of_a_reason_only_where_it_is_that_of_all_who_did_not_answer(codes, code):
    missing = {f"site-{number}": one for number, one in enumerate(codes)}
    assert code_of(SitesMissing("ingest", missing, where="log.txt")) == code
    assert code_of(QuorumLost("r", 1, missing)) == code


def test_a_log_that_cannot_be_written_is_one_line_for_each_failure(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    hospital = Hospital("a", tmp_path / "file", None, lambda: "now")
    worker.write_log_line(hospital, "r round 1 train: \n  File x\n  File y\nOSError: No space left on device")
    (line,) = caplog.messages
    assert "\n" not in line and "log.txt cannot be written" in line
    assert "r round 1 train" in line and line.endswith("OSError: No space left on device")


def test_a_folder_that_is_deleted_at_work_is_said_to_be_gone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(smallest(pooling="refused")))

    def run(world, inputs, out):
        shutil.rmtree(tmp_path / "runs" / "tiny")
        return train.run(world, inputs, out)

    stages = tuple(coordinator.replace(one, run=run) if one.name == "train" else one for one in coordinator.STAGES)
    monkeypatch.setattr(coordinator, "STAGES", stages)
    assert main(["tiny.yaml"]) not in (Exit.OK, Exit.CONFIG)
    told = capsys.readouterr().err
    assert "is gone, with the stages that were finished" in told and "are kept" not in told
    assert told.rstrip().endswith("python -m pipelines.run tiny.yaml"), "it begins with the first stage"


def test_over_flare_nobody_is_told_to_go_on_with_what_goes_on_by_itself(tmp_path, capsys):
    lost = StageFailed("evaluate", SitesMissing("evaluate", {"a": "gone"}, where="its log"), "again")
    assert "to go on:\nagain" in said(lost, capsys)
    assert not is_resumable(tmp_path, Exit.SITE) and is_resumable(tmp_path, Exit.STOPPED)
    (tmp_path / GONE).write_text(json.dumps(["a"]))
    assert is_resumable(tmp_path, Exit.SITE) and not is_resumable(tmp_path, Exit.FAILED)
    told = said(lost, capsys, resumes=lambda code: is_resumable(tmp_path, code))
    assert "goes on by itself" in told and "to go on:" not in told and "again" not in told


def test_no_code_of_a_refusal_is_a_reason_of_a_night():
    """A code that means two things sends a person to the wrong page."""
    nights = "".join(path.read_text() for path in (ROOT / "pipelines" / "nights").glob("*.py"))
    ours = {"no_archive", "bad_archive", "no_files", "no_folder"}  # of archives and folders, in both
    assert [code for code in UNDECIDED if f'"{code}"' in nights and code not in ours] == []
