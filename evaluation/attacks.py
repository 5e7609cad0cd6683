"""Outcomes of attacks, in words: whether an attack succeeds, how well, and what a person should do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CONTROL = 0.9
"""If the control's AUC is below this, the attack may simply not work."""


@dataclass(frozen=True)
class MembershipRow:
    """A membership attack: its AUC of separating patients who took part in training from patients who did not, with its
    interval. control_auc: of the same attack on a model that memorizes its patients.
    """

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
    """Mean PSNR in dB and mean SSIM of reconstructions of single training images; floor_*: of the mean training image
    as a baseline. better: number of images reconstructed better than by that baseline.
    """

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
class AttackOutcome:
    """word: for a table. sentence: with the figures."""

    word: Literal["succeeds", "not shown to succeed", "says nothing"]
    sentence: str


KEEP = "Keep such a model where it was trained, and do not publish it."
REMEDY = (
    f"{KEEP} Only patient-level privacy (privacy: {{epsilon: ...}}) bounds every such attack; fewer rounds and more "
    "augmentation lower this one."
)


def membership_outcome(row: MembershipRow) -> AttackOutcome:
    """The outcome of a membership attack. An interval that contains 0.5 proves nothing."""
    if not math.isfinite(row.auc):
        return AttackOutcome("says nothing", f"There is no result: {row.note or 'no reason was given'}.")
    if not row.control_auc >= CONTROL:
        sentence = "The attack says nothing: even where patients were copied, its control, it does not find them."
        return AttackOutcome("says nothing", sentence)
    if row.low > 0.5:
        return AttackOutcome("succeeds", f"The attack succeeds: {describe_auc(row)}.")
    return AttackOutcome(
        "not shown to succeed", f"The attack is not shown to succeed: {describe_auc(row)}. A stronger one may."
    )


def describe_auc(row: MembershipRow) -> str:
    """An AUC in words, with its interval."""
    right, low, high = (f"{100 * share:.0f}" for share in (row.auc, row.low, row.high))
    return (
        f"of a patient who took part and one who did not, it picks the right one {right} times of 100 (95 % interval "
        f"{low} to {high}; guessing: 50)"
    )


def inversion_outcome(row: InversionRow) -> AttackOutcome:
    """The outcome of an inversion attack: it succeeds if it reconstructs an image better than the mean image does."""
    if not row.images:
        return AttackOutcome("says nothing", f"There is no result: {row.note or 'no reason was given'}.")
    how = f"{row.better} of {row.images} training images are drawn better than the mean image shows them"
    return (
        AttackOutcome("succeeds", f"The attack succeeds: {how}.")
        if row.better
        else AttackOutcome("not shown to succeed", how)
    )


def find_strongest_attack(rows: Sequence[MembershipRow]) -> MembershipRow | None:
    """The successful attack with the highest lower bound; None if no attack succeeds."""
    successful = [row for row in rows if membership_outcome(row).word == "succeeds"]
    return max(successful, key=lambda row: row.low, default=None)
