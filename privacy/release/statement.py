"""The privacy statement: what one hospital's ledger says left, what was done to patients for it, and what that cost.

It holds what NIST SP 800-226 (March 2025) and Ponomareva et al., "How to DP-fy ML" (JAIR 77, 2023) ask of a claim:
unit, adjacency, ε and δ, mechanisms with their parameters, sampling, accountant, what was released, what is outside,
composition, randomness, trust, audits and other data. Every ε is rounded up to three figures, what remains of a budget
is rounded down. `privacy/release/build_statement.py` makes one from a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from typing import Annotated, ClassVar, TypeAlias

from pydantic import PlainSerializer, TypeAdapter

from privacy.message import Json
from privacy.release.bounds import inert
from privacy.release.meaning import NO_GUARANTEE, loss

Loss: TypeAlias = Annotated[float, PlainSerializer(lambda e: "Infinity" if isinf(e) else e, when_used="json")]
"""An ε. JSON has no number without end."""


@dataclass(frozen=True)
class Details:
    """What events do not say of a run. clip: L2 bound of one patient's gradient (C). views: how many views of a patient
    are averaged before it (K). batch: patients expected in a sample."""

    clip: float | None = None
    views: int | None = None
    batch: float | None = None


@dataclass(frozen=True)
class Row:
    """One mechanism, `times` times (T). probability: of a patient to be in a sample (q); 1 = always. noise: multiplier
    of the sensitivity (σ), None where it has none. epsilon: of this row by itself, at the statement's δ."""

    request: str
    split: str
    mechanism: str
    probability: float
    noise: float | None
    times: int
    epsilon: Loss


@dataclass(frozen=True)
class Run:
    """One run. epsilon: of all that left in it. noised: of its rows alone, without what has no guarantee."""

    run: str
    epsilon: Loss
    noised: Loss
    rows: tuple[Row, ...]
    details: Details = Details()


@dataclass(frozen=True)
class Unprotected:
    """What left without any guarantee. times: different replies, or codes that left instead of one."""

    request: str
    content: str
    times: int
    bytes: int


@dataclass(frozen=True)
class Stated:
    """What the hospital declared to be outside. what: "counts" or "failure"; text: the same in words."""

    what: str
    text: str
    times: int
    requests: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Replies whose influence by patients is bounded, or none. again: the same bytes sent once more."""

    request: str
    content: str
    times: int
    again: int
    bytes: int


@dataclass(frozen=True)
class SplitLoss:
    """What a patient of one split pays for what left with noise, over the ledger's life."""

    cut: str
    split: str
    epsilon: Loss


@dataclass(frozen=True)
class Budget:
    """The hospital's own limit for one patient over the ledger's life; spent and remaining are at the budget's δ."""

    epsilon: float
    delta: float
    spent: Loss
    remaining: float


@dataclass(frozen=True)
class Audit:
    """What an attack on the mechanism's own code found (`privacy/attacks/audit.py`): with this confidence ε is above
    `bound`. A bound above `claimed` refutes the claim, one below it proves nothing."""

    claimed: float
    bound: float
    canaries: int
    steps: int
    delta: float
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether the code gives away more than was claimed."""
        return self.bound > self.claimed


@dataclass(frozen=True)
class Paragraph:
    """A heading and what is to be said under it."""

    title: str
    text: str


@dataclass(frozen=True)
class Statement:
    """A hospital's statement over its ledger's life.

    epsilon: of all that left. noised: of the noised replies alone. replaced: of these too, where neighbours differ by
    one patient in another's place. meaning: of `epsilon`, for a person. legend: of the rows. first, last: times of the
    ledger's ends. refused: codes that left instead of replies. torn: lines that a crash cut off; their replies never
    left.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    site: str
    unit: str
    adjacency: str
    epsilon: Loss
    noised: Loss
    replaced: Loss
    delta: float
    accountant: str
    meaning: str
    legend: str
    lines: int
    torn: int
    refused: int
    first: str
    last: str
    budget: Budget | None
    runs: tuple[Run, ...]
    splits: tuple[SplitLoss, ...]
    released: tuple[Released, ...]
    unprotected: tuple[Unprotected, ...]
    stated: tuple[Stated, ...]
    outside: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]
    audit: Audit | None = None


def to_json(statement: Statement) -> Json:
    """The statement as JSON; an ε without end is the string "Infinity"."""
    plain: Json = TypeAdapter(Statement).dump_python(statement, mode="json")
    return plain


def from_json(said: Json) -> Statement:
    """What `to_json` wrote.

    Raises:
        pydantic.ValidationError: naming every field that is missing, unknown or of another type.
    """
    return TypeAdapter(Statement).validate_python(said)


def markdown(statement: Statement) -> str:
    """The statement as a page of Markdown."""
    return "\n".join([*_head(statement), *_mechanisms(statement), *_unbounded(statement), *_rest(statement)]) + "\n"


