"""A hospital with 24 synthetic patients with one image each, a third of them in each split, for tests of its worker."""

from __future__ import annotations

from pathlib import Path

import torch

from harmonize.veto import Limits
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital, write_cohort_file
from pipelines.hospital.worker import make_worker
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.store import short_digest
from pipelines.settings.sites import SiteSettings
from privacy.message import Call, Message
from privacy.release.policy import Policy

SIDE, PATIENTS = 16, 24
OPEN = Policy(public=("counts",))
SCALE = {"low": 0.0, "high": 3.5}


def hospital(
    folder: Path, policy: Policy = OPEN, *, veto: Limits | None = None, without: tuple[int, ...] = ()
) -> tuple[Hospital, str]:
    """The hospital, and its cohort, from which some patients may be absent."""
    settings = SiteSettings(source=PhantomSource(scanner="P", patients=4), policy=policy, veto=veto)
    made = Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")
    labels = torch.arange(PATIENTS) // 3 % 2
    images = torch.rand(PATIENTS, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 3.5
    gland, lesion = torch.zeros(2, PATIENTS, SIDE, SIDE, dtype=torch.uint8)
    gland[:, 3:13, 3:13], lesion[labels == 1, 5:8, 5:8] = 1, 1
    here = torch.tensor([number for number in range(PATIENTS) if number not in without])
    cohort = Cohort(
        images=images[here],
        labels=labels[here],
        patient=here,
        position=torch.zeros(len(here)),
        lesion=lesion[here],
        gland=gland[here],
        split=(here % 3).to(torch.int8),
        patients=tuple(f"p{number:02}" for number in range(PATIENTS)),
        recipe={"images": {"kind": "slices"}, "independent": True, "cut": "real"},
    )
    return made, short_digest(write_cohort_file(made.scratch(), cohort, made.key()))


def ask(own: Hospital, request: str, round_: int = 0, tensors=None, run: str = "r/one", **facts) -> Message:
    """The worker's answer."""
    merged = {own.name: round_ - 1} if round_ > 1 else {}
    return make_worker(own)(Call(run, round_, request, merged), Message(tensors or {}, facts))
