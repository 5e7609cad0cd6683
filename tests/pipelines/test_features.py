"""Models on fixed features, from YAML to a scored file: what leaves, what is kept, and what a private run costs."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import os
import re
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from federation.features import AnyExtractor
from federation.features.radiomics import Radiomics
from federation.features.whitening import Whitening
from federation.models.features import Features
from pipelines.hospital.hospital import COHORT, read_cohort_file
from pipelines.models.fixed_features import Fixed, from_tensors, to_tensors
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import from_bytes
from privacy.release import ledger

FEATURES = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
TRAIN = {
    "schedule": {"rounds": 2},
    "work": {"lr": 1e-2, "batch": 16},
    "methods": {"heads": {"name": "fedavg"}, "moments": {"name": "moments"}},
}
SETTINGS = {**BASE, "model": FEATURES, "train": TRAIN, "evaluate": {"copies": 20, "reference": "heads"}}
INVERTED = {"membership": False, "canaries": 0, "inversion": {"images": 1, "steps": 2}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run in which two methods learn on the same features."""
    folder = tmp_path_factory.mktemp("features")
    os.chdir(folder)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**SETTINGS, "audit": INVERTED}))
    assert run(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / BASE["name"]


def test_features_are_computed_once_for_all_methods_and_no_image_leaves(finished):
    for site in ("a", "b"):
        lines = [
            line
            for line in ledger.read_lines(finished / "sites" / site / "ledger.jsonl")
            if line["request"] == "extract"
        ]
        assert len(lines) == 1
        assert lines[0]["bytes"] < 2000
    made = [read_cohort_file(path) for path in (finished / "sites" / "a").glob(f"cohorts/*/{COHORT}")]
    shapes = sorted(tuple(cohort.images.shape[1:]) for cohort in made)
    assert shapes == [(1, 32, 32), (8,)]
    images, features = sorted(made, key=lambda cohort: -cohort.images.dim())
    for part in ("labels", "patient", "split"):
        assert torch.equal(getattr(images, part), getattr(features, part))


def test_one_round_sends_a_fraction_of_what_two_send_and_the_page_says_one(finished):
    page = (finished / "report.html").read_text()
    assert "moments" in page
    found = json.loads(next(finished.rglob("train/*/moments.json")).read_text())
    assert found["rounds"] == 1 and found["best"] == 1
    assert "2 rounds (moments 1), checkpoint" in page


def test_that_nobody_tried_to_draw_an_image_of_its_features_is_said(finished):
    assert "fixed features of images: this attack draws pixels" in (finished / "report.html").read_text()


DETECTOR = {"name": "detector", "on": "prostate_adc", "pictures": 16, "steps": 3, "width": 4, "size": 16}


@pytest.fixture(scope="module")
def detected(tmp_path_factory) -> Path:
    """The folder of a run on what a detector marks, beside the floor of a head that only the prior taught."""
    folder = tmp_path_factory.mktemp("detected")
    os.chdir(folder)
    floor = {"methods": {**TRAIN["methods"], "floor": {"name": "as_begun"}}}
    floor["method_start"] = {"floor": {"name": "pretrained", "on": "prostate_adc", "pictures": 60}}
    settings = {**SETTINGS, "model": {**FEATURES, "of": DETECTOR}, "train": {**TRAIN, **floor}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert run(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / BASE["name"]


def test_every_site_states_the_one_network_that_the_coordinator_taught(detected):
    (sent,) = detected.glob("features/*/*.safetensors")
    weights = from_bytes(sent.read_bytes()).tensors["weights"].numpy().tobytes()
    code = hashlib.sha256(weights).hexdigest()
    for site in ("a", "b"):
        page = (detected / "sites" / site / "report.html").read_text()
        assert f"features are what a network marks (SHA-256 {code}) that the coordinator says it trained on" in page


@pytest.mark.parametrize("label", ["heads", "moments", "floor"])
def test_a_finished_model_holds_the_detector(detected, label, tmp_path):
    test_a_finished_model_scores_new_files_as_the_run_did(detected, label, tmp_path)


@pytest.mark.parametrize("label", ["heads", "moments"])
def test_a_finished_model_scores_new_files_as_the_run_did(finished, label, tmp_path):
    home = finished / "sites" / "a"
    (files,) = home.glob("phantom/*/images")
    gland = files.parent / "masks" / "gland"
    model = home / "ready" / f"{label}.safetensors"
    assert predict([str(model), str(files), "--gland", str(gland), "--out", str(tmp_path)]) == Exit.OK
    with (tmp_path / "predictions.csv").open() as file:
        found = [float(line["score"]) for line in csv.DictReader(file)]
    (kept,) = home.glob(f"scores/{label}-*.safetensors")
    scores = from_bytes(kept.read_bytes()).tensors
    highest = [float(scores["probabilities"][scores["patient"] == p, 1].max()) for p in scores["patient"].unique()]
    assert all(min(abs(score - one) for one in found) < 2e-6 for score in highest)


def test_nothing_is_computed_again_while_nothing_changes(finished, capsys):
    os.chdir(finished.parents[1])
    assert run(["tiny.yaml"]) == Exit.OK
    said = capsys.readouterr().err
    assert "features  kept" in said and "train     kept" in said


@pytest.mark.parametrize("huge", [1e300, 1e37, 1e13, math.inf, math.nan])
def test_a_scale_that_only_some_patients_would_exceed_is_refused(huge):
    """Whether anything fails must not depend on a patient: 1e300 overflows float32 for some patients' features only."""
    model = Features(**{**FEATURES, "of": Radiomics(), "components": 2})
    good = Whitening(np.zeros(3), np.ones(3), np.ones((3, 2)))
    assert np.array_equal(from_tensors(to_tensors(Fixed(model.of, good)), model).scale.axes, good.axes)
    axes = good.axes.copy()
    axes[1, 0] = huge
    with pytest.raises(ValueError, match="a scale"):
        from_tensors(to_tensors(Fixed(model.of, good._replace(axes=axes))), model)


def test_lost_features_are_noticed_and_made_again(finished, capsys):
    os.chdir(finished.parents[1])
    for path in finished.glob(f"sites/a/cohorts/*/{COHORT}"):
        if read_cohort_file(path).images.dim() == 2:
            path.unlink()
    assert run(["tiny.yaml"]) == Exit.OK
    assert "features  done" in capsys.readouterr().err


def test_the_page_of_methods_has_every_key_and_every_extractor():
    page = (Path(__file__).parents[2] / "docs/reference/methods.md").read_text()
    section = page.partition("## Models on fixed features")[2].partition("\n## ")[0]
    keys = {
        key
        for line in section.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert keys == {field.name for field in dataclasses.fields(Features)} - {"name"}
    assert all(f"`{kind.name}`" in section for kind in typing.get_args(typing.get_args(AnyExtractor)[0]))


def problems(tmp_path, capsys, **changed) -> str:
    os.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**SETTINGS, **changed}))
    assert run(["x.yaml", "--check"]) == Exit.CONFIG
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            {"of": {"name": "colour"}},
            "colour needs pictures (3, height, width) of 16 pixels or more, found (1, 32, 32)",
        ),
        ({"components": 21}, "model.components: must be at most the number of pictures, 20, found 21"),
        (
            {"of": {"name": "random_convolutions", "filters": 1, "scales": 1}},
            "model.components: must be at most the number of features of random_convolutions, 4, found 8",
        ),
        (
            {"of": {**DETECTOR, "on": "cats"}},
            "a detector learns from a prior, found on: 'cats'; there are prostate_adc, prostate_t2w, skin_lesion",
        ),
        (
            {"of": {**DETECTOR, "on": "skin_lesion"}},
            "skin_lesion draws pictures of 3 channels, height and width; images are [1, 32, 32]",
        ),
        (
            {"of": {**DETECTOR, "window": [0, 3]}},
            "a detector's window must be what the prior draws for these images, 0.0 to 3.5; found window: [0.0, 3.0]",
        ),
        (
            {"of": {**DETECTOR, "pictures": 20000, "size": 128}},
            "of.pictures: must be at most 16384 of 128 x 128 pixels, held in memory, found 20000",
        ),
        ({"public": "cats"}, "unknown pictures 'cats'; there are prostate_adc, prostate_t2w, skin_lesion"),
        (
            {"public": "skin_lesion"},
            "skin_lesion draws pictures of 3 channels, height and width; images are [1, 32, 32]",
        ),
    ],
)
def test_features_that_do_not_fit_are_told_before_anything_runs(model, said, tmp_path, capsys):
    assert said in " ".join(problems(tmp_path, capsys, model={**FEATURES, **model}).split())


