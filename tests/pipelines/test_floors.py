"""Floors beside a network of images, from YAML to a file that predicts, and where a private run refuses them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score

from pipelines.loader.validation import to_plain
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.floors import FEATURES_BY_CHANNELS
from pipelines.settings.load import load_config
from pipelines_settings import BASE
from privacy.release import ledger

METHODS = {name: {"name": name} for name in ("fedavg", "local_ridge", "local_svm")}
FEW = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
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
    config = load_config(written(tmp_path, SETTINGS))
    assert config.model_of("local_svm") == FEATURES_BY_CHANNELS[1] and config.model_of("fedavg") == config.model
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


def test_every_hospital_is_recommended_a_model_or_its_own_and_predict_takes_it(finished, tmp_path, capsys):
    told = json.loads(next(finished.rglob("report/*/report.json")).read_text())["decisions"]
    said = {one["site"]: one["recommendation"] for one in told}
    assert sorted(said) == ["a", "b"]
    for decided, (site, one) in zip(told, said.items(), strict=True):
        kept = json.loads((finished / "sites" / site / "recommended.json").read_text())
        assert kept["decision"] == decided and decided["final"] and one["own"] in ("local_ridge", "local_svm")
        assert one["low"] < one["gain"] < one["high"] and 0 < one["sure"] < 1
        assert one["of"] == 3 and one["others"] == 1, (
            "fedavg, its tuned form, and the own; one other hospital was heard"
        )
        page = (finished / "sites" / site / "report.html").read_text()
        assert "expected" in page and "other hospital measured" in page
    images = finished / "sites" / "a" / "phantom"
    arguments = [str(images), "--out", str(tmp_path), "--no-gland"]
    assert predict([str(finished / "sites" / "a"), "--recommended", *arguments]) == Exit.OK
    assert predict([str(tmp_path), "--recommended", *arguments]) == Exit.CONFIG
    assert "recommended.json" in capsys.readouterr().err


def validated(home: Path, labels: Sequence[str]) -> dict[str, float]:
    """AUC of a hospital's validation rows, from the scores that it keeps."""
    found = {}
    for label in labels:
        (path,) = (home / "scores").glob(f"{label}-*.?.safetensors")
        kept = load_file(path)
        y = kept["validation/y"].numpy()
        found |= {label: roc_auc_score(y, kept["validation/probabilities"][:, 1].numpy())} if 0 < y.mean() < 1 else {}
    return found


def test_the_best_line_at_home_is_that_of_validation_patients_and_a_named_reference_still_wins(finished):
    page = json.loads(next(finished.rglob("report/*/report.json")).read_text())
    home = page["at_home"]
    means = dict.fromkeys(home["lines"], 0.0)
    for site in page["sites"]:
        (counted,) = [split for split in site["splits"] if split["split"] == "validation"]
        weight = min(counted["positives"], counted["images"] - counted["positives"])
        scores = validated(finished / "sites" / site["site"], home["lines"])
        assert len(scores) == len(home["lines"]) and weight
        means = {line: mean + weight * scores[line] for line, mean in means.items()}
    assert page["reference"] == "local_ridge" and home["lines"] == ["local_ridge", "local_svm"]
    assert home["reference"] == max(means, key=means.__getitem__) and home["hospitals"] == len(page["sites"])
    assert {row["method"] for row in home["gains"]} == {"fedavg", "tuned"}
    said = (finished / "report.html").read_text()
    assert f"over {home['reference']}" in said[: said.index('<h2 id="use">')], "the first screen is over the best floor"


def test_a_private_run_refuses_them_and_names_a_private_floor(tmp_path, capsys):
    private = {"epsilon": 3.0, "delta": 1e-5}
    settings = {**SETTINGS, "privacy": private, "evaluate": {"copies": 0}}
    assert run([written(tmp_path, settings), "--check"]) == Exit.CONFIG
    assert "others_gram: 0" in capsys.readouterr().err


