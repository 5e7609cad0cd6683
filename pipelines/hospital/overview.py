"""A summary of a hospital's files in one line: what is there, what was selected, in which unit and why.

It holds descriptions and percentiles from headers and pixels. So it is for the hospital's staff only: it is written
into the hospital's own folder, and no reply contains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipelines.data.accounts import Account, describe_outcomes, list_accounts
from pipelines.data.examples import open_source
from pipelines.data.images import AnyImages, Slices, Target, Tensors
from pipelines.data.intake import Intake, ReadStudy, read_studies
from pipelines.data.study import Rejected
from pipelines.discovery.safe import known_words
from pipelines.hospital.files import Files
from pipelines.hospital.hospital import Hospital
from pipelines.runs.store import DiskFolder

INSIDE = "inside.txt"
SAMPLE = 3  # studies whose pixels are read, besides all headers
NUMBERS = ": values at"  # what follows in an evidence are percentiles of a single study
NAMED = 4  # most kinds of series, or of evidence, that are named
StudyEvidence = tuple[str, tuple[float, float, float] | None]


def describe_reading(
    counts: Mapping[str, int],
    accounts: Sequence[Account],
    rejected: Sequence[Rejected],
    evidence_of_studies: Sequence[StudyEvidence],
    *,
    unit: str,
    of: str = "files",
) -> str:
    """The summary line. counts: as in {"patients": 3}. told: evidence and percentiles of the studies that were read."""
    series = {
        (account.study, known_words(account.series))
        for account in accounts
        if account.what == "used" and account.series
    }
    values = [percentiles for _, percentiles in evidence_of_studies if percentiles is not None]
    parts = [", ".join(f"{number:,} {name}" for name, number in counts.items())]
    parts.append(_list_commonest("series chosen", Counter(text or "(no known word)" for _, text in series)))
    evidence = Counter(text.split(NUMBERS)[0] for text, _ in evidence_of_studies if text)
    parts.append(_list_commonest("taken for ADC because", evidence))
    parts.append(f"brought into {unit}" if evidence else f"unit {unit}")
    if values:
        low, middle, high = np.median(np.array(values), axis=0)
        parts.append(
            f"ADC at 1, 50 and 99 %: {low:.0f}, {middle:.0f}, {high:.0f} x 1e-6 mm²/s (median of {len(values)} studies)"
        )
    parts.append(_list_commonest("rejected", Counter(study.reason for study in rejected), None) or "rejected: none")
    parts.append(describe_outcomes(accounts, of).replace("\n", " "))
    return "; ".join(part for part in parts if part)


def look_into_source(
    files: Files, images: AnyImages, readers: int, target: Target | None = None, classes: tuple[str, ...] = ()
) -> str:
    """The summary line before any run: from all headers, and the pixels of a few studies. target, classes: of the task,
    against which tensors are checked.

    Raises:
        ValueError: settings are wrong, or nothing fits.
    """
    if isinstance(images, Slices) and images.slices == "gland":  # no mask is opened here
        images = replace(images, slices="all")
    task = (target, classes) if isinstance(images, Tensors) else (None, ())
    opened = open_source(files.source, None, images, None, *task)
    return describe_sample(opened, read_sample(opened, readers))


class StudySample(NamedTuple):
    """A few studies of a source, read whole, and those of them that cannot be used."""

    read: tuple[ReadStudy, ...]
    rejected: tuple[Rejected, ...]


def read_sample(opened: Intake, readers: int) -> StudySample:
    """Read a few studies, from the first to the last."""
    waiting = opened.waiting
    places = {*np.linspace(0, len(waiting) - 1, SAMPLE, dtype=int).tolist()} if waiting else set()
    results = list(read_studies([waiting[place] for place in sorted(places)], readers=readers))
    rejected = tuple(study for study in results if isinstance(study, Rejected))
    return StudySample(tuple(study for study in results if isinstance(study, ReadStudy)), rejected)


def describe_sample(opened: Intake, sample: StudySample) -> str:
    """The summary line of a source of which a few studies were read."""
    waiting, read, of_them = opened.waiting, sample.read, len(sample.read) + len(sample.rejected)
    rejected = [*opened.rejected, *sample.rejected]
    counts = {
        "patients": len({study.patient for study in waiting}),
        "studies": len(waiting),
        "of them read": of_them,
        "images in these": sum(len(study.labels) for study in read),
    }
    evidence = [(study.evidence, study.percentiles) for study in read]
    line = describe_reading(
        counts, list_accounts(opened.items, rejected), rejected, evidence, unit=opened.unit, of=opened.of
    )
    unread = len(waiting) - of_them
    return f"{line} Of {unread:,} studies only the headers were read; their files count as used." if unread else line


def remember_inside(hospital: Hospital, line: str) -> None:
    """Write the summary line into the hospital's own folder."""
    DiskFolder(hospital.root).write(INSIDE, f"{line}\n".encode())


def _list_commonest(what: str, counts: Counter[str], most: int | None = NAMED) -> str:
    """The commonest names with their counts. most: how many are named; None = all."""
    if not counts:
        return ""
    shown = ", ".join(f"{name} ({number})" for name, number in counts.most_common(most))
    more = f" and {len(counts) - most} more" if most is not None and len(counts) > most else ""
    return f"{what}: {shown}{more}"
