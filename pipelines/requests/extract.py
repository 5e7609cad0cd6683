"""A hospital computes fixed features of its images; images and features stay there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from federation.models import NamedModel
from pipelines.requests.fields import SETTINGS, AnyTensors, CohortName, Digest, KeyedDigest, Line, Name, Whole
from pipelines.requests.request import Request
from privacy.release.form import ABSENT, Absent


class Public(TypedDict):
    """Public pictures: those of a prior, or any with their name and the digest of their values."""

    prior: NotRequired[Name]
    folder: NotRequired[Name]
    sha256: NotRequired[Digest]
    pictures: Whole


@dataclass(frozen=True, kw_only=True)
class Extract:
    """model: one on features. public: the pictures that set the scale. tensors: the scale, and the file
    of an encoder.
    """

    cohort: Line
    model: Annotated[NamedModel, SETTINGS]
    public: Public
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The new cohort."""

    cohort: CohortName
    sha256: KeyedDigest


EXTRACT: Request[Extract, Extracted] = Request(
    name="extract",
    question=Extract,
    replies=(Extracted,),
    says="name of a cohort with features of its images",
    writes=True,
    cohort=True,
    shapes=True,
)
