"""A finished model on new files: what it says of the test patients is what the run said of them."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
from pathlib import Path

import pydicom
import pytest
import torch
import yaml

from federation.task import Task
from file_counts import check_file_counts
from pipelines.batch import prediction
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import from_bytes, unseal_parts


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The sites of a run of phantoms that scored its models: one writes DICOM, the other NIfTI."""
    folder = tmp_path_factory.mktemp("run")
    os.chdir(folder)
    settings = {**BASE, "train": {**BASE["train"], "schedule": {"rounds": 1}}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert run(["tiny.yaml", "--until", "evaluate"]) == Exit.OK
    return folder / "runs" / "tiny" / "sites"


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def phantom(site: Path) -> Path:
    (folder,) = site.glob("phantom/*/images")
    return folder.parent


@pytest.mark.parametrize("name", ["a", "b"])
def test_scores_of_test_patients_are_those_of_the_run(site, name, tmp_path):
    home, files = site / name, phantom(site / name)
    model = home / "ready" / "fedper.safetensors"
    told = predict(
        [str(model), str(files / "images"), "--gland", str(files / "masks" / "gland"), "--out", str(tmp_path)]
    )
    assert told == Exit.OK
    found = {line["patient"]: float(line["score"]) for line in lines(tmp_path / "predictions.csv")}
    (kept,) = home.glob("scores/fedper-*.safetensors")
    scores = from_bytes(kept.read_bytes()).tensors
    highest = [
        float(scores["probabilities"][scores["patient"] == patient, 1].max()) for patient in scores["patient"].unique()
    ]
    assert len(found) == 10
    assert all(min(abs(score - one) for one in found.values()) < 2e-6 for score in highest)  # a table has six digits


def test_what_cannot_be_read_is_in_the_quarantine_and_the_rest_is_scored(site, tmp_path):
    files = phantom(site / "a")
    model = site / "a" / "ready" / "local.safetensors"
    assert predict([str(model), str(files / "images"), "--no-gland", "--out", str(tmp_path)]) == Exit.OK
    assert len(lines(tmp_path / "predictions.csv")) == 10
    (refused,) = lines(tmp_path / "quarantine.csv")
    assert refused["reason"]
    assert {path.stat().st_mode & 0o077 for path in tmp_path.glob("*.csv")} == {0}


@pytest.fixture
def pull(site, tmp_path) -> Path:
    """What a hospital pulls: the phantom's patients, one of them with a series of another kind only, and much else."""
    images = tmp_path / "pull"
    shutil.copytree(phantom(site / "a") / "images", images)
    other = sorted({path.parent for path in images.rglob("*.dcm")})[0]
    for path in other.iterdir():
        file = pydicom.dcmread(path)
        file.ImageType, file.SeriesDescription = ["ORIGINAL", "PRIMARY", "M"], "t2_tse_tra"
        file.save_as(path)
    (images / "letter.txt").write_text("Dear colleague")
    (images / ".DS_Store").write_text("x")
    (images / "packed").mkdir()
    (images / "packed" / "x.dcm.gz").write_bytes(gzip.compress(next(other.iterdir()).read_bytes()))
    return images


def test_every_file_is_accounted_for_and_a_patient_without_a_score_is_named(site, pull, tmp_path, capsys):
    model = str(site / "a" / "ready" / "local.safetensors")
    assert predict([model, str(pull), "--no-gland", "--out", str(tmp_path / "out"), "--json"]) == Exit.OK
    told, table = json.loads(capsys.readouterr().out), lines(tmp_path / "out" / "accounted.csv")
    check_file_counts(told, table)
    assert told["files"] == sum(path.is_file() for path in pull.rglob("*"))
    scored = {line["patient"] for line in lines(tmp_path / "out" / "predictions.csv")}
    assert scored == {line["patient"] for line in table if line["class"] == "used"}
    (missed,) = {line["patient"] for line in table if line["class"] == "not_selected"} - {""}
    assert missed not in scored and told["patients_without_use"] >= 1
    (named,) = [line for line in lines(tmp_path / "out" / "quarantine.csv") if line["reason"] == "nothing_selected"]
    assert named["study"] == f"patient {missed}" and "t2_tse_tra" in named["detail"]
    assert {line["reason"] for line in table} >= {"packed", "hidden", "no_image", "series_not_selected"}
    assert predict([model, str(pull), "--no-gland", "--out", str(tmp_path / "out")]) == Exit.OK
    said = " ".join(capsys.readouterr().err.split())
    assert f"{told['files']} files: {told['used_files']} used, {told['quarantined_files']} quarantined" in said
    assert "Patients of whom nothing was used" in said and missed not in said


def test_a_pull_that_changes_under_way_sets_its_study_aside_and_the_rest_is_scored(site, tmp_path, monkeypatch):
    images = tmp_path / "in"
    shutil.copytree(phantom(site / "a") / "images", images)
    kept = prediction.open_unlabelled

    def opening(*arguments):
        opened = kept(*arguments)
        first, second = (next(images.rglob(f"{one.study.split('/')[0]}/*.dcm")) for one in opened.waiting[:2])
        first.unlink()
        second.write_bytes(second.read_bytes() + b"more")
        return opened

    monkeypatch.setattr(prediction, "open_unlabelled", opening)
    model = str(site / "a" / "ready" / "local.safetensors")
    assert predict([model, str(images), "--no-gland", "--out", str(tmp_path / "out")]) == Exit.OK
    assert len(lines(tmp_path / "out" / "predictions.csv")) == 8
    assert {line["reason"] for line in lines(tmp_path / "out" / "quarantine.csv")} >= {"vanished", "still_written"}


def test_a_network_that_gives_no_number_scores_nobody_negative(site, tmp_path, monkeypatch):
    monkeypatch.setattr(Task, "probabilities", lambda self, module, x, **how: torch.full((len(x), 2), torch.nan))
    home, files = site / "b", phantom(site / "b")
    arguments = [str(home / "ready" / "fedper.safetensors"), str(files / "images"), "--no-gland", "--out"]
    assert predict([*arguments, str(tmp_path)]) == Exit.DATA
    assert not lines(tmp_path / "predictions.csv")
    assert {line["reason"] for line in lines(tmp_path / "quarantine.csv")} == {"not_finite"}


def test_a_model_of_dicom_reads_nifti_and_the_other_way_round(site, tmp_path):
    for model, other in (("a", "b"), ("b", "a")):
        files = phantom(site / other)
        kind = ["--kind", "nifti"] if other == "b" else ["--kind", "dicom", "--select", "ImageType=ADC"]
        arguments = [str(site / model / "ready" / "local.safetensors"), str(files / "images"), "--no-gland", *kind]
        assert predict([*arguments, "--out", str(tmp_path / other)]) == Exit.OK
        assert len(lines(tmp_path / other / "predictions.csv")) == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "."], "centred on the gland"),
        (["--no-gland", "--select", "ADC"], "not KEYWORD=TEXT"),
        (["--no-gland", "--select", "ImageType=T2"], "matches"),
        (["--no-gland", "--threshold", "nan"], "--threshold must be in [0, 1]"),
    ],
)
def test_what_does_not_go_together_is_told(site, arguments, said, capsys, tmp_path):
    images = str(phantom(site / "a") / "images")
    model = str(site / "a" / "ready" / "local.safetensors")
    assert predict([model, images, "--out", str(tmp_path), *arguments]) == Exit.CONFIG
    assert said in capsys.readouterr().err


