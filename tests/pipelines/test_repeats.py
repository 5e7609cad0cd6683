"""`train.repeats`: each method is trained several times, with other seeds on the same patients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from small_run import smallest

from pipelines.coordinator.tracking.figures import collect_figures
from pipelines.loader.document import ConfigError, parse_document, render
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.load import check_config


def repeated(**train):
    made = smallest()
    made["train"] |= {"repeats": 3, "methods": {"local": {"name": "local"}, "central": {"name": "central"}}, **train}
    made["evaluate"] = {"copies": 10, "reference": "local", "public": False}
    made["pooling"] = "allowed"
    return made


def run(folder: Path, said: dict) -> Path:
    (folder / "many.yaml").write_text(yaml.safe_dump(said))
    assert main([str(folder / "many.yaml")]) == Exit.OK
    return folder / "runs" / said["name"]


def read_stage(root: Path, stage: str, name: str):
    return json.loads(next((root / stage).glob(f"*/{name}")).read_text())


def problems(said: dict) -> str:
    with pytest.raises(ConfigError) as error:
        check_config(parse_document(yaml.safe_dump(said), environment={}), files=False)
    return render(error.value, "my.yaml")


def test_trainings_differ_patients_do_not_and_the_page_has_both_intervals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = run(tmp_path, repeated())
    for label in ("local", "central"):
        files = [f"{label}.json", f"{label}--2.json", f"{label}--3.json"]
        runs = {read_stage(root, "train", file)["train_run"] for file in files}
        losses = {json.dumps(read_stage(root, "train", file)["totals"]) for file in files}
        assert len(runs) == len(losses) == 3
    rows = read_stage(root, "report", "scores.json")
    assert {row["method"] for row in rows} == {"local", "central", "majority guess"}
    assert {row["trainings"] for row in rows if row["method"] != "majority guess"} == {3}
    supports = {(row["patients"], row["positives"]) for row in rows if row["sites"] == ["a"]}
    assert len(supports) == 1
    text = (root / "report.html").read_text()
    assert "trained 3 times, with other seeds on the same patients" in text
    assert "whichever is wider" in capsys.readouterr().out
    assert len(list((root / "sites" / "a" / "cohorts").iterdir())) == 1
    artifacts = {stage: next((root / stage).iterdir()) for stage in ("train", "report")}
    curves = [(point.name, point.step) for point in collect_figures(artifacts, ["a", "b"], pages=False).points]
    assert len(curves) == len(set(curves))  # a further training has curves of its own
    assert {"loss/local/a", "loss/local--2/a", "loss/local--3/a"} <= {name for name, _ in curves}


def test_more_trainings_keep_those_that_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    once = repeated(repeats=1)
    root = run(tmp_path, once)
    first = read_stage(root, "train", "local.json")
    run(tmp_path, repeated(repeats=2))
    folders = sorted((root / "train").iterdir(), key=lambda folder: folder.stat().st_mtime)
    again = json.loads((folders[-1] / "local.json").read_text())
    assert again == first
    assert json.loads((folders[-1] / "local--2.json").read_text())["training"] == 2


def test_what_would_cost_patients_several_times_or_take_a_name_is_refused():
    private = smallest(privacy={"epsilon": 3.0, "sampling": 0.5, "views": 2}, pooling="refused")
    private["train"]["repeats"] = 3
    assert "train.repeats: 3 trainings cost their patients 3 times the privacy; say 1" in problems(private)
    clash = repeated(methods={"local": {"name": "local"}, "local--2": {"name": "local"}})
    assert "'local--2' is kept for a further training" in problems(clash)
    assert "repeats: must be in [1, 50]" in problems(repeated(repeats=0))
