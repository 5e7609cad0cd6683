"""What an extractor of features is."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Extractor(Protocol):
    """An object that computes features."""

    @property
    def name(self) -> str:
        """The extractor's name in YAML."""
        ...

    def extract(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features (n, d) of images (n, *inputs): finite, each row from its own image alone."""
        ...


class Extracting(Extractor, Protocol):
    """Settings that can compute features themselves."""

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        ...
