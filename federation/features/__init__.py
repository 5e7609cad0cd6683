"""Fixed features of images: numbers that depend on no patient's training, on which a head is trained. One file for each
extractor."""

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
"""Extractors that need no file and no training."""


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


EXTRACTORS = Group("features", "extractor of features", get_args(Ready | Detector | Encoder), Extracting)
AnyExtractor: TypeAlias = Annotated[Ready | Detector | Encoder, EXTRACTORS]
"""Every extractor that a YAML can name. A new one needs its file and a member here.

`complaints(inputs)` says why examples of a shape have no such features. `load_encoder` makes an `Extractor` of an
`Encoder` and the bytes of its file, and `load_detector` one of a `Detector` and the bytes of its trained weights; the
others are extractors already.
"""
