"""How hard a hospital's images are to imitate (VAFL's complexity score)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from harmonize import complexity
from pipelines.requests.fields import SETTINGS, Number
from pipelines.requests.harmonizing import Harmonizing
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of


@dataclass(frozen=True, kw_only=True)
class Score(Harmonizing):
    """images: how many are compared, alike at all hospitals. prior: of the public images that span the space of
    distances.
    """

    score: Annotated[complexity.Score, SETTINGS]
    images: Annotated[int, SETTINGS] | Absent = ABSENT
    prior: Annotated[str, SETTINGS]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """values: the score of each seed; deviation: theirs, None with one seed or with noise."""

    score: Number
    deviation: Annotated[float | None, Of.SCORE]
    values: Annotated[list[float], Field(max_length=1000), Of.SCORE]


SCORE: Request[Score, Scored] = Request(
    name="score",
    question=Score,
    replies=(Scored,),
    says="how hard its images are to imitate: one number",
    repeat=Repeat.RESTORED,
    writes=True,
)
