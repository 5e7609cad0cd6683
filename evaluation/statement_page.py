"""What the pages show of privacy: each hospital's statement, audits, and attacks on who took part and how they look.

The records hold what `privacy/release/statement.py` says, under its names; `site_statement` reads its JSON. Every ε is
rounded already, and is printed as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

NO_GUARANTEE = "∞: no formal guarantee"


@dataclass(frozen=True)
class MechanismRow:
    """One mechanism, `times` times. probability: of a patient to be in a sample; noise: multiplier of what one patient
    can change, None where it has none. epsilon: of this row by itself."""

    request: str
    split: str
    mechanism: str
    probability: float
    noise: float | None
    times: int
    epsilon: float


@dataclass(frozen=True)
class RunDetails:
    """clip: of a patient's gradient. views: of a patient, averaged. batch: patients expected in a sample."""

    clip: float | None = None
    views: int | None = None
    batch: float | None = None


@dataclass(frozen=True)
class RunLoss:
    """epsilon: of all that left in a run; noised: of its rows alone."""

    run: str
    epsilon: float
    noised: float
    rows: tuple[MechanismRow, ...]
    details: RunDetails = RunDetails()


@dataclass(frozen=True)
class SplitLoss:
    """What a patient of one split pays."""

    cut: str
    split: str
    epsilon: float


@dataclass(frozen=True)
class Unprotected:
    """What left without any guarantee."""

    request: str
    content: str
    times: int
    bytes: int


@dataclass(frozen=True)
class Stated:
    """What the hospital declared to be outside of the guarantee."""

    text: str
    times: int
    requests: tuple[str, ...]


@dataclass(frozen=True)
class PatientBudget:
    """The hospital's limit for one patient, what is spent and what remains of it, at its δ."""

    epsilon: float
    delta: float
    spent: float
    remaining: float


@dataclass(frozen=True)
class Paragraph:
    """A heading and what is said under it."""

    title: str
    text: str


@dataclass(frozen=True)
class MechanismAudit:
    """What an attack on the mechanism's own code found: with this confidence ε is above `bound`."""

    claimed: float
    bound: float
    canaries: int
    steps: int
    delta: float
    confidence: float


@dataclass(frozen=True)
class MembershipRow:
    """An attack on a result: AUC of telling patients who took part from others, with its interval. control_auc: of the
    same attack on something that copies its patients."""

    site: str
    method: str
    auc: float
    low: float
    high: float
    control_auc: float
    members: int
    others: int
    note: str = ""


@dataclass(frozen=True)
class InversionRow:
    """What an attack drew of single training images, and how like them it is: mean PSNR in dB and mean SSIM; of the
    mean training image, the floor, too. better: images of which more was drawn than the floor shows."""

    site: str
    method: str
    attack: str
    psnr: float
    ssim: float
    floor_psnr: float
    floor_ssim: float
    better: int
    images: int
    note: str = ""


@dataclass(frozen=True)
class SiteStatement:
    """A hospital's statement over its ledger's life; see `privacy.release.statement.Statement`."""

    site: str
    unit: str
    adjacency: str
    epsilon: float
    noised: float
    replaced: float
    delta: float
    accountant: str
    meaning: str
    legend: str
    lines: int
    torn: int
    refused: int
    first: str
    last: str
    budget: PatientBudget | None
    runs: tuple[RunLoss, ...]
    splits: tuple[SplitLoss, ...]
    unprotected: tuple[Unprotected, ...]
    stated: tuple[Stated, ...]
    outside: tuple[str, ...]
    paragraphs: tuple[Paragraph, ...]
    audit: MechanismAudit | None = None


def site_statement(said: object) -> SiteStatement:
    """What `privacy.release.statement.to_json` wrote, as the pages show it.

    Raises:
        pydantic.ValidationError: naming every field that is missing or of another type.
    """
    return TypeAdapter(SiteStatement).validate_python(said)


def loss(epsilon: float) -> str:
    """An ε as text: with its words where there is none."""
    return NO_GUARANTEE if math.isinf(epsilon) else f"{epsilon:g}"


def spent(statement: SiteStatement) -> str:
    """What a hospital's patient pays for everything, in one line."""
    if math.isinf(statement.epsilon):
        return NO_GUARANTEE
    return f"{loss(statement.epsilon)} at δ = {statement.delta:g}"


@dataclass(frozen=True)
class Together:
    """What the statements of several hospitals say alike, and so is printed once."""

    outside: tuple[str, ...]
    paragraphs: Mapping[str, tuple[str, ...]]
    audits: tuple[MechanismAudit, ...]


def together(statements: Sequence[SiteStatement], audits: Sequence[MechanismAudit] = ()) -> Together:
    """All that is outside, all paragraphs by title, and all audits (of the run and of its hospitals), each once."""
    own = [one.audit for one in statements if one.audit is not None]
    paragraphs: dict[str, tuple[str, ...]] = {}
    for said in dict.fromkeys(p for one in statements for p in one.paragraphs):
        paragraphs[said.title] = (*paragraphs.get(said.title, ()), said.text)
    outside = dict.fromkeys(text for one in statements for text in one.outside)
    return Together(tuple(outside), paragraphs, tuple(dict.fromkeys([*audits, *own])))