def test_a_model_of_nifti_does_not_guess_which_dicom_series_are_its_kind(site, tmp_path, capsys):
    arguments = [str(site / "b" / "ready" / "local.safetensors"), str(phantom(site / "a") / "images"), "--no-gland"]
    assert predict([*arguments, "--kind", "dicom", "--out", str(tmp_path / "out")]) == Exit.CONFIG
    assert "--select kind=adc" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "file").write_text("x")
    assert predict([*arguments, "--out", str(tmp_path / "file")]) == Exit.CONFIG


def test_names_of_files_may_be_in_any_encoding(site, tmp_path):
    shutil.copytree(phantom(site / "b") / "images", tmp_path / "images")
    first, *_ = sorted(os.listdir(os.fsencode(tmp_path / "images")))
    folder = os.fsencode(tmp_path / "images")
    os.rename(os.path.join(folder, first), os.path.join(folder, b"M\xfcller.nii.gz"))
    with open(os.path.join(folder, b"Gru\xdf.nii.gz"), "wb") as file:
        file.write(b"x")
    model = str(site / "b" / "ready" / "local.safetensors")
    assert predict([model, str(tmp_path / "images"), "--no-gland", "--out", str(tmp_path)]) == Exit.OK
    assert b"M\xfcller" in (tmp_path / "predictions.csv").read_bytes()
    assert b"Gru\xdf" in (tmp_path / "quarantine.csv").read_bytes()


@pytest.mark.parametrize("damage", ["missing", "short", "foreign"])
def test_a_file_that_is_no_model_is_refused_in_words(site, tmp_path, damage, capsys):
    path = tmp_path / "model.safetensors"
    good = (site / "a" / "ready" / "local.safetensors").read_bytes()
    if damage != "missing":
        path.write_bytes(good[:-40] if damage == "short" else b"PK\x03\x04 a zip file")
    assert predict([str(path), str(tmp_path), "--out", str(tmp_path)]) == Exit.CONFIG
    assert "model" in capsys.readouterr().err


def test_a_ready_model_names_nobody_and_no_folder(site):
    facts = from_bytes(unseal_parts((site / "b" / "ready" / "fedavg.safetensors").read_bytes())).facts
    text = json.dumps(dict(facts))
    assert str(site.parents[1]) not in text
    assert "images" not in str(facts["source"]["folder"])
    assert facts["site"] == "b"


def test_nothing_readable_is_a_matter_of_data(site, tmp_path, capsys):
    shutil.copytree(phantom(site / "b") / "images", tmp_path / "images")
    for path in (tmp_path / "images").rglob("*"):
        if path.is_file():
            path.write_bytes(b"x")
    model = str(site / "b" / "ready" / "local.safetensors")
    arguments = [model, str(tmp_path / "images"), "--no-gland", "--out", str(tmp_path), "--json"]
    assert predict(arguments) == Exit.DATA
    assert json.loads(capsys.readouterr().out)["studies"] == 0
