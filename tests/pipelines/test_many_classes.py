"""A run whose labels have six ordered classes, from phantoms' files to predictions, private and harmonized too."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harmonized_run import settings as harmonized

from evaluation.votes import BINS
from pipelines.hospital import released_scores
from pipelines.hospital.hospital import Hospital
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.models.file import read_ready
from pipelines.phantom.organs import GRADE_GROUPS
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.dp.access import Rows
from privacy.dp.events import Gaussian, Part, compose_events
from privacy.dp.mechanisms import vote_histogram
from privacy.message import from_file


def graded(base: dict[str, Any] = BASE, **changes: Any) -> dict[str, Any]:
    """Settings of a run with grade groups as labels."""
    said = copy.deepcopy(base)
    for site in said["sites"].values():
        site["source"] |= {"labels": "grade_group", "patients": 16}
    said["task"] = {"kind": "classification", "classes": list(GRADE_GROUPS), "ordered": True}
    said["model"] = {"name": "cnn", "widths": [8, 16], "norm": "group"}
    return said | changes


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    methods = {name: {"name": name} for name in ("local", "central", "fedavg", "fenda", "moments")}
    train = BASE["train"] | {"methods": methods, "schedule": {"rounds": 1}}
    return finished_run(graded(train=train, name="grades")) / "runs" / "grades"


def artifact(root: Path, stage: str) -> Path:
    (folder,) = [path for path in (root / stage).iterdir() if (path / "manifest.json").exists()]
    return folder


def test_every_class_is_read_told_and_scored(done: Path) -> None:
    told = json.loads((artifact(done, "ingest") / "sites.json").read_text())
    for facts in told.values():
        assert sum(facts["classes"]) == facts["images"] and len(facts["classes"]) == len(GRADE_GROUPS)
        assert facts["positives"] == sum(facts["classes"][1:])
    for path in artifact(done, "evaluate").rglob("*.safetensors"):
        tensors = from_file(path).tensors
        assert tensors["confusion"].shape[1:] == (6, 6) and tensors["shape"].tolist()[1] == 5, "a row for each cut"
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    measures = {row["measure"] for row in rows}
    assert {"quadratic kappa", "MAE in grades", "ranked probability score", "AUC ≥ gg5"} <= measures
    assert not {"Brier score", "AUC gg5", "AUC ≥ none"} & measures
    for page in (done / "report.html", done / "sites" / "a" / "report.html"):
        assert "of each cut between grades" in page.read_text()


def test_a_ready_model_names_its_classes_and_predicts_the_median_of_the_highest_grade(
    done: Path, tmp_path: Path, capsys
) -> None:
    file = done / "sites" / "a" / "ready" / "moments.safetensors"
    ready = read_ready(file)
    assert ready.names == GRADE_GROUPS and ready.ordered and ready.task.ordered and ready.task.classes == 6
    (images,) = (done / "sites" / "a" / "phantom").glob("*/images")
    assert predict([str(file), str(images), "--no-gland", "--out", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert len(rows) == 16 and {row["class"] for row in rows} <= set(GRADE_GROUPS)
    for row in rows:
        chances = torch.tensor([float(row[f"p_{name}"]) for name in GRADE_GROUPS])
        assert row["class"] == GRADE_GROUPS[int((chances.flip(0).cumsum(0)[:-1] >= 0.5).sum())]
        assert float(chances.sum()) == pytest.approx(1, abs=1e-5)
    counted = {name: sum(row["class"] == name for row in rows) for name in GRADE_GROUPS}
    said = "".join(capsys.readouterr())
    assert all(f"{number} {name}" in said for name, number in counted.items() if number)
    assert predict([str(file), str(images), "--threshold", "0.3", "--out", str(tmp_path)]) == 2


@pytest.mark.chance(1e-12, "noise leaves none of 20 training patients in six cells")
def test_a_private_run_counts_each_patient_once_and_scores_every_class(finished_run) -> None:
    said = graded(name="private", privacy={"epsilon": 8.0, "delta": 1e-4}, pooling="refused")
    for site in said["sites"].values():
        site["policy"] = {"budget": {"epsilon": 100.0, "delta": 1e-4}, "min_patients": 1}
        site["source"]["patients"] = 40
    said["train"] = {"methods": {"moments": {"name": "moments"}}, "schedule": {"rounds": 1}}
    said["evaluate"] = {"checkpoint": "latest", "copies": 5, "public": False, "reference": None}
    done = finished_run(said) / "runs" / "private"
    told = json.loads((artifact(done, "ingest") / "sites.json").read_text())
    for site, facts in told.items():
        counted = json.loads((done / "sites" / site / "asked.json").read_text())["counted"]
        assert counted["classes"] == 6 and counted["noise"] >= 1
        for split, cells in counted["cells"].items():
            assert len(cells) == 6 and facts["splits"][split]["patients"] == sum(cells)
            assert facts["splits"][split]["classes"] == cells
    rows = json.loads((artifact(done, "report") / "scores.json").read_text())
    measures = {row["measure"] for row in rows if row["method"] == "moments"}
    assert {"AUC", "quadratic kappa", "MAE in grades", "AUC ≥ gg5", "sensitivity ≥ gg1"} <= measures
    assert "ranked probability score" not in measures, "eight bins tell too little of a probability"
    for path in artifact(done, "evaluate").rglob("*.safetensors"):
        assert set(from_file(path).tensors) == {"scale", "cuts", "confusion"}


def test_harmonization_keeps_the_first_class_apart_from_the_others(finished_run) -> None:
    said = graded(harmonized(), name="tiny")
    said["harmonize"]["translate"] = {"z": {"name": "z_score"}}
    said["train"] |= {"methods": {"z": {"name": "fedavg"}}, "method_images": {"z": "z"}}
    done = finished_run(said) / "runs" / "tiny"
    shared = from_file(next(artifact(done, "sample").glob("*.safetensors"))).tensors["labels"]
    assert set(shared.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"classes": ["none", "gg1"]}, "grade_group gives the classes none, gg1, gg2"),
        ({"classes": ["a", "b", "c"], "ordered": False}, "grade_group gives the classes none, gg1, gg2"),
    ],
)
def test_a_phantoms_grades_are_the_tasks_classes(change: dict[str, Any], told: str) -> None:
    said = graded()
    said["task"] |= {"ordered": False} | change
    with pytest.raises(ConfigError, match=told):
        validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)


def test_masks_and_significance_tell_two_classes_only() -> None:
    said = graded()
    for site in said["sites"].values():
        site["source"].pop("labels")
    with pytest.raises(ConfigError, match="significant tells two classes, and the task has 6"):
        validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)


def test_classes_that_no_hospital_has_are_named_at_once_and_on_the_page(tmp_path: Path, monkeypatch, capsys) -> None:
    """Tables with labels 1 and 2 under three classes, of which the first is 0."""
    monkeypatch.chdir(tmp_path)
    sites = {}
    for site in ("a", "b"):
        rows = "".join(f"{site}{number},{number % 7},{1 + number % 2}\n" for number in range(24))
        Path(f"{site}.csv").write_text(f"id,age,grade\n{rows}")
        sites[site] = {"source": {"kind": "table", "file": f"{site}.csv", "patient": "id", "label": "grade"}}
    images = {"kind": "features", "numbers": ["age"]}
    said = {"name": "tables", "sites": sites, "images": images, "model": {"name": "mlp"}, "evaluate": {"copies": 0}}
    train = {"schedule": {"rounds": 1}, "methods": {"fedavg": {"name": "fedavg"}}, "work": {"lr": 0.1, "batch": 8}}
    said |= {"task": {"kind": "classification", "classes": ["0", "1", "2"]}, "train": train, "privacy": "none"}
    Path("tables.yaml").write_text(yaml.safe_dump(said))
    assert main(["tables.yaml", "--until", "ingest"]) == 0
    assert "no hospital has an example of 0; leave it out" in capsys.readouterr().err
    assert main(["tables.yaml"]) == 0
    assert "No hospital has an example of 0; leave it out" in Path("runs/tables/report.html").read_text()


@pytest.mark.parametrize(
    ("labels", "classes", "told"),
    [
        ("0", [], "b has one class only, negative: nothing can be assessed there"),
        ("12", ["0", "1", "2"], ""),
        ("1212123", ["0", "1", "2"], "b has no example of 0, and 3 of its studies have labels that are no class"),
        ("1111112", [], "b has no example of negative, and 3 of its studies have labels that are no class"),
    ],
)
def test_one_class_and_another_counting_at_one_hospital_are_told_at_once(
    labels, classes, told, tmp_path: Path, capsys
) -> None:
    """Where the other hospital has all classes."""
    sites = {}
    for site, texts in {"a": "012" if classes else "01", "b": labels}.items():
        rows = "".join(f"{site}{number},{number % 7},{texts[number % len(texts)]}\n" for number in range(24))
        (tmp_path / f"{site}.csv").write_text(f"id,age,grade\n{rows}")
        sites[site] = {
            "source": {"kind": "table", "file": str(tmp_path / f"{site}.csv"), "patient": "id", "label": "grade"}
        }
    said = {"name": "tables", "sites": sites, "images": {"kind": "features", "numbers": ["age"]}, "privacy": "none"}
    train = {"schedule": {"rounds": 1}, "methods": {"fedavg": {"name": "fedavg"}}, "work": {"lr": 0.1, "batch": 8}}
    said |= {"model": {"name": "mlp"}, "train": train, "evaluate": {"copies": 0}, "runs": str(tmp_path)}
    said |= {"task": {"kind": "classification", "classes": classes}} if classes else {}
    (tmp_path / "tables.yaml").write_text(yaml.safe_dump(said))
    assert main([str(tmp_path / "tables.yaml"), "--until", "ingest"]) == 0
    heard = capsys.readouterr().err
    assert told in heard and bool(told) == ("another number" in heard or "one class only" in heard)


def test_histograms_of_cuts_have_the_noise_that_is_told_and_booked_and_nothing_else_leaves(tmp_path, monkeypatch):
    """Of each histogram one Gaussian event of its own noise, together as much as one histogram costs."""
    seen = []

    def record(votes, *, noise_multiplier):
        seen.append((votes, noise_multiplier))
        return vote_histogram(votes, noise_multiplier=noise_multiplier)

    monkeypatch.setattr(released_scores, "vote_histogram", record)
    hospital = Hospital("a", tmp_path, None, lambda: "2026-01-01T00:00:00")
    rows = Rows(torch.zeros(8, 1), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    p = torch.rand(8, 4, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    scores = released_scores.score_labels(hospital, rows, p, 20, released_scores.ScoreNoise(3.0, "cut"), ordered=True)
    assert set(scores.tensors) == {"scale", "cuts", "confusion"} and scores.tensors["cuts"].shape == (3, 2 * BINS)
    assert all(votes.sum(dim=1).tolist() == [2, 2, 2, 2] for votes, _ in seen)
    events = compose_events([Gaussian(noise) for _, noise in seen])
    assert scores.event == compose_events([hospital.counts, Part("cut", "test", events)])
    assert sum(noise**-2 for _, noise in seen) == pytest.approx(3.0**-2)
