"""The privacy statement: what one hospital's ledger says left, what was done to patients for it, and what that cost.

It holds what NIST SP 800-226 (March 2025) and Ponomareva et al., "How to DP-fy ML" (JAIR 77, 2023) ask of a claim:
unit, adjacency, ε and δ, mechanisms with their parameters, sampling, accountant, what was released, what is outside,
composition, randomness, trust, audits and other data. Every ε is rounded up to three figures, what remains of a budget
is rounded down. `privacy/release/build_statement.py` makes one from a ledger; `privacy/release/statement_markdown.py`
and the pages of `evaluation` print these records as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf
from typing import Annotated, ClassVar, TypeAlias

from pydantic import PlainSerializer, TypeAdapter

from privacy.message import Json

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
class Declaration:
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
    stated: tuple[Declaration, ...]
    outside: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]
    audit: Audit | None = None


def to_json(statement: Statement) -> Json:
    """The statement as JSON; an ε without end is the string "Infinity"."""
    plain: Json = TypeAdapter(Statement).dump_python(statement, mode="json")
    return plain


def from_json(said: object) -> Statement:
    """What `to_json` wrote.

    Raises:
        pydantic.ValidationError: naming every field that is missing, unknown or of another type.
    """
    return TypeAdapter(Statement).validate_python(said)