def routed(how: str) -> dict[str, object]:
    """Settings with an external site, which gets one method's model, or that of all."""
    sites = {**BASE["sites"], "c": {**BASE["sites"]["a"]}}
    sites = {name: {**site, "policy": {"recipients": ["coordinator", "outside"]}} for name, site in sites.items()}
    route = {"shared": "heads", "personal": "moments", "lines": {"sent": {"how": {"name": how}}}}
    return {"sites": sites, "outside": ["c"], "route": route, "pooling": "refused"}


def test_external_sites_compute_features_for_the_models_that_they_get(tmp_path):
    os.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({**SETTINGS, **routed("ensemble")}))
    assert run(["x.yaml"]) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    (manifest,) = home.glob("route/*/manifest.json")
    told = json.loads(manifest.read_text())["summary"]
    assert told["scored"] == 1 and "which such a file does not hold" in told["models"]["models.safetensors"]
    made = [read_cohort_file(path) for path in home.glob(f"sites/c/cohorts/*/{COHORT}")]
    assert sorted(tuple(cohort.images.shape[1:]) for cohort in made) == [(1, 32, 32), (8,)]


def test_what_looks_at_images_is_refused_for_models_on_features(tmp_path, capsys):
    said = " ".join(problems(tmp_path, capsys, **routed("routing")).split())
    assert "heads is on fixed features, and routing looks at images; say as_trained or ensemble" in said


