"""Training and validation examples of patients, for the central baseline of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from pipelines.data.images import Target
from pipelines.requests.fields import Line
from pipelines.requests.request import Request
from privacy.release.form import ABSENT, Absent, Of, Shape


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Images for the central baseline. ordered: whether the labels are."""

    cohort: Line
    target: Target | Absent | None = ABSENT
    ordered: bool | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """`<split>/x`, `<split>/y` and `<split>/patient` of training and validation patients."""

    images: Annotated[Mapping[str, Tensor], Of.IMAGE, Shape(axes=5, names="(train|validation)/x")]
    labels: Annotated[Mapping[str, Tensor], Of.LABEL, Shape(axes=5, names="(train|validation)/(y|patient)")]


POOL: Request[Pool, Pooled] = Request(
    name="pool",
    question=Pool,
    replies=(Pooled,),
    says="training and validation examples with their labels, for the central baseline",
    records="training and validation examples with their labels, for the central baseline",
)
