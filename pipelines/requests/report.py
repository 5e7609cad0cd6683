"""A hospital writes its own page, and says what left it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from pipelines.data.images import Target
from pipelines.requests.fields import KeyedDigest, Line, Name, Run, Settings, Whole, Window
from pipelines.requests.methods import Method, Variant
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of, Text


class Outside(TypedDict):
    """A line of test-time routing on a page."""

    label: Name
    run: Run


class Oracle(TypedDict):
    """Lines of a run to be compared with one that has the same patients on one scanner."""

    untranslated: Name
    oracle: Name
    others: list[Name]


class Others(TypedDict):
    """Sums of the gains that other hospitals measured, by model: weighted, and of the weights."""

    hospitals: Whole
    sums: dict[Name, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """pictures: False = without them, which only a simulated hospital heeds. scanner: of the hospital that images are
    translated towards, if that is a phantom. lines, names, field: of an external site,
    all of them or none.
    """

    title: Line
    cohort: Line
    pictures: bool | Absent = ABSENT
    reference: Name | None
    copies: Annotated[int, Field(ge=0, le=2000)]
    methods: list[Method]
    variants: list[Variant] | Absent = ABSENT
    imitated: Line | Absent | None = ABSENT
    excluded: Whole | Absent = ABSENT
    unmatched_exclusions: Whole | Absent = ABSENT
    spaces: list[Line] | Absent = ABSENT
    target: Target | Absent | None = ABSENT
    ordered: bool | Absent = ABSENT
    structures: list[Name] | Absent = ABSENT
    window: Window | Absent = ABSENT
    others: Others | Absent = ABSENT
    compared: list[Oracle] | Absent = ABSENT
    scanner: Line | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class OutsideReport(Report):
    """Of an external site's page."""

    lines: list[Outside]
    names: list[Line]
    field: Line


class Entry(TypedDict):
    """What left in answer to one request."""

    request: Line
    content: str
    messages: Whole
    bytes: int
    epsilon: str
    records: Literal["none", "left", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Reported:
    """left, sent: messages and bytes that left, by request and by run. page: keyed digest of the page. knew: earlier
    runs that patients had a part in who are excluded now. ready: names of finished models. statement: the privacy
    statement. decision: which model the hospital recommends to itself; None where anything is promised. ledger: lines
    and digest of its end, as a witness.
    """

    left: Annotated[list[Entry], Of.COUNT, Text(2**20)]
    sent: Annotated[dict[Line, int], Of.COUNT, Text(2**20)]
    page: KeyedDigest
    knew: Annotated[list[Line], Of.NAME, Text(2**20)]
    ready: Annotated[list[Line], Of.NAME]
    statement: Annotated[Settings, Of.NAME, Text(2**24)]
    decision: Annotated[Settings | None, Of.SCORE]
    ledger: Annotated[tuple[Whole, str], Of.NAME]


REPORT: Request[Report, Reported] = Request(
    name="report",
    question=Report,
    replies=(Reported,),
    says="counts of messages and bytes; digest of the page; where nothing is promised, the recommended model",
    repeat=Repeat.ANEW,
    writes=True,
)
