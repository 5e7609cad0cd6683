"""Shared steps of harmonization at a hospital: images scaled for networks, and private or plain access to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from torch import Tensor

from harmonize.elastic import make_deformed_copies
from harmonize.scale import Progress, Scale
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.kept import cohort_of, cut_of
from pipelines.hospital.released_counts import need_counts
from pipelines.runs.progress import ShowStep
from privacy.dp.access import Access, Rows, Split, open_access
from privacy.dp.protection import Protection
from privacy.release.gate import Refused


def cohort_in(hospital: Hospital, name: str) -> Cohort:
    """The requested cohort. Raises: Refused: it holds no 2D images."""
    cohort = cohort_of(hospital, name)
    if cohort.images.dim() != 4:
        raise Refused("not_images") from ValueError("harmonization is for slices and pictures")
    return cohort


class Copied(Protocol):
    """How training images are copied: the part that the questions of harmonization share."""

    @property
    def scale(self) -> Scale:
        """Of values."""

    @property
    def copies(self) -> int:
        """Of each image, with itself."""

    @property
    def seed(self) -> int:
        """Of the deformations."""


def training_rows(cohort: Cohort, how: Copied) -> Rows:
    """Training images in [-1, 1], each with its non-rigidly deformed copies, which belong to the same patient.

    A copy depends on its image alone, so the patient stays the unit of privacy.
    """
    chosen = (cohort.split == SPLITS.index("train")).nonzero()[:, 0]
    x = make_deformed_copies(how.scale.into(cohort.images[chosen]), how.copies, seed=how.seed)
    y, patient = (part[chosen].repeat_interleave(how.copies) for part in (class_sides(cohort), cohort.patient))
    return Rows(x, y, patient)


def split_rows(cohort: Cohort, scale: Scale, split: Split) -> Rows:
    """One split's images in [-1, 1], as they are."""
    chosen = (cohort.split == SPLITS.index(split)).nonzero()[:, 0]
    return Rows(scale.into(cohort.images[chosen]), class_sides(cohort)[chosen], cohort.patient[chosen])


def class_sides(cohort: Cohort) -> Tensor:
    """(n,) 0 = the first class, 1 = any other: the two that public priors draw and that harmonization keeps apart,
    however many the task has.
    """
    return (cohort.labels > 0).long()


def access_to(
    hospital: Hospital, cohort: Cohort, rows: Rows, protection: Protection | None, *, batch: int, seed: int
) -> Access:
    """Access to these rows: private with a protection, otherwise plain."""
    rows = Rows(rows.x.to(hospital.device), rows.y.to(hospital.device), rows.patient.to(hospital.device))
    if protection is None:
        return open_access({"train": rows}, batch=batch, seed=seed)
    from privacy.dp.private_access import open_private  # slow to import

    counts = need_counts(hospital)
    sizes = None if counts is None else counts.sizes()
    return open_private({"train": rows}, replace(protection, cut=cut_of(cohort)), counts=hospital.counts, sizes=sizes)


def make_progress(hospital: Hospital, step: ShowStep) -> Progress:
    """A progress callback for long work, which also stops the work on request."""

    def report_progress(done: int, total: int, what: str) -> None:
        hospital.pause()
        step(done, total, what)

    return report_progress
