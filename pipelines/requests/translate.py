"""A hospital brings its images into a common space; the images stay there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harmonize.veto import Limits
from pipelines.requests.fields import SETTINGS, AnyTensors, CohortName, KeyedDigest, Line, Name
from pipelines.requests.harmonizing import Harmonizing
from pipelines.requests.request import Request
from pipelines.settings.harmonization import AnySpace
from privacy.release.form import ABSENT, Absent, Of


@dataclass(frozen=True, kw_only=True)
class Translate(Harmonizing):
    """space: its label. scanner: of the target, if that is a phantom. unlabelled: the translator is fitted without
    labels, at an external site.

    tensors: `images`, the shared ones in [-1, 1], and their `labels`.
    """

    space: Annotated[Name, SETTINGS]
    translator: Annotated[AnySpace, SETTINGS]
    veto: Annotated[Limits, SETTINGS]
    is_target: bool
    scanner: Line | None
    unlabelled: bool | Absent = ABSENT
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Translated:
    """The cohort to be used in this space: the raw one if the translation was vetoed. vetoed: why. quality: figures of
    `harmonize.quality.Quality`; empty where they were not measured.
    """

    cohort: CohortName
    sha256: KeyedDigest
    vetoed: Annotated[list[Line], Field(max_length=100), Of.SCORE]
    quality: Annotated[dict[Line, float | int | Line | None], Field(max_length=100), Of.SCORE]


TRANSLATE: Request[Translate, Translated] = Request(
    name="translate",
    question=Translate,
    replies=(Translated,),
    says="name of a translated cohort, what the translation did to its images, and whether it is used",
    writes=True,
    cohort=True,
    shapes=True,
)
