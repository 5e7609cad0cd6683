"""The settings of the smallest run that has everything: two phantom hospitals, three methods."""

from __future__ import annotations

from typing import Any

from pipelines.loader.files import CONFIGS

TOPS = ("\nsites:", "\ntrain:")
RUNS = sorted(path for path in CONFIGS.glob("*.yaml") if all(key in path.read_text() for key in TOPS))
"""Every shipped configuration of a run; the others are studies, a benchmark, and that of an external site."""

BASE: dict[str, Any] = {
    "name": "tiny",
    "privacy": "none",
    "pooling": "allowed",
    "threads": 1,
    "sites": {
        "a": {
            "source": {"kind": "phantom", "scanner": "P", "patients": 10, "seed": 1, "slices": 4, "damaged": 1},
            "policy": {"pooling": True},
        },
        "b": {
            "source": {"kind": "phantom", "scanner": "L", "patients": 10, "seed": 2, "slices": 4, "format": "nifti"},
            "policy": {"pooling": True},
            "work": {"batch": 8},
        },
    },
    "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
    "split": {"train": 0.5, "validation": 0.2, "test": 0.3},
    "model": {"name": "cam", "widths": [8, 8, 8, 8]},
    "train": {
        "schedule": {"rounds": 3},
        "work": {"lr": 0.01, "batch": 16, "augment": "affine"},
        "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}, "fedper": {"name": "fedper"}},
    },
    "evaluate": {"copies": 20, "reference": "local"},
}
