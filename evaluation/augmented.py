"""What became of generative augmentation at each hospital, as a table of the coordinator's page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

STATES: Mapping[str, str] = {
    "augmented": "",
    "balanced": "N/A: its classes are balanced",
    "one_class": "N/A: it has no training image of one class",
    "copies": "not used: the generator copied training images",
}
"""What a hospital answers, in words; empty where synthetic images joined it."""


@dataclass(frozen=True)
class AugmentedRow:
    """A hospital. made: synthetic images of the class `label` in its training split. distance, real: squared Frechet
    distances to held-back images, of synthetic and of training images, `compared` of each, by `features`; NaN = not
    told. near_copies: share of them. state: one of `STATES`.
    """

    site: str
    space: str
    state: str
    label: str
    made: int
    distance: float = math.nan
    real: float = math.nan
    compared: int = 0
    features: str = ""
    near_copies: float = math.nan

    @property
    def why(self) -> str:
        """Why no synthetic image joined it; empty if some did."""
        return STATES.get(self.state, self.state)
