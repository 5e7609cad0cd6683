"""The privacy statement of a hospital: what left it, by which mechanisms, and what that cost, from its ledger.

It holds what NIST SP 800-226 (March 2025) and Ponomareva et al., "How to DP-fy ML" (JAIR 77, 2023) require of a claim:
unit, adjacency, ε and δ, mechanisms with their parameters, sampling, accountant, what was released, what is outside the
guarantee, composition, randomness, trust, audits and other data. Every ε is rounded up to three figures, a remaining
budget is rounded down. `privacy/release/build_statement.py` builds one from a ledger;
`privacy/release/statement_markdown.py` and the pages of `evaluation` print these records as they are.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import isinf
from typing import Annotated, ClassVar, TypeAlias

from pydantic import PlainSerializer, TypeAdapter

from privacy.message import Json

Loss: TypeAlias = Annotated[float, PlainSerializer(lambda e: "Infinity" if isinf(e) else e, when_used="json")]
"""An ε, in JSON "Infinity" if it is infinite."""


@dataclass(frozen=True)
class Details:
    """Settings of a run that events do not record. clip: L2 bound of one patient's gradient (C). views: number of views
    of a patient that are averaged before clipping (K). batch: expected number of patients in a sample."""

    clip: float | None = None
    views: int | None = None
    batch: float | None = None


@dataclass(frozen=True)
class Row:
    """One mechanism, applied `times` times (T). probability: of a patient to be in a sample (q); 1 = always. noise:
    multiple of the sensitivity (σ), None if it has none. epsilon: of this row alone, at the statement's δ."""

    request: str
    split: str
    mechanism: str
    probability: float
    noise: float | None
    times: int
    epsilon: Loss


@dataclass(frozen=True)
class Run:
    """One run. epsilon: of all its replies. noised: of its rows alone, without replies that have no guarantee."""

    run: str
    epsilon: Loss
    noised: Loss
    rows: tuple[Row, ...]
    details: Details = Details()


@dataclass(frozen=True)
class Unprotected:
    """Replies that left without any guarantee. times: number of different replies, or of codes sent instead."""

    request: str
    content: str
    times: int
    bytes: int


@dataclass(frozen=True)
class Declaration:
    """Facts that the hospital declared outside the guarantee. what: "counts" or "failure"; text: the same in words."""

    what: str
    text: str
    times: int
    requests: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Replies on which a patient has a bounded influence, or none. again: how often the same bytes were sent again."""

    request: str
    content: str
    times: int
    again: int
    bytes: int


@dataclass(frozen=True)
class SplitLoss:
    """The ε of a patient of one split for all replies with noise, over the ledger's life."""

    cut: str
    split: str
    epsilon: Loss


@dataclass(frozen=True)
class Budget:
    """The hospital's limit for one patient over the ledger's life; spent and remaining are at the budget's δ.
    release, run: what its policy caps one reply and one run at; None = a statement of before caps were stated.
    """

    epsilon: float
    delta: float
    spent: Loss
    remaining: float
    release: float | None = None
    run: float | None = None


@dataclass(frozen=True)
class Audit:
    """The result of an attack on the mechanism's code (`privacy/attacks/audit.py`): with this confidence ε is above
    `bound`. A bound above `claimed` refutes the claim; one below it proves nothing."""

    claimed: float
    bound: float
    canaries: int
    steps: int
    delta: float
    confidence: float

    @property
    def is_refuted(self) -> bool:
        """Whether the code reveals more than was claimed."""
        return self.bound > self.claimed


@dataclass(frozen=True)
class Paragraph:
    """A heading and the text under it."""

    title: str
    text: str


@dataclass(frozen=True)
class Statement:
    """A hospital's statement over its ledger's life.

    epsilon: of all replies. noised: of the replies with noise alone. replaced: the same, where neighbouring data sets
    differ by the replacement of one patient. meaning: of `epsilon`, in words. legend: of the rows. first, last: times
    of the first and last line of the ledger. refused: number of codes sent instead of replies. torn: number of lines
    that a crash cut off; their replies never left. stated: facts declared outside the guarantee.
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
    stated: tuple[Declaration, ...]
    outside: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]
    audit: Audit | None = None


@functools.cache
def _open_adapter() -> TypeAdapter[Statement]:
    """Made once, and only where there is a statement: it takes 40 ms."""
    return TypeAdapter(Statement)


def to_json(statement: Statement) -> Json:
    """The statement as JSON; an infinite ε is the string "Infinity"."""
    plain: Json = _open_adapter().dump_python(statement, mode="json")
    return plain


def from_json(content: object) -> Statement:
    """The statement from what `to_json` wrote.

    Raises:
        pydantic.ValidationError: naming every field that is missing, unknown or of another type.
    """
    return _open_adapter().validate_python(content)
