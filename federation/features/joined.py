"""Features of several extractors side by side: `{name: joined, of: [{name: colour}, {name: lite0}]}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from federation.features.colour import Colour
from federation.features.extracting import Extracting, Extractor
from federation.features.lite0 import Lite0
from federation.features.onnx_encoder import FileEncoder
from federation.features.radiomics import Radiomics
from federation.features.random_convolutions import RandomConvolutions
from federation.features.scattering import Scattering
from federation.registry import Group
from privacy.settings_error import refuse, unmet

Floats = NDArray[np.float64]

Ready: TypeAlias = Colour | Radiomics | RandomConvolutions | Scattering
"""Extractors that need no file and no training."""
PARTS = Group("features", "extractor of features", get_args(Ready | FileEncoder | Lite0), Extracting)
Part: TypeAlias = Annotated[Ready | FileEncoder | Lite0, PARTS]


@dataclass(frozen=True, kw_only=True)
class Joined:
    """of: two extractors or more; at most one of them has weights (`encoder`, `onnx`, `lite0`)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["joined"] = "joined"
    of: tuple[Part, ...]

    def __post_init__(self) -> None:
        files = sum(isinstance(part, FileEncoder | Lite0) for part in self.of)
        several = len(self.of) > 1 and files < 2
        refuse(
            unmet(self, of=(several, "two extractors or more, and at most one of encoder, onnx and lite0 among them"))
        )

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        return [text for part in self.of for text in part.complaints(inputs)]


@dataclass(frozen=True)
class JoinedExtractor:
    """The extractors of the parts, in order."""

    parts: tuple[Extractor, ...]
    name: ClassVar[str] = "joined"

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, *inputs): those of each part."""
        return np.concatenate([part.extract(images) for part in self.parts], axis=1)
