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
    """By label: gains, value and variance, and the AUC of each, or of a number 1 - its mean absolute error in
    shares of the range; left out where anything is promised to patients."""

    gains: Annotated[dict[Line, tuple[float, float]], Of.SCORE] | Absent = ABSENT
    scores: Annotated[dict[Line, float], Of.SCORE] | Absent = ABSENT


COMPARE: Request[Compare, Compared] = Request(
    name="compare",
    question=Compare,
    replies=(Compared,),
    says="how good models are on validation patients, and how much better than its own, where nothing is promised",
    brief="how models compare on validation patients",
    repeat=Repeat.ANEW,
)
