"""A planned network from files to masks: patches in training, windows in scores, predictions and exported files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from planned_settings import MODEL, SETTINGS

from federation.models.planned import PlannedModule
from pipelines.data.pseudonym import make_pseudonym
from pipelines.external.adapted import read_model
from pipelines.hospital.segmentation import read_patient_scores
from pipelines.loader.document import ConfigError, read_yaml, render
from pipelines.loader.validation import validate_settings
from pipelines.models.answers import predict_classes
from pipelines.models.file import read_ready
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from privacy.message import from_bytes


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


OUTSIDE = {"pooling": True, "recipients": ["coordinator", "outside"]}
WAYS = {
    "as_trained": {"name": "as_trained"},
    "average": {"name": "average"},
    "tent": {"name": "tent", "epochs": 1, "tried_below": None},
    "routing": {"name": "routing", "epochs": 2, "radius": 2},
    "matched": {"name": "matched"},
}


def with_outside(ways: dict[str, dict[str, object]]) -> str:
    """Settings with a hospital outside, for which these ways make models."""
    sites = {name: {**site, "policy": OUTSIDE} for name, site in SETTINGS["sites"].items()}
    sites["c"] = {**sites["a"], "source": {**sites["b"]["source"], "seed": 9}}
    lines = {name: {"how": how} for name, how in ways.items()}
    route = {"shared": "fedavg", "personal": "local", "lines": lines}
    return yaml.safe_dump({**SETTINGS, "sites": sites, "outside": ["c"], "route": route})


@pytest.fixture(scope="module")
def routed(tmp_path_factory) -> Path:
    """A folder with a run until its stage route, and with the results at the hospital outside, of the same images."""
    before, folder, forward = Path.cwd(), tmp_path_factory.mktemp("routed"), PlannedModule.forward
    sizes = set()

    def record(module, x):
        sizes.add(tuple(x.shape[2:]))
        return forward(module, x)

    os.chdir(folder)
    PlannedModule.forward = record
    Path("tiny.yaml").write_text(with_outside(WAYS))
    try:
        assert main(["tiny.yaml", "--until", "route"]) == Exit.OK
        root = Path("runs/tiny")
        (models,) = root.glob("route/*/models.safetensors")
        (images,) = (root / "sites" / "c").glob("phantom/*/images")
        key = hashlib.sha256(b"phantom c").digest()
        Path("images").mkdir()
        for path in images.iterdir():  # by names that sort as pseudonyms do: adaptation depends on the order
            pseudonym = make_pseudonym(key, path.name.removesuffix(".nii.gz"))
            shutil.copy(path, f"images/{pseudonym}.nii.gz")
        settings = {
            "name": "c",
            "models": str(models),
            "source": {"kind": "nifti", "folder": "images"},
            "how": WAYS["routing"],
            "out": "out",
        }
        Path("outside.yaml").write_text(yaml.safe_dump(settings))
        assert main(["outside.yaml"]) == Exit.OK
        Path("sizes.json").write_text(json.dumps(sorted(sizes)))
        return folder
    finally:
        PlannedModule.forward = forward
        os.chdir(before)


def find_record(folder: Path, line: str) -> dict[str, object]:
    """What the stage route came to at the hospital outside."""
    files = (folder / "runs" / "tiny" / "sites" / "c" / "scores").glob("route-*.safetensors")
    (facts,) = (facts for path in files if (facts := from_bytes(path.read_bytes()).facts)["line"] == line)
    return dict(facts)


def test_every_way_adapts_and_scores_and_nothing_larger_than_a_patch_passes_a_network(routed):
    for line in ("tent", "routing"):
        facts = find_record(routed, line)
        assert len(facts["losses"]) == 1 + WAYS[line]["epochs"] and np.isfinite(facts["losses"]).all()
    for path in (routed / "runs" / "tiny" / "sites" / "c" / "scores").glob("route-*.safetensors"):
        scores = read_patient_scores(from_bytes(path.read_bytes()).tensors)
        assert scores is not None and len(scores.scores) == 8
    assert {tuple(sides) for sides in json.loads((routed / "sizes.json").read_text())} == {(4, 16, 16)}


def test_the_hospital_alone_comes_to_the_state_of_the_stage(routed):
    at_home, of_stage = json.loads((routed / "out" / "adaptation.json").read_text()), find_record(routed, "routing")
    assert at_home["losses"] == pytest.approx(of_stage["losses"], abs=1e-6)
    assert np.allclose(at_home["shares"], of_stage["shares"], atol=1e-6)
    assert (at_home["epoch"], at_home["images"]) == (of_stage["epoch"], 8)


def test_later_images_are_predicted_by_the_adapted_networks_windows(routed, tmp_path):
    model = routed / "out" / "routed.safetensors"
    assert read_model(model).window == (4, 16, 16)
    assert predict([str(model), str(routed / "images"), "--out", str(tmp_path)]) == Exit.OK
    assert (tmp_path / "predictions.csv").read_bytes() == (routed / "out" / "predictions.csv").read_bytes()
    masks = sorted((routed / "out" / "masks").iterdir())
    assert len(masks) == 8
    assert all((tmp_path / "masks" / path.name).read_bytes() == path.read_bytes() for path in masks)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"name": "routing", "mode": "online"}, "routing online predicts each image in one piece"),
        ({"name": "tent", "mode": "online"}, "tent online predicts each image in one piece"),
    ],
)
def test_ways_that_need_whole_images_are_refused(routed, tmp_path, monkeypatch, capsys, how, reason):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(with_outside({"line": how}))
    assert main(["tiny.yaml", "--check"]) == Exit.CONFIG
    assert f"is trained on patches, and {reason}" in " ".join(capsys.readouterr().err.split())
    outside = yaml.safe_load((routed / "outside.yaml").read_text())
    (models,) = (routed / "runs" / "tiny").glob("route/*/models.safetensors")
    source = {"kind": "nifti", "folder": str(routed / "images")}
    Path("outside.yaml").write_text(yaml.safe_dump({**outside, "models": str(models), "source": source, "how": how}))
    assert main(["outside.yaml", "--check"]) == Exit.CONFIG
    assert f"are trained on patches, and {reason}" in " ".join(capsys.readouterr().err.split())


def test_a_patch_that_images_do_not_hold_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(yaml.safe_dump({**SETTINGS, "model": {**MODEL, "patch": [4, 32, 32]}}))
    assert main(["tiny.yaml", "--check"]) == Exit.CONFIG
    assert "at least as large as a patch" in " ".join(capsys.readouterr().err.split())
