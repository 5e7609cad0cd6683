"""Scores, confusion and seconds by round of one training, as the hospital wrote them down while it trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.requests.fields import Line, Round, Run
from pipelines.requests.request import Request
from privacy.release.form import ABSENT, Absent, Of, Shape, Text

MOST_ROUNDS = 10**5


@dataclass(frozen=True, kw_only=True)
class Figures:
    """train_run: the training's conversation. last: the round up to which it came, so that one that went on is asked
    anew.
    """

    train_run: Run
    last: Round


@dataclass(frozen=True, kw_only=True)
class Told:
    """Of the validation patients, R rounds, those after which this hospital scored the model. measures: names of the M
    columns of scores. scores: (R, M), NaN where a measure is not defined. confusion: (R, T, C, C) numbers of examples
    or pixels by true and predicted class; absent of a number. seconds: (R,) of local work in the round, NaN where this
    hospital took no part in it.
    """

    rounds: Annotated[list[Round], Field(max_length=MOST_ROUNDS), Of.NAME, Text(2**20)]
    measures: Annotated[list[Line], Field(max_length=8), Of.NAME]
    scores: Annotated[Tensor, Of.SCORE, Shape(axes=2)]
    confusion: Annotated[Tensor, Of.COUNT, Shape(axes=4, numbers=2**24, whole=True)] | Absent = ABSENT
    seconds: Annotated[Tensor, Of.SCORE, Shape(axes=1)]


FIGURES: Request[Figures, Told] = Request(
    name="figures",
    question=Figures,
    replies=(Told,),
    says="by round of a training its score, confusion counts and seconds of local work, on validation patients",
    brief="scores and confusion counts by round",
)
