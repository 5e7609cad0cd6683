"""Fixed features of images: numbers that no patient shaped, from which a head learns. One file an extractor."""

from typing import Annotated, TypeAlias

from pydantic import Field

from federation.features.colour import Colour
from federation.features.radiomics import Radiomics
from federation.features.random_convolutions import RandomConvolutions
from federation.features.scattering import Scattering

AnyExtractor: TypeAlias = Annotated[Colour | Radiomics | RandomConvolutions | Scattering, Field(discriminator="name")]
"""Every extractor that a YAML can name: a new one is its file and its place here.

`complaints(inputs)` says why examples of a shape have no such features; `extract(images (n, *inputs) float64)` gives
(n, d) float64, finite, each row from its own image alone.
"""
