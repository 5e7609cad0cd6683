"""A MONAI network that settings name is trained as the same `nn.Module` that a person brings, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from api_pictures import ARGUMENTS, PARTS, dense, train

import consilium
from consilium import ConfigError, PatientLevel, Policy
from federation.parameters import read_parameters
from pipelines.run import main
from pipelines.runs.exits import Exit


def test_what_settings_name_is_what_a_person_wraps(tmp_path: Path) -> None:
    named = {"name": "monai", "network": "DenseNet", "arguments": ARGUMENTS}
    one, other = train(tmp_path / "one", named), train(tmp_path / "other", consilium.own(dense, **PARTS))
    assert str(one.rows) == str(other.rows) and one.losses == other.losses
    for method in ("fedavg", "fenda"):
        ours, theirs = read_parameters(one.model(method, "north")), read_parameters(other.model(method, "north"))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert one.yaml is not None and main([str(one.yaml)]) == Exit.OK, "the command line keeps what the API made"


def test_it_trains_privately_with_group_norm_and_says_how_without(tmp_path: Path) -> None:
    private = {
        "privacy": PatientLevel(epsilon=8.0),
        "policy": Policy(public=("counts",)),
        "method": "fedavg",
        "work": {"optimizer": "sgd", "lr": 0.05, "batch": 8, "epochs": None, "steps": 2},
    }
    model = {"name": "monai", "network": "DenseNet", "arguments": ARGUMENTS}
    with pytest.raises(ConfigError, match=r"BatchNorm2d keeps running_mean.*use group norm \(norm: group\)"):
        train(tmp_path / "no", model, **private)
    assert train(tmp_path / "yes", {**model, "norm": "group"}, **private).statements["north"].epsilon <= 8.0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"network": "Dense"}, "model.network: must be one of DenseNet, .*found 'Dense'"),
        ({"network": "DenseNet", "arguments": {"depth": 3}}, "model.arguments.depth: unknown argument; DenseNet takes"),
        ({"network": "DenseNet", "arguments": {"act": "loud"}}, r"model: MONAI cannot make a DenseNet with act: loud"),
        ({"network": "SegResNet"}, "task.kind: the model monai is for segmentation, the task is classification"),
        ({"network": "DenseNet121"}, r"images: the network cannot take examples of shape \[1, 8, 8\]"),
    ],
)
def test_what_cannot_serve_is_told_before_anything_runs(tmp_path: Path, model: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, {"name": "monai", **model})
    assert not list(tmp_path.iterdir())
