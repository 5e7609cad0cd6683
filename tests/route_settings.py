"""The settings of a small run with a hospital outside the federation, and all ways to serve it."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

from harmonize.veto import Limits
from pipelines_settings import BASE

OPEN = {"recipients": ["coordinator", "outside"]}
LINES = {
    "as_trained": {"how": {"name": "as_trained"}},
    "matched": {"how": {"name": "matched"}},
    "average": {"how": {"name": "average"}},
    "ensemble": {"how": {"name": "ensemble"}},
    "tent": {"how": {"name": "tent", "epochs": 1}},
    "ttt": {"how": {"name": "ttt", "epochs": 1}, "shared": "turns"},
    "routing": {"how": {"name": "routing", "epochs": 2, "radius": 2}},
    "online": {"how": {"name": "routing", "mode": "online", "radius": 2}},
}
ROUTED = {
    "untreated": {"how": {"name": "as_trained"}, "shared": "fedavg"},
    "as_trained": {"how": {"name": "as_trained"}},
    "tent": {"how": {"name": "tent", "epochs": 1}},
    "routing": {"how": {"name": "routing", "epochs": 1, "radius": 2}},
}


def settings(**changes: object) -> dict[str, object]:
    made = copy.deepcopy(BASE)
    site = {"kind": "phantom", "scanner": "A", "patients": 6, "slices": 4}
    made["sites"] = {
        "north": {"source": {**site, "seed": 1}, "policy": OPEN},
        "south": {"source": {**site, "seed": 2, "scanner": "L", "format": "nifti"}, "policy": OPEN},
        "west": {"source": {**site, "seed": 3, "scanner": "D"}},
    }
    made |= {
        "pooling": "refused",
        "task": {"kind": "segmentation", "target": "gland"},
        "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
        "model": {"name": "unet", "width": 4, "levels": 1},
        "train": {
            "schedule": {"rounds": 1},
            "work": {"lr": 0.01, "batch": 8},
            "methods": {
                "fedavg": {"name": "fedavg", "weights": "uniform"},
                "iopfl": {"name": "iopfl"},
                "turns": {"name": "fedavg_turns"},
            },
        },
        "evaluate": {"checkpoint": "latest", "copies": 3, "public": False},
        "audit": {"membership": False, "inversion": {"images": 1, "steps": 2}},
        "outside": ["west"],
        "route": {"shared": "fedavg", "personal": "iopfl", "lines": LINES},
    }
    return {**made, **changes}


def translated(**translator: object) -> dict[str, Any]:
    """A run in which methods on translated images serve a hospital outside. translator: of the space `vafl`."""
    made: dict[str, Any] = settings(route={"shared": "vafl", "personal": "personal", "lines": copy.deepcopy(ROUTED)})
    made["sites"] = {
        name: {**site, "source": {**site["source"], "patients": 16, "scanner": scanner}}
        for (name, site), scanner in zip(made["sites"].items(), "PLP", strict=True)
    }
    made |= {
        "task": {"kind": "classification"},
        "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
        "model": {"name": "cnn", "widths": [8, 8], "norm": "batch"},
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
        "harmonize": {
            "score": {"release": "public", "target": "north"},
            "synthesis": {"name": "private_evolution", "epsilon": 10.0, "candidates": 24, "rounds": 2, "public": 100},
            "sampling": {"name": "surrogate", "closeness": 1.0, "spacing": 0.0},
            "shared": 12,
            "copies": 1,
            "translate": {"vafl": translator or {"name": "cyclegan", "steps": 4, "every": 2, "width": 4}},
            "veto": {field.name: None for field in fields(Limits)},
        },
        "audit": {"membership": False},
    }
    made["train"]["methods"] = {"fedavg": {"name": "fedavg"}, "vafl": {"name": "fedavg"}, "personal": {"name": "fedbn"}}
    made["train"]["method_images"] = {"vafl": "vafl", "personal": "vafl"}
    return made
