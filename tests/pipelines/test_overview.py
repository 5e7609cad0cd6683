"""The page of all runs of a folder: what it says of runs that are done, at work, stopped and damaged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.run_list import (
    LONGEST,
    HospitalModel,
    RunLine,
    Training,
    find_differences,
    flatten_settings,
    render_run_list,
)
from pipelines.overview import main
from pipelines.runs.holdings import OVERVIEW, list_runs
from pipelines.runs.stopping import RunLock
from pipelines.runs.summaries import sort_lines, summarize_run
from pipelines_settings import BASE
from privacy.message import from_bytes, glance_at_facts, unseal_parts


def summarize_runs(folder: Path) -> list[RunLine]:
    return sort_lines(summarize_run(run) for run in list_runs(folder))


EVIL = "<script>alert(1)</script>"


@pytest.fixture
def folder(finished_run, tmp_path: Path) -> Path:
    """A folder with a finished run, and a copy of it under another name."""
    done = finished_run({**BASE, "name": "first"}) / "runs" / "first"
    for name in ("first", "second"):
        shutil.copytree(done, tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_a_finished_run_is_said_as_its_report_says_it(folder, capsys):
    assert main([str(folder), "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in lines] == ["first", "second"] and {line["state"] for line in lines} == {"done"}
    (answers,) = (json.loads(p.read_text()) for p in (folder / "first").glob("report/*/answers.json"))
    for line in lines:
        assert [(m["site"], m["method"]) for m in line["models"]] == [(u["site"], u["method"]) for u in answers["use"]]
        values = [use["score"]["value"] for use in answers["use"]]
        assert line["mean"] == pytest.approx(sum(values) / len(values)) and line["measure"] == "AUC"
        assert line["epsilons"] == ["∞: no formal guarantee"] and line["trouble"] == ""
        files = [path for path in (folder / line["name"]).rglob("*") if path.is_file()]
        assert line["size"] == sum(path.stat().st_size for path in files) and line["seconds"] > 0
        assert line["settings"]["name"] == "first" and (folder / line["page"]).is_file()
    page = (folder / OVERVIEW).read_text()
    assert 'href="first/report.html"' in page and "These runs have the same settings." in page


def test_runs_at_work_stopped_and_damaged_stand_beside_the_others(folder):
    shutil.rmtree(folder / "second" / "report")
    with RunLock(folder / "second"):
        at_work = {line.name: line for line in summarize_runs(folder)}["second"]
        assert at_work.progress.startswith("at work after ") and at_work.finished is None
    stopped = {line.name: line for line in summarize_runs(folder)}["second"]
    assert stopped.progress == at_work.progress.replace("at work", "stopped")
    assert (stopped.methods, stopped.settings, stopped.trouble) == ("", None, "")
    (manifest,) = (folder / "second").glob("train/*/manifest.json")
    manifest.write_text("{")
    (answers,) = (folder / "first").glob("report/*/answers.json")
    answers.write_text("{}")
    lines = {line.name: line for line in summarize_runs(folder)}
    assert "train: corrupt" in lines["second"].trouble
    assert "its report cannot be read (KeyError); run it again with --from report" in lines["first"].trouble
    assert lines["first"].state == "done", "the others are listed, and so is what can be read of this one"


def test_a_run_at_work_shows_how_far_its_trainings_are_and_the_page_is_read_again(folder, monkeypatch):
    shutil.rmtree(folder / "second" / "report")
    expected = {}
    for path in (folder / "second" / "federation").glob("*/state"):
        facts = from_bytes(unseal_parts(path.read_bytes())).facts
        losses = {int(number): loss for number, loss in facts["totals"].items() if loss is not None}
        expected[path.parent.name.rpartition("-")[0]] = (max(losses), tuple(sorted(losses.items())))
    assert expected and glance_at_facts(path) == facts
    lines = {line.name: line for line in summarize_runs(folder)}
    assert {t.method: (t.round, t.losses) for t in lines["second"].trainings} == expected
    assert lines["first"].trainings == (), "a finished run's page has them"
    lock, pauses = RunLock(folder / "second"), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert f'<meta http-equiv="refresh" content="{seconds}">' in (folder / OVERVIEW).read_text()
        if len(pauses) == 2:
            lock.__exit__(None, None, None)

    monkeypatch.setattr("pipelines.overview.time.sleep", pause)
    lock.__enter__()
    assert main([str(folder), "--watch", "7", "--json"]) == 0 and pauses == [7, 7]
    page = (folder / OVERVIEW).read_text()
    assert "refresh" not in page.partition("<script>")[0] and "second: stopped after" in page
    path.write_bytes(path.read_bytes()[:50])  # it is being replaced, or the disk is damaged
    assert len({line.name: line for line in summarize_runs(folder)}["second"].trainings) == len(expected) - 1


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_a_curve_lies_within_its_picture_and_falls_where_losses_fall(losses):
    training = Training("m", len(losses), tuple(enumerate(losses, 1)))
    points = [tuple(map(float, point.split(","))) for point in training.curve.split()]
    assert all(0 <= x <= 120 and 0 <= y <= 20 for x, y in points)
    for (_, before), (_, after), low, high in zip(points, points[1:], losses, losses[1:], strict=False):
        assert after >= before - 1e-9 if high <= low else after <= before + 1e-9
    assert Training("m", 1, ((1, 0.5),)).curve == ""


def test_a_lock_of_a_process_that_is_gone_is_no_work(folder):
    shutil.rmtree(folder / "second" / "report")
    with RunLock(folder / "second"):
        (name,) = {path.name for path in (folder / "second").iterdir()} - {p.name for p in (folder / "first").iterdir()}
        holder = json.loads((folder / "second" / name).read_text())
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    place = folder / "second" / name
    for wrong in ({"pid": pid}, {"pid": 0}, {"pid": 2**70}, {"pid": "x"}, {"host": "elsewhere"}):
        place.write_text(json.dumps({**holder, **wrong}))
        if "host" in wrong:
            assert state_of_second(folder).startswith("at work"), "a machine that is not seen from here"
            for path in [folder / "second", *(folder / "second").rglob("*")]:
                os.utime(path, (1e9, 1e9), follow_symlinks=False)
        assert state_of_second(folder).startswith("stopped"), wrong


def state_of_second(folder: Path) -> str:
    return {line.name: line.state for line in summarize_runs(folder)}["second"]


def test_a_run_that_cannot_be_listed_is_a_line_with_its_reason(folder, monkeypatch):
    listed = os.listdir

    def refuse(path):
        if "second" in str(path) and "train" in str(path):
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(os, "listdir", refuse)
    first, second = summarize_runs(folder)
    assert (first.state, second.state, second.trouble) == (
        "done", "unknown", "it cannot be read (PermissionError: Permission denied)"
    )  # fmt: skip


def test_a_folder_that_is_none_is_a_wrong_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "nowhere")])
    assert caught.value.code == 2 and "nowhere is no folder" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 0
    assert "No run is in this folder." in (tmp_path / OVERVIEW).read_text()


def line_of(name: str, text: str, finished: float = 1.0) -> RunLine:
    flat = flatten_settings(yaml.safe_load(text))
    return RunLine(name=name, state="done", finished=finished, seconds=1.0, size=1, settings=flat)


def test_settings_that_differ_are_named_by_path_and_no_others():
    first = line_of("a", f"name: a\nx: {{lr: 1, b: [1, 2]}}\nl: [{{k: 1}}, {{k: 2}}]\ny: {{}}\nz: {EVIL!r}")
    second = line_of("b", f"name: b\nx: {{lr: 2, b: [1, 2]}}\nl: [{{k: 1}}, {{k: 3}}]\nw: null\nz: {EVIL!r}")
    differing = {row.path: row.values for row in find_differences([first, second])}
    assert differing == {"x.lr": ("1", "2"), "l.1.k": ("2", "3"), "y": ("{}", "–"), "w": ("–", "null")}
    page = render_run_list([first, line_of("b", f"z: {EVIL + '2'!r}")], "runs", "2026-11-29")
    assert EVIL not in page and "&lt;script&gt;alert(1)" in page
    many = [line_of(f"r{k}", f"x: {k}", finished=k) for k in range(12)]
    assert "the newest runs with a report" in render_run_list(many, "runs", "2026-11-29")


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=LONGEST, max_size=2 * LONGEST), st.data())
def test_settings_that_differ_after_their_first_letters_differ_too(values, data):
    """A long setting is shortened where it is shown, not before it is compared, and what is shown differs."""
    place = data.draw(st.integers(0, len(values) - 1))
    other = [*values[:place], values[place] + 1, *values[place + 1 :]]
    lines = [line_of(name, yaml.safe_dump({"x": own})) for name, own in (("a", values), ("b", other))]
    (row,) = find_differences([*lines, line_of("c", "y: 1")])[:1]
    assert (
        row.path == "x"
        and row.values[0] != row.values[1]
        and row.values[2] == "–"
        and all(len(text) <= LONGEST for text in row.values)
    )
    assert lines[0].settings is not None and yaml.safe_load(lines[0].settings["x"]) == values, "whole for machines"


def test_settings_are_written_as_a_user_writes_them():
    text = "a: null\nb: true\nc: [coordinator, outside]\nd: 1.0e-05\ne: {}\nf: some words\ng: ü"
    shown = flatten_settings(yaml.safe_load(text))
    assert {path: yaml.safe_load(value) for path, value in shown.items() if path != "d"} == {
        "a": None, "b": True, "c": ["coordinator", "outside"], "e": {}, "f": "some words", "g": "ü",
    }  # fmt: skip
    assert float(shown["d"]) == 1e-5


def test_a_hospital_without_a_model_does_not_make_other_scores_weak():
    """The star stands for too few patients, not for a hospital that should use no model."""
    strong, weak = (HospitalModel(name, "local", "AUC", 0.7, name == "north") for name in ("north", "south"))
    none = HospitalModel("west", "")
    for models, is_strong, counted in (
        ((strong,), True, ""), ((strong, none), True, "1 of 2 hospitals"), ((strong, weak), False, ""),
        ((none,), False, ""),
    ):  # fmt: skip
        line = RunLine("a", "done", 1.0, 1.0, 1, models=models)
        assert line.is_assessable is is_strong and line.share_scored == counted
        page = render_run_list([line], "runs", "2026-11-29")
        assert ("</span>*" in page) == (len(models) == 2 and weak in models) and (
            not counted or "north 0.700, west –" in page
        )