def _head(said: Statement) -> Iterator[str]:
    unit, budget = inert(said.unit), said.budget
    yield from (f"# Privacy statement: {inert(said.site)}", "", inert(said.meaning), "")
    yield from ("| | |", "| --- | --- |")
    yield f"| Unit | {unit} |"
    yield f"| Neighbours | {inert(said.adjacency)} |"
    yield f"| ε, all that left | {loss(said.epsilon)} |"
    if said.noised != said.epsilon:
        yield f"| ε, what left with noise by itself | {loss(said.noised)} |"
    yield f"| ε, what left with noise, where one {unit} takes another's place | {loss(said.replaced)} |"
    yield f"| δ | {said.delta:g} |"
    yield f"| Accountant | {inert(said.accountant)} |"
    if budget is None:
        yield "| Budget | none was set |"
    else:
        yield f"| Budget for each {unit} over the ledger's life | ε = {budget.epsilon:g} at δ = {budget.delta:g} |"
        yield f"| Spent, and remaining | {loss(budget.spent)}; {budget.remaining:g} |"
    torn = f", {said.torn} of them torn by a crash (what they stood for never left)" if said.torn else ""
    yield f"| Ledger | {said.lines} lines{torn}; {inert(said.first) or '–'} to {inert(said.last) or '–'} |"
    yield f"| Refused | {said.refused} times a code left instead of a reply |"


def _mechanisms(said: Statement) -> Iterator[str]:
    yield from ("", "## What was done, run by run", "", inert(said.legend))
    for run in said.runs:
        yield from ("", f"### {inert(run.run)}", "", *_run(run)) if run.rows else ()
    if idle := [inert(run.run) for run in said.runs if not run.rows]:
        yield from ("", f"Runs without any noised release: {', '.join(idle)}.")
    if said.splits:
        yield from (
            "",
            "## By split",
            "",
            f"What a {inert(said.unit)} of each split pays for what left with noise.",
            "",
        )
        yield from _table(("division", "split", "ε"), [(s.cut, s.split, loss(s.epsilon)) for s in said.splits], 1)
    if said.released:
        yield from (
            "",
            "## What was released",
            "",
            "Replies with noise, or that show nothing of patients beyond what left already.",
            "",
        )
        rows = [(r.request, r.content or "–", f"{r.times}", f"{r.again}", f"{r.bytes}") for r in said.released]
        yield from _table(("request", "what it held", "times", "sent again", "bytes"), rows, 3)


def _run(run: Run) -> Iterator[str]:
    alone = "" if run.noised == run.epsilon else f"; what left with noise by itself: {loss(run.noised)}"
    yield f"ε of the run: {loss(run.epsilon)}{alone}.{_details(run.details)}"
    names = ("request", "split", "mechanism", "q", "σ", "T", "ε alone")
    cells = [
        (row.request, row.split or "all", row.mechanism, f"{row.probability:g}", *_numbers(row)) for row in run.rows
    ]
    yield from ("", *_table(names, cells, 4))


def _numbers(row: Row) -> tuple[str, str, str]:
    return "–" if row.noise is None else f"{row.noise:.4g}", f"{row.times}", loss(row.epsilon)


def _details(details: Details) -> str:
    said = [f"clip C = {details.clip:g}"] if details.clip is not None else []
    said += [f"K = {details.views} views of a patient, averaged before the clip"] if details.views is not None else []
    said += [f"{details.batch:g} patients expected in a sample"] if details.batch is not None else []
    return f" Also: {', '.join(said)}." if said else ""


def _unbounded(said: Statement) -> Iterator[str]:
    yield from ("", f"## {NO_GUARANTEE.capitalize()}", "")
    if said.unprotected:
        yield from (f"What follows left without noise: for it there is {NO_GUARANTEE}, ε = ∞.", "")
        rows = [(u.request, u.content or "–", f"{u.times}", f"{u.bytes}") for u in said.unprotected]
        yield from _table(("request", "what it held", "times", "bytes"), rows, 2)
    else:
        yield "Nothing: whatever left is counted above or declared below."
    yield from ("", "## Outside the guarantee", "")
    if said.stated:
        yield "By the hospital's declaration, because it holds no noise and is not counted in ε:"
        yield from ("", *(f"* {inert(s.text)}: {s.times} × ({inert(', '.join(s.requests))})." for s in said.stated), "")
    yield from ("Always:", "", *(f"* {inert(text)}" for text in said.outside))


def _rest(said: Statement) -> Iterator[str]:
    for paragraph in said.paragraphs:
        yield from ("", f"## {inert(paragraph.title)}", "", inert(paragraph.text))
    yield from (
        "",
        "## Audit",
        "",
        "This hospital did not audit its noise. Attacks on its models, where there were any, are on its page."
        if said.audit is None
        else audited(said.audit),
    )


def audited(audit: Audit) -> str:
    """What an audit says, and what it does not."""
    share = f"{100 * audit.confidence:g} %"
    found = "This refutes the claim." if audit.refuted else "The claim is not refuted; an audit cannot prove it."
    return (
        f"The code was attacked at a setting of its own, not that of these runs: {audit.canaries} made-up patients, "
        f"{audit.steps} steps, ε = {audit.claimed:g} at δ = {audit.delta:g} claimed. With {share} confidence ε is at "
        f"least {audit.bound:.3g}. {found}"
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> Iterator[str]:
    """numbers: how many of the last columns stand to the right."""
    texts = len(names) - numbers
    yield f"| {' | '.join(names)} |"
    yield f"| {' | '.join('---' if place < texts else '---:' for place in range(len(names)))} |"
    yield from (f"| {' | '.join(map(inert, row))} |" for row in rows)
