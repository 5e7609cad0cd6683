"""Floors beside a network of images, from YAML to a file that predicts, and where a private run refuses them."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
import yaml

from pipelines.loader.validation import to_plain
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.floors import OF_CHANNELS
from pipelines.settings.load import load
from pipelines_settings import BASE

METHODS = {name: {"name": name} for name in ("fedavg", "local_ridge", "local_svm")}
FEW = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 60, "components": 8}
TRAIN = {"schedule": {"rounds": 2}, "work": {"lr": 1e-2, "batch": 16}, "methods": METHODS}
VARIANTS = {"tuned": {"of": "fedavg", "calibration": "fine_tuned", "tuning": {"epochs": 1}}}
SETTINGS = {**BASE, "train": TRAIN, "evaluate": {"copies": 20, "reference": "local_ridge", "variants": VARIANTS}}


def written(folder: Path, settings: dict) -> str:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    os.chdir(folder)
    return str(folder / "tiny.yaml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("floors")
    quick = {**TRAIN, "method_model": {"local_ridge": FEW, "local_svm": FEW}}
    assert run([written(folder, {**SETTINGS, "train": quick})]) == Exit.OK
    return folder / "runs" / BASE["name"]


def test_floors_get_features_where_the_network_gets_images(tmp_path):
    config = load(written(tmp_path, SETTINGS))
    assert config.model_of("local_svm") == OF_CHANNELS[1] and config.model_of("fedavg") == config.model
    assert config.task_of("local_ridge").inputs == (60,)


def test_floors_stand_in_the_tables_beside_networks(finished):
    with next(finished.rglob("report/*/scores.csv")).open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "AUC" and row["protocol"] == "private"]
    assert {row["method"] for row in rows} >= {"fedavg", "local_ridge", "local_svm", "tuned", "majority guess"}


@pytest.mark.parametrize("label", ["local_ridge", "local_svm", "tuned"])
def test_a_floor_and_a_fine_tuned_model_are_files_that_predict(finished, label, tmp_path):
    ready = finished / "sites" / "a" / "ready" / f"{label}.safetensors"
    images = finished / "sites" / "a" / "phantom"
    assert predict([str(ready), str(images), "--out", str(tmp_path), "--no-gland"]) == Exit.OK
    with (tmp_path / "predictions.csv").open() as file:
        assert len([*csv.DictReader(file)]) > 3


def test_a_private_run_refuses_them_and_names_a_private_floor(tmp_path, capsys):
    private = {"epsilon": 3.0, "delta": 1e-5}
    settings = {**SETTINGS, "privacy": private, "evaluate": {"copies": 0}}
    assert run([written(tmp_path, settings), "--check"]) == Exit.CONFIG
    assert "others_gram: 0" in capsys.readouterr().err


def test_a_settings_file_without_floors_is_what_it_was(tmp_path):
    train = {**TRAIN, "methods": {"fedavg": {"name": "fedavg"}}}
    config = load(written(tmp_path, {**SETTINGS, "train": train, "evaluate": {"copies": 20}}))
    assert json.dumps(to_plain(config.train.method_model)) == "{}"