@pytest.fixture(scope="module")
def private(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("private")
    methods = {"moments": {"name": "moments"}, "alone": {"name": "moments", "others_gram": 0, "others_classes": 0}}
    train = {**TRAIN, "methods": methods}
    settings = {**SETTINGS, "model": FEW, "train": train, "privacy": {"epsilon": 8.0, "clip": 1.0, "sampling": 0.5}}
    del settings["pooling"]
    settings |= {"sites": {site: {"source": one["source"]} for site, one in BASE["sites"].items()}}
    settings |= {"evaluate": {"copies": 20}, "audit": {"membership": False, "canaries": 0}}
    assert run([written(folder, settings)]) == Exit.OK
    return folder / "runs" / BASE["name"]


def test_in_a_private_run_the_hospital_recommends_at_home_against_floors_without_noise_and_says_nothing(private):
    page = json.loads(next(private.rglob("report/*/report.json")).read_text())
    assert not any(one["final"] for one in page["decisions"])
    kept = page.pop("at_home")
    assert "_at_home" not in json.dumps(page), "no score, model or decision of theirs is told"
    assert kept["home_floors"] == ["svm_at_home", "ridge_at_home"] and not kept["hospitals"] and kept["private"]
    assert page["reference"] == kept["reference"] == "alone", "the first that each hospital learns alone"
    assert "Its own page decides" in (private / "report.html").read_text()
    decided = json.loads((private / "sites" / "a" / "recommended.json").read_text())["decision"]
    said = decided["recommendation"]
    assert decided["final"]
    assert said["others"] == 0 and said["own"], "b has no validation patients"
    for site in ("a", "b"):
        home = private / "sites" / site
        assert {path.name for path in (home / "ready").glob("*_at_home.safetensors")} == {
            "ridge_at_home.safetensors",
            "svm_at_home.safetensors",
        }
        text = (home / "report.html").read_text()
        measured = json.loads((home / "recommended.json").read_text())["decision"]["recommendation"] or {}
        # Not by words of the page: noise decides whether a recommendation is withdrawn there.
        assert "ridge_at_home" in text and bool(measured.get("own")) == (site == "a")
        assert not [line for line in ledger.read_lines(home / "ledger.jsonl") if line["request"] == "compare"]


def test_a_private_page_names_what_stays_at_home_and_computes_gains_over_the_best_of_it(private):
    for page in (private / "report.html", *(private / "sites" / site / "report.html" for site in "ab")):
        text = page.read_text()
        first = text[: text.index('<h2 id="went">')]
        assert "What stays at home: svm_at_home and ridge_at_home" in first and "cost no ε" in first
    told = json.loads(next(private.rglob("report/*/report.json")).read_text())
    spent = {run["run"] for one in told["statements"] for run in one["runs"]}
    assert spent and not any("at_home" in run for run in spent)
    for site in "ab":
        text = (private / "sites" / site / "report.html").read_text()
        named = text.split("With a sign: the gain over ", 1)[1].split(", and as", 1)[0]
        assert named in ("svm_at_home", "ridge_at_home", "alone")
        assert (named == "svm_at_home") or site == "a", (
            "b has no validation patients, so the first floor is the reference"
        )


def test_a_floor_of_a_private_run_predicts_at_home(private, tmp_path):
    ready = private / "sites" / "a" / "ready" / "svm_at_home.safetensors"
    images = private / "sites" / "a" / "phantom"
    assert predict([str(ready), str(images), "--out", str(tmp_path), "--no-gland"]) == Exit.OK


def test_a_settings_file_without_floors_is_what_it_was(tmp_path):
    train = {**TRAIN, "methods": {"fedavg": {"name": "fedavg"}}}
    config = load_config(written(tmp_path, {**SETTINGS, "train": train, "evaluate": {"copies": 20}}))
    assert json.dumps(to_plain(config.train.method_model)) == "{}"
