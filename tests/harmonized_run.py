"""The settings of a small run that harmonizes, which tests of several files read or copy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from harmonize.veto import Limits
from pipelines_settings import BASE

HARMONIZE: dict[str, Any] = {
    "score": {"release": "exact", "steps": 2, "seeds": 1, "perplexity": 5.0, "components": 5},
    "synthesis": {"name": "private_evolution", "epsilon": 10.0, "candidates": 24, "rounds": 2, "public": 100},
    "sampling": {"name": "surrogate", "closeness": 1.0, "spacing": 0.0},
    "shared": 12,
    "copies": 1,
    "translate": {
        "vafl": {"name": "cyclegan", "steps": 4, "every": 2, "width": 4, "by_class": True, "patch": 1, "members": 2},
        "z": {"name": "z_score"},
        "exported": {"name": "exported"},
        "oracle": {"name": "oracle"},
    },
    "veto": {field.name: None for field in fields(Limits)},
}
"""No limit at all: every space is used."""


def settings(**excluded: Sequence[str]) -> dict[str, Any]:
    """Of the run; site -> patients left out."""
    found = copy.deepcopy({**BASE, "harmonize": HARMONIZE})
    found["sites"]["a"]["source"]["patients"] = found["sites"]["b"]["source"]["patients"] = 16
    found["split"] = {"train": 0.5, "validation": 0.25, "test": 0.25}
    for site, names in excluded.items():
        found["sites"][site]["exclude"] = list(names)
    found["train"]["methods"] = {label: {"name": "fedavg"} for label in ("fedavg", "vafl", "oracle")}
    found["train"]["schedule"] = {"rounds": 1}
    found["train"]["method_images"] = {"vafl": "vafl", "oracle": "oracle"}
    found["evaluate"] = {"copies": 5, "reference": None, "public": False}
    return found


def write(folder: Path, said: dict[str, Any]) -> str:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(said))
    return str(path)
