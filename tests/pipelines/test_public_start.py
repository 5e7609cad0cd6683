"""Methods that begin on public pictures, through a whole run: cached, told of, with and without privacy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml

from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import from_bytes, unseal_parts

START = {"name": "pretrained", "on": "prostate_adc", "pictures": 32, "epochs": 1}
TRAIN = {
    "schedule": {"rounds": 1},
    "work": {"lr": 0.01, "batch": 16},
    "methods": {
        label: {"name": name} for label, name in (("plain", "fedavg"), ("begun", "fedavg"), ("cusfl", "cusfl"))
    },
    "start": START,
    "method_start": {"plain": None},
}
SETTINGS = {**BASE, "train": TRAIN, "evaluate": {"copies": 5, "reference": "plain"}}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def started(said: dict[str, object], *options: str) -> int:
    Path("x.yaml").write_text(yaml.safe_dump(said))
    return run(["x.yaml", *options])


def test_a_start_is_trained_once_and_told_of(tmp_path, capsys):
    assert started(SETTINGS) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    (name,) = home.glob("pretrain/*/start-*.json")
    told = json.loads(name.read_text())
    assert told["public"] == {"prior": "prostate_adc", "pictures": 32}
    statement = " ".join(next(home.glob("report/*/statement.md")).read_text().split())
    words = (
        f"networks began with weights (SHA-256 {told['sha256']}) that the coordinator says it trained on 32 pictures"
    )
    assert words in statement and "Random numbers: no model was pretrained" not in statement
    results = {path.stem: json.loads(path.read_text()) for path in home.glob("train/*/*.json")}
    first = [results[label]["totals"]["1"] for label in ("plain", "begun")]
    assert first[0] != first[1]
    capsys.readouterr()
    assert started(SETTINGS) == Exit.OK
    said = capsys.readouterr().err
    assert "pretrain  kept" in said and "train     kept" in said


def test_without_a_start_no_stage_is_added_and_nothing_is_told(capsys):
    assert started({**SETTINGS, "train": {**TRAIN, "start": None}}, "--explain") == Exit.OK
    assert "pretrain" not in capsys.readouterr().out


def test_a_private_run_pays_nothing_for_its_start(capsys):
    """The plan, noise and all, is that of the run without the start."""
    privacy = {"epsilon": 3.0, "delta": 1e-3, "sampling": 0.5}
    model = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    train = {**TRAIN, "methods": {"begun": {"name": "fedavg"}}, "method_start": {}}
    base = {**SETTINGS, "pooling": "refused", "privacy": privacy, "model": model}
    base["evaluate"] = {"copies": 5, "checkpoint": "latest", "public": False}
    costs = []
    for start in (START, None):
        assert started({**base, "train": {**train, "start": start}}, "--check", "--json") == Exit.OK
        costs.append(json.loads(capsys.readouterr().out)["privacy"])
    assert costs[0] == costs[1]
    assert started({**base, "train": {**train, "start": START}}) == Exit.OK


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {**TRAIN, "start": {**START, "on": "cats"}}}, "unknown pictures 'cats'; there are prostate_adc"),
        ({"train": {**TRAIN, "start": {**START, "on": "skin_lesion"}}}, "skin_lesion draws pictures of 3 channels"),
        ({"train": {**TRAIN, "method_start": {"nobody": None}}}, "no such method; methods are begun"),
        ({"model": {"name": "mlp"}}, "plain has the model mlp; only cam, cnn, monai, resnet18 begin on pictures"),
        (
            {"public_pictures": {"atlas": {"source": {"kind": "nifti", "folder": "."}}},
             "train": {**TRAIN, "start": {**START, "on": "atlas"}}},
            "atlas has no labels to learn from",
        ),
    ],
)  # fmt: skip
def test_starts_that_cannot_be_made_are_told_before_anything_runs(changes, words, capsys):
    said = {**SETTINGS, **changes}
    if said["model"]["name"] == "mlp":
        said["train"] = {**TRAIN, "method_start": {}}
    assert started(said, "--check") == Exit.CONFIG
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("private", [False, True])
def test_a_head_learnt_on_public_pictures_is_a_floor_that_no_patient_shaped(private, tmp_path):
    """Every hospital gets the same weights, and a private run needs no noise for their training."""
    few = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
    methods = {"public_head": {"name": "as_begun"}, "moments": {"name": "moments"}}
    train = {**TRAIN, "methods": methods, "start": None, "method_start": {"public_head": START}}
    said = {**SETTINGS, "model": few, "train": train, "pooling": "refused"}
    said |= {"evaluate": {"copies": 5, "public": False}, "audit": {"membership": False, "canaries": 0}}
    said |= {"privacy": {"epsilon": 8.0, "delta": 1e-3, "sampling": 0.5}} if private else {}
    assert started(said) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    (start,) = home.glob("pretrain/*/start-*.safetensors")
    weights = from_bytes(start.read_bytes()).tensors
    for site in ("a", "b"):
        ready = from_bytes(
            unseal_parts((home / "sites" / site / "ready" / "public_head.safetensors").read_bytes())
        ).tensors
        assert all(torch.equal(ready[name], weights[name]) for name in ("head.weight", "head.bias"))
        assert float(weights["head.weight"].abs().max()) > 0
