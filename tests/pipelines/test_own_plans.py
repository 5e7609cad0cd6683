"""Hospitals with grids and networks of their own: from files to masks, what leaves, is refused, and is planned."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
import yaml
from made_up_studies import noised, told
from planned_settings import OWN, OWN_METHODS, SETTINGS, own_settings

from federation.conversation import load_newest_memory, load_stored_reply
from federation.parameters import section
from pipelines.coordinator.fingerprint import Fingerprints
from pipelines.coordinator.planning import draft_plan
from pipelines.export import main as export
from pipelines.hospital.opening import parse_opening
from pipelines.hospital.segmentation import read_patient_scores
from pipelines.loader.document import ConfigError, read_yaml, render
from pipelines.loader.validation import validate_settings
from pipelines.models.answers import predict_classes
from pipelines.models.file import read_ready
from pipelines.plan import main as plan
from pipelines.planning.draft import Source
from pipelines.planning.settings import SMALL
from pipelines.predict import main as predict
from pipelines.remote.site_config import Place
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.config import Config
from privacy.message import from_bytes
from privacy.release.gate import Refused
from small_site import hospital as make_hospital


def accept(settings: dict[str, Any]) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(settings), environment={}), Config)


def refuse(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        accept(settings)
    return render(caught.value, "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("own"))
    Path("own.yaml").write_text(yaml.safe_dump(own_settings()))
    try:
        assert main(["own.yaml"]) == Exit.OK
        return Path("runs/tiny").resolve()
    finally:
        os.chdir(before)


def test_each_hospital_is_read_trained_and_scored_by_its_own_plan(run):
    config = accept(own_settings())
    for site, sides in (("a", (4, 24, 24)), ("b", (4, 16, 16))):
        home = run / "sites" / site
        for method in OWN_METHODS:
            ready = read_ready(home / "ready" / f"{method}.safetensors")
            assert ready.task.inputs == (1, *sides) and ready.images == config.images_of(site)
            assert ready.task.model == config.model_of(method, site) and ready.window == ready.task.model.patch
            x = torch.randn(2, *ready.task.inputs, generator=torch.Generator().manual_seed(0))
            assert torch.equal(ready.probabilities(x).argmax(dim=1), predict_classes(ready.task, ready.module, x))
            (kept,) = home.glob(f"scores/{method}*.safetensors")
            scores = read_patient_scores(from_bytes(kept.read_bytes()).tensors)
            assert scores is not None and np.isfinite(scores.scores[..., 0]).all()


def test_what_left_is_what_all_networks_have_in_common_and_the_rest_stayed(run):
    config = accept(own_settings())
    tasks = {site: config.task_of("asymmetric", site) for site in ("a", "b")}
    shared = set(tasks["a"].shared or ())
    assert shared and tasks["a"].shared == tasks["b"].shared
    for site, task in tasks.items():
        (folder,) = (run / "sites" / site).rglob("asymmetric-*/introduce-0*")
        conversation = DiskFolder(folder.parent)
        assert conversation.has("train-2")
        reply = from_bytes(load_stored_reply(conversation, "train-2"))
        assert set(reply.tensors) == {f"model/{name}" for name in shared}
        personal = section(load_newest_memory(conversation).tensors, "personal")
        assert set(personal) == set(task.network().state_dict()) - shared


def test_masks_of_new_studies_are_on_each_studys_grid_whatever_the_plan(run, tmp_path):
    for site in ("a", "b"):
        home = run / "sites" / site
        images = next(iter(home.glob("phantom/*/images")))
        if not (studies := sorted(images.rglob("*.nii*"))):
            continue
        out = tmp_path / site
        assert predict([str(home / "ready/asymmetric.safetensors"), str(images), "--out", str(out)]) == Exit.OK
        grids = {study.name.split(".")[0]: nibabel.load(study) for study in studies}
        for mask in (out / "masks").rglob("*.nii*"):
            study = grids[mask.name.split(".")[0]]
            assert nibabel.load(mask).shape == study.shape
            assert np.allclose(nibabel.load(mask).affine, study.affine, atol=1e-4)


def test_an_exported_file_takes_the_patches_of_its_hospitals_plan(run, tmp_path):
    import onnx

    for site, patch in (("a", [4, 16, 16]), ("b", [4, 8, 16])):
        model = run / "sites" / site / "ready" / "asymmetric.safetensors"
        assert export([str(model), "--onnx", "--out", str(tmp_path / site)]) == Exit.OK
        graph = onnx.load(tmp_path / site / "asymmetric.onnx").graph
        assert [side.dim_value for side in graph.input[0].type.tensor_type.shape.dim][1:] == [1, *patch]


def test_a_hospital_on_its_own_machine_may_have_a_plan_that_the_run_says():
    settings = own_settings()
    settings["sites"]["b"] = {"source": {"kind": "elsewhere"}, **OWN}
    assert accept(settings).task_of("asymmetric", "b").inputs == (1, 4, 16, 16)


def test_the_same_settings_change_nothing_and_another_plan_trains_anew(run, monkeypatch):
    monkeypatch.chdir(run.parents[1])
    trainings = {path.name for path in (run / "federation").iterdir()}
    assert main(["own.yaml"]) == Exit.OK
    assert {path.name for path in (run / "federation").iterdir()} == trainings
    for key, value in (("model", {**OWN["model"], "filters": [8, 16]}), ("images", {"spacing_mm": 4.0, "size": 16})):
        changed = own_settings()
        changed["sites"]["b"][key] = value
        Path("changed.yaml").write_text(yaml.safe_dump(changed))
        assert main(["changed.yaml"]) == Exit.OK
        now = {path.name for path in (run / "federation").iterdir()}
        assert len(now - trainings) == len(OWN_METHODS), key
        trainings = now


def test_without_plans_of_its_own_a_task_is_the_same_with_and_without_a_hospitals_name():
    config = accept(copy.deepcopy(SETTINGS))
    for label in config.train.methods:
        assert config.task_of(label) == config.task_of(label, "a") == config.task_of(label, "b")
        assert config.task_of(label).shared is None
    same = own_settings()
    same["sites"]["b"] |= {"images": {"size": 24}, "model": {}}
    assert accept(same).task_of("asymmetric", "b").shared is None  # all have the same network after all


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("train", "methods"), {"fedavg": {"name": "fedavg"}}, "train.methods.fedavg: fedavg needs the same images"),
        (("train", "methods"), {"central": {"name": "central"}}, "train.methods.central: central needs the same"),
        (("evaluate", "public"), True, "evaluate.public: true scores each model at every hospital"),
        (("train", "secure_sum"), True, "train.secure_sum: hides replies"),
        (("evaluate", "window"), [4, 16, 16], "evaluate.window: is one size"),
        (("sites", "b", "images"), {"values": "adc"}, "sites.b.images.values: must be the same at all hospitals"),
        (("sites", "b", "images"), {"size": 4}, "sites.b.images.size: must be"),
        (("sites", "b", "model"), {"name": "unet"}, "sites.b.model.name: names the network"),
        (("sites", "b", "model"), {"filters": [8]}, "sites.b.model"),
        (("sites", "b", "model"), {"depth": 3}, "sites.b.model.depth"),
        (("sites", "b", "images"), {"size": 8}, "sites.b.model: the network cannot take this hospital's examples"),
        (("train", "method_model"), {"local": {"name": "unet"}}, "train.method_model: is one network for all"),
    ],
)
def test_what_does_not_go_with_plans_of_their_own_is_refused_with_its_remedy(where, value, words):
    settings = own_settings()
    group = settings
    for key in where[:-1]:
        group = group[key]
    group[where[-1]] = value
    said = " ".join(refuse(settings).split())
    assert words in said, said


def test_networks_of_unlike_widths_share_a_bias_of_the_classes_alone():
    settings = own_settings()
    settings["sites"]["b"]["model"] = {**OWN["model"], "filters": [16, 16]}
    assert accept(settings).task_of("asymmetric").shared == ("head.bias",)


def test_a_hospitals_own_file_says_no_plan_because_the_coordinator_must_know_it():
    place = {"name": "a", "kit": "kit", "root": "root", "site": {**SETTINGS["sites"]["a"], **OWN}}
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(yaml.safe_dump(place), environment={}), Place)
    said = " ".join(render(caught.value, "site.yaml").split())
    assert "site.images: a hospital's own plan stands in the run" in said and "site.model: a hospital's own" in said


@pytest.mark.parametrize(("method", "is_refused"), [("asymmetric", False), ("local", False), ("fedavg", True)])
def test_a_hospital_checks_itself_that_its_method_goes_with_unlike_networks(tmp_path, method, is_refused):
    config = accept(own_settings())
    task = config.task_of("asymmetric", "b")
    facts = {
        "label": method,
        "algorithm": {"name": method},
        "model": {"name": "planned", **OWN["model"]},
        "inputs": list(task.inputs),
        "classes": 2,
        "target": "gland",
        "shared": list(task.shared or ()),
        "work": {"batch": 2},
        "seed": 0,
        "cohort": "c",
        "privacy": None,
    }
    hospital, _ = make_hospital(tmp_path)
    if is_refused:
        with pytest.raises(Refused, match="malformed_opening"):
            parse_opening(hospital, facts)
        return
    assert parse_opening(hospital, facts).task.shared == task.shared
    for wrong in ("stem", [1], {"stem": 1}):
        with pytest.raises(Refused, match="malformed_opening"):
            parse_opening(hospital, {**facts, "shared": wrong})


def ask(folder: Path, **changes: Any) -> Path:
    """A run of two hospitals with unlike grids, before it is planned."""
    source = {"kind": "phantom", "patients": 4, "format": "nifti"}
    settings: dict[str, Any] = {
        **SETTINGS,
        "name": "tiny",
        "sites": {
            "a": {"source": {**source, "scanner": "D", "seed": 1, "slices": 10}},
            "b": {"source": {**source, "scanner": "L", "seed": 2, "slices": 5}, "work": {"lr": 0.01}},
        },
        "images": {"kind": "volumes", "values": "standardized", "centre": "image"},
        "train": {**SETTINGS["train"], "methods": {name: {"name": name} for name in OWN_METHODS}},
        "evaluate": {**SETTINGS["evaluate"], "public": False},
    }
    path = folder / "asked.yaml"
    path.write_text(yaml.safe_dump(settings | changes, sort_keys=False))
    return path


def test_each_hospitals_plan_is_the_one_that_it_would_get_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = ask(tmp_path)
    assert plan([str(path), "--small", "--each", "-o", "planned.yaml"]) == Exit.OK
    assert "before it can be run" not in capsys.readouterr().err
    planned, asked = yaml.safe_load(Path("planned.yaml").read_text()), yaml.safe_load(path.read_text())
    for site, settings in asked["sites"].items():
        Path(f"{site}.yaml").write_text(yaml.safe_dump({**asked, "name": f"only-{site}", "sites": {site: settings}}))
        assert plan([f"{site}.yaml", "--small", "-o", f"{site}.planned.yaml"]) == Exit.OK
        alone, own = yaml.safe_load(Path(f"{site}.planned.yaml").read_text()), planned["sites"][site]
        assert own["images"] == {key: alone["images"][key] for key in ("spacing_mm", "size", "depth_mm", "depth")}
        assert own["model"] == {key: alone["model"][key] for key in ("patch", "kernels", "strides", "filters")}
        assert own["work"] == {
            **settings.get("work", {}),
            **{k: alone["train"]["work"][k] for k in ("batch", "foreground", "torchio")},
        }
        assert own["source"] == settings["source"]
    assert planned["sites"]["a"]["model"] != planned["sites"]["b"]["model"]
    assert main(["planned.yaml", "--check"]) == Exit.OK
    assert plan(["planned.yaml", "--small"]) == Exit.CONFIG  # a plan for all beside the old ones of each
    assert "say --each, or remove their images and model" in " ".join(capsys.readouterr().err.split())
    assert plan(["planned.yaml", "--small", "--each"]) == Exit.OK
    again = yaml.safe_load(capsys.readouterr().out)
    assert again == planned


def test_parts_of_one_source_have_no_plan_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = {"kind": "phantom", "patients": 8, "format": "nifti", "scanner": "D", "seed": 1, "slices": 4}
    path = ask(tmp_path, sites={"a": {"source": source, "part": {"kind": "even", "of": 2}}})
    assert plan([str(path), "--small", "--each"]) == Exit.CONFIG
    assert "a-1, a-2 are dealt out of one source" in " ".join(capsys.readouterr().err.split())


def test_a_hospital_that_refused_or_is_too_noisy_keeps_the_plan_of_all():
    settings = own_settings()
    settings["images"] = {"kind": "volumes", "values": "standardized", "centre": "image"}
    settings["model"] = {"name": "unet", "width": 4, "levels": 2}
    settings["train"]["work"] = {}
    for site in ("a", "b"):
        settings["sites"][site] = {"source": {**SETTINGS["sites"]["a"]["source"], "seed": ord(site)}}
    settings["sites"]["c"] = {"source": {**SETTINGS["sites"]["a"]["source"], "seed": 9}}
    config, sure = accept(settings), told([((3.0, 0.5, 0.5), (20, 300, 320))] * 6)
    prints = Fingerprints({"a": sure, "b": noised(20, 11.0, spacing=6.0)}, {"c": "policy"})
    source = Source(file="x.yaml", text=yaml.safe_dump(settings), command="plan")
    planned = yaml.safe_load(draft_plan(config, prints, SMALL, source=source, each=True)[0])
    assert {site for site, each in planned["sites"].items() if "images" in each or "model" in each} == {"a"}
    assert planned["images"]["depth_mm"] == planned["sites"]["a"]["images"]["depth_mm"] == 3.0
