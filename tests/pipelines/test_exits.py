from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.batch.loop import Results, collect_results, run_batch
from pipelines.loader.document import ConfigError
from pipelines.runs.exits import Exit, exit_code
from pipelines.runs.runner import SelectionError, StageFailed
from pipelines.runs.stopping import LockedError, Stopped
from pipelines.runs.store import ArtifactError
from privacy.settings_error import Problem

NAME = "Miller^Ann"  # a patient's
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_page_and_the_numbers_agree():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(code), name) for code, name, _, _ in rows] == [(int(each), each.name) for each in Exit]
    assert all(len(meaning.strip()) > 10 and len(remedy.strip()) > 10 for _, _, meaning, remedy in rows)


def test_a_shell_can_carry_them():
    assert len({int(each) for each in Exit}) == len(Exit)
    assert all(0 <= each < 256 and each != 1 for each in Exit)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError([Problem(("a",), "no", 1)]), Exit.CONFIG),
        (SelectionError("--only x"), Exit.CONFIG),
        (LockedError("held"), Exit.LOCKED),
        (Stopped("SIGTERM"), Exit.STOPPED),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (OSError(28, "No space left on device"), Exit.DISK),
        (ArtifactError("corrupt"), Exit.DISK),
        (RuntimeError("bug"), Exit.FAILED),
        (KeyError("bug"), Exit.FAILED),
        (StageFailed("train", OSError(28, "full"), "again"), Exit.DISK),
        (StageFailed("train", RuntimeError("bug"), "again"), Exit.FAILED),
    ],
)
def test_every_failure_has_its_number(error, code):
    assert exit_code(error) is code


def test_other_rooms_bring_their_own_failures():
    class QuorumError(RuntimeError):
        pass

    also = {QuorumError: Exit.SITE, FileNotFoundError: Exit.DATA}
    assert exit_code(StageFailed("train", QuorumError("1 of 3"), "again"), also=also) is Exit.SITE
    assert exit_code(FileNotFoundError("x"), also=also) is Exit.DATA
    assert exit_code(PermissionError("x"), also=also) is Exit.DISK


def test_an_unforeseen_error_of_a_batch_job_has_a_code_and_a_place_and_quotes_no_patient(capsys):
    def work(console):
        raise RuntimeError(NAME)

    assert run_batch(work) == Exit.FAILED
    printed = capsys.readouterr()
    assert "test_exits.py" in printed.err
    assert "RuntimeError" in printed.err
    assert "Miller" not in printed.out + printed.err


def test_a_wrong_value_in_the_middle_of_the_work_is_no_mistake_of_the_command_line(capsys):
    def results():
        raise ValueError(NAME)
        yield

    assert (
        run_batch(lambda console: collect_results("predict", results(), 1, Results([], []), console) or 0)
        == Exit.FAILED
    )
    assert "Miller" not in capsys.readouterr().err


MISSING = {
    "no.yaml": [[command, "no.yaml"] for command in ("run", "check", "study", "night", "site", "plugins")],
    "no.model": [
        ["predict", "no.model", "images", "--out", "out"],
        ["predict", "no.model", "images", "--out", "out", "--recommended"],
        ["translate", "no.model", "images", "--out", "out", "--keep-names"],
        ["export", "no.model", "--out", "out", "--onnx"],
        ["sign", "no.model", "--key", "a.txt"],
    ],
    "a.txt/no": [["predict", "a.txt/no", "images", "--out", "out"], ["export", "a.txt/no", "--out", "out", "--onnx"]],
    "images": [["predict", "images", "images", "--out", "out"], ["export", "images", "--out", "out", "--onnx"]],
    "no": [
        ["deidentify", "no", "out", "--key", "a.txt"],
        ["ledger", "verify", "no"],
        ["clean", "no"],
        ["overview", "no"],
    ],
}
"""Path that is not there, or is a folder, or lies in a file -> commands that are given it."""
CASES = [(path, command) for path, commands in MISSING.items() for command in commands]


@pytest.mark.parametrize(("path", "command"), CASES, ids=[" ".join(command) for _, command in CASES])
def test_a_path_that_cannot_be_read_is_an_error_of_the_command_line(path, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "a.txt").write_text("a")
    try:
        code = main(command)
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == Exit.CONFIG, said
    (told,) = [line for line in said.splitlines() if path in line and "reading" not in line][:1]
    assert len(told.split()) > 3 and "Traceback" not in said


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--patience", "nan"], "--patience: must be a number > 0, as in 60, found 'nan'"),
        (["--patience", "0"], "--patience: must be a number > 0, as in 60, found '0'"),
        (["--silence", "inf"], "--silence: must be a number > 0, as in 60, found 'inf'"),
        (["--silence", "soon"], "--silence: must be a number > 0, as in 60, found 'soon'"),
        (["--kit", "kit"], "--kit: kit, and hospitals are simulated here; say --engine flare"),
    ],
)
def test_options_of_the_transport_are_refused_before_anything_is_read(command, options, reason, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "nowhere.yaml", *options])
    assert ended.value.code == Exit.CONFIG
    assert reason in " ".join(capsys.readouterr().err.split())
