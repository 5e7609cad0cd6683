"""Whether a hospital still has what results of the coordinator rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pipelines.requests.fields import Line, Name, Round, Run
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of, Text


@dataclass(frozen=True, kw_only=True)
class Holds:
    """cohort, sha256: as `ingest` gave them. page: the sha256 of the report page. runs: each with its globally best
    round (or None) if it is finished, else "begun". answers: each as [run, round, request], of whose files none may be
    gone.
    """

    cohort: Line | Absent = ABSENT
    sha256: Line | Absent = ABSENT
    page: Line | Absent = ABSENT
    runs: dict[Run, Round | Literal["begun"] | None] | Absent = ABSENT
    answers: list[tuple[Run, Round, Name]] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Held:
    """complaint: a fixed sentence; None = all is there. known: the runs in which this hospital has taken part."""

    complaint: Annotated[str | None, Of.NAME, Text(2000)]
    known: Annotated[list[Run], Of.NAME, Text(2**24)]


HOLDS: Request[Holds, Held] = Request(
    name="holds",
    question=Holds,
    replies=(Held,),
    says="whether it still has what a result rests on",
    repeat=Repeat.ANEW,
)
