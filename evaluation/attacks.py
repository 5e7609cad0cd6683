"""What attacks on results come to, in words: does it work, how well, and what should a person do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONTROL = 0.9
"""An attack whose control finds fewer than this cannot be told from one that does not work."""


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
class Verdict:
    """word: for a table. said: a sentence with the numbers."""

    word: Literal["succeeds", "not shown to succeed", "says nothing"]
    said: str


KEEP = "Keep such a model where it was trained, and do not publish it."
REMEDY = (
    f"{KEEP} Only patient-level privacy (privacy: {{epsilon: ...}}) bounds every such attack; fewer rounds and more "
    "augmentation lower this one."
)


def membership_verdict(row: MembershipRow) -> Verdict:
    """Of an attack that guesses who took part. The interval decides: one that holds 0.5 proves nothing."""
    if not math.isfinite(row.auc):
        return Verdict("says nothing", f"There is no result: {row.note or 'no reason was given'}.")
    if not row.control_auc >= CONTROL:
        said = "The attack says nothing: even where patients were copied, its control, it does not find them."
        return Verdict("says nothing", said)
    if row.low > 0.5:
        return Verdict("succeeds", f"The attack succeeds: {pairs(row)}.")
    return Verdict("not shown to succeed", f"The attack is not shown to succeed: {pairs(row)}. A stronger one may.")


def pairs(row: MembershipRow) -> str:
    """An AUC in words, with its interval."""
    right, low, high = (f"{100 * share:.0f}" for share in (row.auc, row.low, row.high))
    return (
        f"of a patient who took part and one who did not, it picks the right one {right} times of 100 (95 % interval "
        f"{low} to {high}; guessing: 50)"
    )


def inversion_verdict(row: InversionRow) -> Verdict:
    """Of an attack that draws training images: it succeeds if it draws more of one than the mean image shows."""
    if not row.images:
        return Verdict("says nothing", f"There is no result: {row.note or 'no reason was given'}.")
    how = f"{row.better} of {row.images} training images are drawn better than the mean image shows them"
    return Verdict("succeeds", f"The attack succeeds: {how}.") if row.better else Verdict("not shown to succeed", how)


def strongest(rows: Sequence[MembershipRow]) -> MembershipRow | None:
    """Of the attacks that succeed the one that is surest to."""
    found = [row for row in rows if membership_verdict(row).word == "succeeds"]
    return max(found, key=lambda row: row.low, default=None)
