"""The results of the stage `audit`, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.rows import from_json
from privacy.attacks.membership import Membership
from privacy.release.statement import Audit

AUDITS = "audits.json"


@dataclass(frozen=True)
class Likeness:
    """Means over the images of an attack, NaN = not finite. better: images that are nearer than the mean image."""

    psnr: float
    ssim: float
    better: int


@dataclass(frozen=True)
class Inverted:
    """What a hospital reconstructed (`pipelines.hospital.inversion`). attacks: by name. reason: why there are none."""

    images: int = 0
    attacks: Mapping[str, Likeness] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class MembershipAttempt:
    """A hospital's attack on its model of a method. found: None = it stays at the hospital, or was refused."""

    site: str
    method: str
    found: Membership | None
    refused: str | None = None


@dataclass(frozen=True)
class InversionAttempt:
    """As `MembershipAttempt`."""

    site: str
    method: str
    found: Inverted | None
    refused: str | None = None


@dataclass(frozen=True)
class Audits:
    """mechanism: of private data access, None = not audited. Nothing at all is audited where nothing is trained."""

    mechanism: Audit | None = None
    membership: tuple[MembershipAttempt, ...] = ()
    inversion: tuple[InversionAttempt, ...] = ()


def read_audits(artifact: Path) -> Audits:
    """What the stage `audit` wrote. Raises: ValueError: it is damaged."""
    return from_json(Audits, (artifact / AUDITS).read_bytes())
