"""A planned network from files to masks: patches in training, windows in scores, predictions and exported files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from pipelines.hospital.segmentation import read_patient_scores
from pipelines.loader.document import ConfigError, read_yaml, render
from pipelines.loader.validation import validate_settings
from pipelines.models.answers import predict_classes
from pipelines.models.file import read_ready
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.message import from_bytes

MODEL = {
    "name": "planned",
    "patch": [4, 16, 16],
    "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
    "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
    "filters": [8, 8, 8],
}
WORK = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": True,
    "lr": 0.02,
    "rate": {"name": "polynomial"},
    "batch": 2,
    "epochs": None,
    "steps": 2,
    "foreground": 0.33,
    "torchio": [{"name": "noise", "std": 0.1, "p": 0.5}],
}
SETTINGS = {
    **BASE,
    "sites": {
        name: {
            **site,
            "work": {},
            "source": {**site["source"], "patients": 8, "slices": 4, "damaged": 0},
            "policy": {"pooling": True},
        }
        for name, site in BASE["sites"].items()
    },
    "task": {"kind": "segmentation", "target": "gland"},
    "images": {"kind": "volumes", "size": 24, "spacing_mm": 3.0, "depth": 4, "depth_mm": 4.0, "centre": "image"},
    "model": MODEL,
    "train": {
        "schedule": {"rounds": 2},
        "work": WORK,
        "methods": {n: {"name": n} for n in ("local", "fedavg", "fenda", "central")},
    },
    "evaluate": {"copies": 5, "reference": "local"},
    "audit": {"membership": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("planned"))
    Path("tiny.yaml").write_text(yaml.safe_dump(SETTINGS))
    try:
        assert main(["tiny.yaml"]) == Exit.OK
        return Path("runs/tiny").resolve()
    finally:
        os.chdir(before)


def test_windows_other_than_the_patch_are_refused():
    """An exported file holds the network of a patch, and would say that its windows are others."""
    for window, is_refused in (([4, 24, 24], True), ([4, 16, 16], False)):
        settings = read_yaml(yaml.safe_dump({**SETTINGS, "evaluate": {"window": window}}), environment={})
        told = ""
        try:
            validate_settings(settings, Config)
        except ConfigError as error:
            told = render(error, "run")
        assert ("predicted by windows of its patch, [4, 16, 16]; remove it" in told) == is_refused, told


@pytest.mark.parametrize("method", ["local", "fedavg", "fenda"])
def test_scores_are_those_of_the_finished_models_windows(run, method):
    home = run / "sites" / "a"
    ready = read_ready(home / "ready" / f"{method}.safetensors")
    assert ready.window == (4, 16, 16) and ready.task.inputs == (1, 4, 24, 24)
    x = torch.randn(2, *ready.task.inputs, generator=torch.Generator().manual_seed(0))
    as_scored = predict_classes(ready.task, ready.module, x)
    assert torch.equal(ready.probabilities(x).argmax(dim=1), as_scored)
    (kept,) = home.glob(f"scores/{method}*.safetensors")
    scores = read_patient_scores(from_bytes(kept.read_bytes()).tensors)
    assert scores is not None and np.isfinite(scores.scores[..., 0]).all()


def test_new_studies_get_masks_on_their_own_grid(run, tmp_path):
    import nibabel

    model = run / "sites" / "b" / "ready" / "fedavg.safetensors"
    images = next(iter((run / "sites" / "b").glob("phantom/*/images")))
    assert predict([str(model), str(images), "--out", str(tmp_path / "out")]) == Exit.OK
    masks = sorted((tmp_path / "out").rglob("*.nii*"))
    assert len(masks) == 8
    grids = {nibabel.load(path).shape for path in images.rglob("*.nii*")}
    assert {nibabel.load(path).shape for path in masks} <= grids


def test_foreground_without_patches_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    whole = {**SETTINGS, "model": {"name": "unet", "width": 4, "levels": 1}}
    Path("tiny.yaml").write_text(yaml.safe_dump(whole))
    assert main(["tiny.yaml", "--check"]) == Exit.CONFIG
    assert "is for patches, and unet is trained on whole images" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("how", ["tent", "routing", "as_trained", "ensemble"])
def test_ways_to_external_sites_that_look_at_whole_images_are_refused(tmp_path, monkeypatch, capsys, how):
    monkeypatch.chdir(tmp_path)
    route = {"shared": "fedavg", "personal": "local", "lines": {"line": {"how": {"name": how}}}}
    policy = {"pooling": True, "recipients": ["coordinator", "outside"]}
    sites = {name: {**site, "policy": policy} for name, site in SETTINGS["sites"].items()}
    sites["c"] = {**sites["a"], "source": {**sites["a"]["source"], "seed": 9}}
    Path("tiny.yaml").write_text(yaml.safe_dump({**SETTINGS, "sites": sites, "outside": ["c"], "route": route}))
    looks = how in ("tent", "routing")
    assert main(["tiny.yaml", "--check"]) == (Exit.CONFIG if looks else Exit.OK)
    assert ("is trained on patches, and" in " ".join(capsys.readouterr().err.split())) == looks


def test_a_patch_that_images_do_not_hold_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump({**SETTINGS, "model": {**MODEL, "patch": [4, 32, 32]}}))
    assert main(["tiny.yaml", "--check"]) == Exit.CONFIG
    assert "at least as large as a patch" in " ".join(capsys.readouterr().err.split())
