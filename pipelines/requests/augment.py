"""Synthetic images of the smaller class join a hospital's training images, which stay there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import (
    SETTINGS,
    AnyTensors,
    CohortName,
    Count,
    DeformedCopies,
    Digest,
    KeyedDigest,
    Line,
    Name,
    Seed,
    ValueScale,
)
from pipelines.requests.request import Request
from pipelines.settings import augment
from privacy.release.form import ABSENT, Absent, Of


@dataclass(frozen=True, kw_only=True)
class Augment:
    """prior: of the features in which distances are told. private: whether patients have a guarantee. fid: digest of
    Inception's weights, where the tensor holds them and their features are told instead.
    """

    cohort: Line
    augment: Annotated[augment.Augment, SETTINGS]
    scale: ValueScale
    copies: DeformedCopies
    prior: Name
    seed: Seed
    private: bool | Absent = ABSENT
    fid: Digest | Absent | None = ABSENT
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """The cohort to be used, with synthetic images or as it was (`state`); label, made: which class got how many."""

    cohort: CohortName
    sha256: KeyedDigest
    state: Annotated[Name, Of.COUNT]
    label: Annotated[int | None, Of.COUNT]
    made: Count


@dataclass(frozen=True, kw_only=True)
class Judged(Augmented):
    """Where nothing is promised, also distances to held-back images, of `compared` images each, in `features`."""

    distance: Annotated[float | None, Of.SCORE]
    distance_real: Annotated[float | None, Of.SCORE]
    compared: Annotated[int | None, Of.COUNT]
    features: Annotated[Line, Of.NAME]
    near_copies: Annotated[float | None, Of.SCORE]


AUGMENT: Request[Augment, Augmented | Judged] = Request(
    name="augment",
    question=Augment,
    replies=(Augmented, Judged),
    says="name of a cohort with synthetic training images; how many; if nothing is promised, how far from real",
    writes=True,
    cohort=True,
    shapes=True,
)
