"""The settings of a small run with a planned network: two phantom hospitals, four methods."""

from __future__ import annotations

import copy
from typing import Any

from pipelines_settings import BASE

MODEL: dict[str, Any] = {
    "name": "planned",
    "patch": [4, 16, 16],
    "kernels": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
    "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
    "filters": [8, 8, 8],
}
WORK: dict[str, Any] = {
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
SETTINGS: dict[str, Any] = {
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
OWN = {
    "images": {"spacing_mm": 4.5, "size": 16},
    "model": {
        "patch": [4, 8, 16],
        "kernels": [[3, 3, 3], [3, 3, 3]],
        "strides": [[1, 1, 1], [1, 2, 2]],
        "filters": [8, 8],
    },
}
OWN_METHODS = ("local", "asymmetric")


def own_settings(**changes: Any) -> dict[str, Any]:
    """`SETTINGS` with a plan of its own at hospital b, and methods that allow one."""
    made: dict[str, Any] = copy.deepcopy(SETTINGS)
    made["sites"]["b"] |= OWN
    made["train"] |= {"methods": {name: {"name": name} for name in OWN_METHODS}}
    made["evaluate"] |= {"public": False}
    return {**made, **changes}
