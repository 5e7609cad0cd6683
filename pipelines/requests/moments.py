"""Number, sums and sums of squares of a hospital's training features, for scaling them alike everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from pipelines.data.images import Features
from pipelines.requests.fields import WITHOUT_NULLS
from pipelines.requests.reading import Reading
from pipelines.requests.request import Request
from privacy.release.form import Of, Shape


@dataclass(frozen=True, kw_only=True)
class ReadFeatures(Reading):
    """As `Reading`, of columns of tables: sums over images would be an image."""

    images: Annotated[Features, WITHOUT_NULLS]


@dataclass(frozen=True, kw_only=True)
class Moments:
    """count (1,), total (F,), squares (F,), in double precision."""

    count: Annotated[Tensor, Of.COUNT, Shape(axes=1, numbers=1)]
    total: Annotated[Tensor, Of.SUM, Shape(axes=1)]
    squares: Annotated[Tensor, Of.SUM, Shape(axes=1)]


MOMENTS: Request[ReadFeatures, Moments] = Request(
    name="moments",
    question=ReadFeatures,
    replies=(Moments,),
    says="number, sums and sums of squares of the training patients' features",
    brief="sums of features",
)
