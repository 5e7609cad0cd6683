"""A MONAI network that settings name is trained as the same `nn.Module` that a person brings, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import consilium
from consilium import ConfigError, Examples, PatientLevel, Policy, Results, Work
from federation.parameters import read
from pipelines.run import main
from pipelines.runs.exits import Exit

ARGUMENTS: dict[str, Any] = {"init_features": 16, "growth_rate": 16, "block_config": [1, 1]}
PARTS: dict[str, Any] = {
    "stem": ["features.conv0", "features.norm0"],
    "blocks": ["features.denseblock1", "features.transition1", "features.denseblock2", "features.norm5"],
    "head": "class_layers.out",
}


def dense(inputs: tuple[int, ...], classes: int) -> nn.Module:
    from monai.networks.nets import DenseNet

    return DenseNet(len(inputs) - 1, inputs[0], classes, **ARGUMENTS)


def hospital(seed: int) -> Examples:
    chance = np.random.default_rng(seed)
    y = np.arange(32) // 2 % 2
    x = chance.normal(size=(32, 1, 8, 8)) + y[:, None, None, None]
    return Examples(x, y, [f"{seed}-{row // 2}" for row in range(32)])


def train(folder: Path, model: object, **changes: Any) -> Results:
    asked: dict[str, Any] = {
        "method": ["fedavg", "fenda"],
        "rounds": 1,
        "work": Work(batch=8, lr=0.01),
        "settings": {"evaluate": {"copies": 0}, "audit": {"membership": False, "canaries": 0}},
        "quiet": True,
    }
    return consilium.train({"north": hospital(1), "south": hospital(2)}, model=model, folder=folder, **asked | changes)


def test_what_settings_name_is_what_a_person_wraps(tmp_path: Path) -> None:
    named = {"name": "monai", "network": "DenseNet", "arguments": ARGUMENTS}
    one, other = train(tmp_path / "one", named), train(tmp_path / "other", consilium.own(dense, **PARTS))
    assert str(one.rows) == str(other.rows) and one.losses == other.losses
    for method in ("fedavg", "fenda"):
        ours, theirs = read(one.model(method, "north")), read(other.model(method, "north"))
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
