"""Write a classifier's scores of new DICOM studies as structured reports, into the folder `reports`.

A report is named like the mask of its study would be. For patient data in reports see
`pipelines.data.writing.dicom_report`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydicom.dataset import Dataset

from pipelines.data.folder import read_steadily
from pipelines.data.headers import Frame
from pipelines.data.index import Candidate
from pipelines.data.study import Unusable
from pipelines.data.writing.dicom_report import Finding, report_bytes
from pipelines.data.writing.dicom_source import Pseudonymous, ResultMaker
from privacy.deidentify.keyed import keyed_digest
from privacy.durable import write_whole

REPORTS = "reports"
ODD = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class ReportWriter:
    """Settings for writing reports. out: the folder of results. pseudonymous: None = patients have the images' names.
    replaced: study -> the earlier report that a new one replaces, or its header.
    """

    maker: ResultMaker
    out: Path
    pseudonymous: Pseudonymous | None = None
    replaced: Mapping[str, Dataset] = field(default_factory=dict)


def write_report(finding: Finding, candidate: Candidate | None, highest: Frame | None, reports: ReportWriter) -> str:
    """Write the report of one study, and return its place below the folder of results.

    Raises:
        Unusable: `no_dicom`, or a reason of `report_bytes`.
        OSError: the disk.
    """
    if candidate is None or candidate.stack is None:
        raise Unusable("no_dicom", "a report is of DICOM images, and these are none. Leave reports out.")
    stack, study = candidate.stack, candidate.study
    data = read_steadily(
        candidate.files,
        lambda: report_bytes(
            finding,
            stack,
            highest,
            reports.maker,
            pseudonymous=reports.pseudonymous,
            predecessor=reports.replaced.get(study),
        ),
    )
    name = f"{series_name(study, reports.pseudonymous)}.dcm"
    write_whole(reports.out / REPORTS / name, data)
    return f"{REPORTS}/{name}"


def series_name(study: str, pseudonymous: Pseudonymous | None = None) -> str:
    """A file name of a DICOM study's results: the series' UID, and 8 hexadecimal digits, since one series may hold
    several stacks, and UIDs may be invalid. pseudonymous: the name is a digest with the hospital's key, because a
    series' UID, or a hash of it that anybody can compute, identifies the patient.
    """
    if pseudonymous is not None:
        return keyed_digest(pseudonymous.key, "results", study)[:32]
    digest = hashlib.sha256(study.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    parts = [part for part in study.split("/") if part]
    return f"{ODD.sub('_', parts[-1])[:64].lstrip('.')}-{digest}"
