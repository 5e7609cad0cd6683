"""The smallest runs that have hospitals with files, rounds, scores and pages: what faults are tried on, many times."""

from __future__ import annotations

import copy
from typing import Any

from pipelines_settings import BASE


def smallest(**changes: Any) -> dict[str, Any]:
    """Two hospitals of eight phantom patients, one method, one round."""
    made = copy.deepcopy(BASE)
    for site in made["sites"].values():
        site["source"] |= {"patients": 8, "slices": 4}
    made["images"] = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    made["model"] = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    made["train"]["methods"] = {"fedavg": {"name": "fedavg"}}
    made["train"]["schedule"] = {"rounds": 1}
    made["evaluate"] = {"copies": 2, "reference": None}
    return made | changes


SMALL = smallest()
PRIVATE = smallest(privacy={"epsilon": 3.0, "sampling": 0.5, "views": 2}, pooling="refused")
