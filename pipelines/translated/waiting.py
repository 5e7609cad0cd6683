"""What waits in a hospital's folder to be translated: studies, found as the translator's training images were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pipelines.cohort.admission import tried
from pipelines.cohort.dicom import DicomSource, index_dicom
from pipelines.cohort.examples import Files
from pipelines.cohort.index import Candidate
from pipelines.cohort.labels import GlandMask, Masks, open_masks
from pipelines.cohort.nifti import NiftiSource, index_nifti
from pipelines.cohort.study import Rejected
from pipelines.translated.dicom_header import Maker
from pipelines.translated.dicom_writer import series_place
from pipelines.translated.nifti_writer import nifti_place
from pipelines.translated.translator_file import TranslatorFile


@dataclass(frozen=True)
class Waiting:
    """One study. place: where it will lie below OUT, a folder (DICOM) or a file (NIfTI)."""

    candidate: Candidate
    place: str
    slices: int


@dataclass(frozen=True)
class Desk:
    """What translating a study needs beside the study. maker: None = NIfTI files keep their names."""

    source: DicomSource | NiftiSource
    file: TranslatorFile
    gland: Masks | None
    visits: Counter[str]
    maker: Maker | None
    out: Path


class Opened(NamedTuple):
    """The folder. ignored: files of another format; unselected: series that were not asked for."""

    waiting: tuple[Waiting, ...]
    rejected: tuple[Rejected, ...]
    ignored: int
    unselected: int
    desk: Desk


def source_of(known: Files, folder: str, kind: str | None, select: Sequence[str]) -> DicomSource | NiftiSource:
    """How to find a folder's studies, as the translator's training images were found.

    Raises:
        ValueError: what is said does not suffice, or does not fit.
    """
    wrong = [text for text in select if "=" not in text]
    if wrong:
        raise ValueError(f"--select: {wrong[0]!r} is not KEYWORD=TEXT, as in --select ImageType=ADC")
    chosen = dict(text.split("=", 1) for text in select)
    if (kind or known.kind) == "nifti":
        return replace(known if isinstance(known, NiftiSource) else NiftiSource(folder="."), folder=folder)
    if not chosen and not isinstance(known, DicomSource):
        raise ValueError(
            "this translator did not learn from DICOM, so it does not say which series are its kind; give --select, as "
            "in --select ImageType=ADC"
        )
    base = known if isinstance(known, DicomSource) else DicomSource(folder=".")
    if base.derive == "adc" and not chosen:
        raise ValueError(
            "this translator learnt from ADC that was fitted to diffusion-weighted images; a fit makes no series that "
            "could be written back. Give the scanner's own ADC series, as in --select ImageType=ADC"
        )
    return replace(base, folder=folder, select=chosen or base.select, derive="none")


def open_waiting(
    file: TranslatorFile, source: DicomSource | NiftiSource, *, gland: str | None, maker: Maker | None, out: Path
) -> Opened:
    """Find the studies, reading headers only.

    Raises:
        ValueError: a folder is missing, or nothing fits; all problems at once.
    """
    problems: list[str] = []
    index = tried(problems, lambda: index_dicom(source) if isinstance(source, DicomSource) else index_nifti(source))
    masks = None if gland is None else tried(problems, lambda: open_masks(GlandMask(folder=gland), "--gland"))
    if index is None or problems:
        raise ValueError("; ".join(problems))
    sessions = {(found.patient, found.session) for found in index.candidates}
    desk = Desk(source, file, masks, Counter(patient for patient, _ in sessions), maker, out)
    waiting = tuple(Waiting(one, _place(one, desk), one.shape[-1]) for one in index.candidates)
    return Opened(waiting, index.rejected, index.ignored, index.unselected, desk)


def _place(candidate: Candidate, desk: Desk) -> str:
    if isinstance(desk.source, DicomSource):
        return series_place(candidate, maker_of(desk))
    return nifti_place(candidate, None if desk.maker is None else desk.maker.key, desk.file.digest)


def maker_of(desk: Desk) -> Maker:
    """Who makes DICOM files.

    Raises:
        ValueError: there is no key.
    """
    if desk.maker is None:
        raise ValueError("DICOM files are de-identified, which needs a key; give --key FILE")
    return desk.maker
