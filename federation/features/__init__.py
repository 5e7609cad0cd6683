"""Fixed features of images: numbers that no patient shaped, from which a head learns. One file an extractor."""

from typing import Annotated, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from federation.features.colour import Colour
from federation.features.detector import Detector
from federation.features.encoder import Encoder
from federation.features.radiomics import Radiomics
from federation.features.random_convolutions import RandomConvolutions
from federation.features.scattering import Scattering
from federation.registry import Group

Ready: TypeAlias = Colour | Radiomics | RandomConvolutions | Scattering
"""Extractors as they are."""


class Extractor(Protocol):
    """What computes features."""

    @property
    def name(self) -> str:
        """The extractor's name in YAML."""
        ...

    def extract(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features (n, d) of images (n, *inputs): finite, each row from its own image alone."""
        ...


class Extracting(Extractor, Protocol):
    """Settings that compute features as they are."""

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = they have."""
        ...


EXTRACTORS = Group("features", "extractor of features", get_args(Ready | Detector | Encoder), Extracting)
AnyExtractor: TypeAlias = Annotated[Ready | Detector | Encoder, EXTRACTORS]
"""Every extractor that a YAML can name: a new one is its file and its place here.

`complaints(inputs)` says why examples of a shape have no such features. An `Encoder` becomes an `Extractor` with the
bytes of its file, by `frozen`, and a `Detector` with the bytes of what it learnt, by `detecting`; the others are
extractors.
"""
