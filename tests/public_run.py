"""The settings of a small run that needs a detector and starts, of which one goes through a translator."""

from __future__ import annotations

from typing import Any

from harmonized_run import HARMONIZE
from small_run import smallest

DETECTOR: dict[str, Any] = {
    "name": "detector",
    "on": "prostate_adc",
    "pictures": 16,
    "steps": 3,
    "width": 4,
    "size": 16,
}
FEATURES = {"name": "features", "of": DETECTOR, "public": "prostate_adc", "pictures": 32, "components": 4}
START = {"name": "pretrained", "on": "prostate_adc", "pictures": 16, "epochs": 1, "strength": 1.0}


def settings(**changes: Any) -> dict[str, Any]:
    """Three methods: on images, on translated images, both with a start; and on what a detector marks."""
    made = smallest(images={"kind": "slices", "size": 32, "spacing_mm": 2.0})
    made["harmonize"] = {
        "score": {"release": "public", "target": "a"},
        "synthesis": {"name": "public"},
        "shared": 12,
        "translate": {"nobody": {"name": "randomized", "steps": 2, "width": 4}},
        "veto": HARMONIZE["veto"],
    }
    made["train"] |= {
        "methods": {"begun": {"name": "fedavg"}, "nobody": {"name": "fedavg"}, "detector": {"name": "moments"}},
        "method_images": {"nobody": "nobody"},
        "method_model": {"detector": FEATURES},
        "method_start": {"begun": START, "nobody": START},
    }
    return made | changes
