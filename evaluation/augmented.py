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
"""The state that a hospital replies, in words; empty if synthetic images joined its training split."""


@dataclass(frozen=True)
class AugmentedRow:
    """A hospital. made: synthetic images of the class `label` in its training split. distance, real: squared Frechet
    distances to held-back images, of synthetic and of training images, compared images of each, by the named features;
    NaN = the hospital sent none. near_copies: share of synthetic images that are near copies of training images. state:
    one of `STATES`.
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
        """Why no synthetic image joined the training split; empty if synthetic images did."""
        return STATES.get(self.state, self.state)
