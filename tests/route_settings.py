"""The settings of a small run with a hospital outside the federation, and all ways to serve it."""

from __future__ import annotations

import copy

from pipelines_settings import BASE

OPEN = {"recipients": ["coordinator", "outside"]}
LINES = {
    "as_trained": {"how": {"name": "as_trained"}},
    "average": {"how": {"name": "average"}},
    "ensemble": {"how": {"name": "ensemble"}},
    "tent": {"how": {"name": "tent", "epochs": 1}},
    "ttt": {"how": {"name": "ttt", "epochs": 1}, "shared": "turns"},
    "routing": {"how": {"name": "routing", "epochs": 2, "radius": 2}},
    "online": {"how": {"name": "routing", "mode": "online", "radius": 2}},
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
