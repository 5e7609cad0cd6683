"""The shipped run on T2-weighted phantoms, made small: no unit, and pages that say what learnt without a patient."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pipelines.hospital.hospital import COHORT, read_cohort_file
from pipelines.loader.document import read_yaml
from pipelines.loader.files import CONFIGS
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.settings.config import Config


@pytest.fixture(scope="module")
def finished(finished_run) -> Path:
    """The shipped configuration with few patients, pictures, steps and rounds."""
    settings = yaml.safe_load((CONFIGS / "prostate_t2w.yaml").read_text().replace(" on: ", " 'on': "))
    for site in settings["sites"].values():
        site["source"] |= {"patients": 12, "slices": 4, "damaged": 1}
    settings["harmonize"] |= {"shared": 12}
    settings["harmonize"]["translate"]["nobody"] |= {"steps": 2, "width": 4}
    train = settings["train"]
    train["schedule"]["rounds"] = 1
    train["method_start"]["begun"] |= {"pictures": 32, "epochs": 1}
    train["method_model"]["detector"]["of"] |= {"pictures": 32, "steps": 2, "width": 4}
    train["method_model"]["detector"] |= {"pictures": 32, "components": 4}
    usual = validate_settings(read_yaml(yaml.safe_dump(settings), environment={}), Config).train.method_model
    for floor in ("local_svm", "local_ridge"):
        train["method_model"][floor] = {**to_plain(usual[floor]), "pictures": 32, "components": 4}
    settings["evaluate"]["copies"] = 5
    return finished_run(settings) / "runs" / "prostate_t2w"


def test_hospitals_learn_from_images_in_standard_deviations(finished):
    (path,) = finished.glob("ingest/*/sites.json")
    facts = json.loads(path.read_text())
    for site in ("north", "south"):
        cohort = read_cohort_file(finished / "sites" / site / "cohorts" / facts[site]["cohort"] / COHORT)
        assert facts[site]["rejected"] == 1 and len(cohort.images) == 4 * 12
        assert abs(float(cohort.images.mean())) < 0.5 and 0.6 < float(cohort.images.std()) < 1.4
        inside = (finished / "sites" / site / "inside.txt").read_text()
        assert "unit standard deviations" in inside and "ADC" not in inside


def test_every_line_is_scored_and_every_translation_is_judged(finished):
    (path,) = finished.glob("report/*/scores.json")
    methods = {row["method"] for row in json.loads(path.read_text())}
    settings = yaml.safe_load((CONFIGS / "prostate_t2w.yaml").read_text())
    assert {*settings["train"]["methods"], *settings["evaluate"]["variants"]} <= methods
    spaces = {one.stem: json.loads(one.read_text()) for one in finished.glob("translate/*/*.json")}
    for name in ("nobody", "reinhard"):
        assert all("contrast_ratio" in spaces[name][site]["quality"] for site in ("north", "south"))


def test_what_learnt_without_patients_learnt_from_the_prior_in_the_images_unit(finished):
    said = " ".join((finished / "statement.md").read_text().split())
    assert "pictures of the procedural prior prostate_t2w, which is code of this program" in said
    assert "prostate_adc" not in said and "features are what a network marks" in said
