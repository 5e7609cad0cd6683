"""How much better models are than a hospital's own, on its validation patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import Line
from pipelines.requests.methods import Method, Variant
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Models of a run to be compared."""

    methods: list[Method]
    variants: list[Variant] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Compared:
    """gains: value and variance by label; left out where anything is promised to patients."""

    gains: Annotated[dict[Line, tuple[float, float]], Of.SCORE] | Absent = ABSENT


COMPARE: Request[Compare, Compared] = Request(
    name="compare",
    question=Compare,
    replies=(Compared,),
    says="how much better models are than its own on validation patients, where nothing is promised",
    brief="how models compare on validation patients",
    repeat=Repeat.ANEW,
)