@pytest.mark.parametrize(
    ("methods", "least", "most"),
    [
        ({"moments": {"name": "moments"}}, 2.94, 3.06),
        ({"heads": {"name": "fedavg"}, "twins": {"name": "fenda"}}, 3.06, 6.0),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)
def test_a_private_run_costs_the_epsilon_that_was_asked_for_and_no_more(methods, least, most, tmp_path, capsys):
    os.chdir(tmp_path)
    budget = {"budget": {"epsilon": 9, "delta": 1e-3}, "public": ["counts"]}
    sites = {
        name: {"source": {**site["source"], "patients": 16}, "policy": budget} for name, site in BASE["sites"].items()
    }
    privacy = {"epsilon": 3.0, "delta": 1e-3, "clip": 1.0, "sampling": 0.5}
    train = {**TRAIN, "methods": methods}
    audit = {"membership": False, "canaries": 0}
    model = {**FEATURES, "hidden": [8]} if "twins" in methods else FEATURES  # fenda has two extractors
    settings = {**SETTINGS, "sites": sites, "privacy": privacy, "train": train, "audit": audit, "model": model}
    settings["evaluate"] = {"copies": 20, "checkpoint": "latest", "public": False}
    (tmp_path / "private.yaml").write_text(yaml.safe_dump({**settings, "name": "private"}))
    assert run(["private.yaml", "--check", "--json"]) == Exit.OK
    checked = json.loads(capsys.readouterr().out)["privacy"]["a"]["methods"][0]
    steps, rounds = (1, "1 round") if "moments" in methods else (4, "2 rounds")
    assert checked["steps"] == steps
    assert run(["private.yaml"]) == Exit.OK
    assert f"{rounds}, checkpoint" in (tmp_path / "runs" / "private" / "report.html").read_text()
    from privacy.dp.accounting import compute_cost

    for site in sites:
        lines = ledger.read_lines(tmp_path / "runs" / "private" / "sites" / site / "ledger.jsonl")
        assert least < compute_cost(ledger.spent_events(lines), 1e-3).epsilon < most  # of all methods together
