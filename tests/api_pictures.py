"""Two hospitals with small pictures, trained through the Python API, and a network of MONAI's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import consilium
from consilium import Examples, Results, Work

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
