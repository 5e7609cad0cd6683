"""What waits in a hospital's folder to be translated: studies, found as the translator's training images were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.data.admission import tried
from pipelines.data.images import Slices
from pipelines.data.index import Candidate
from pipelines.data.labels import Masks, open_masks
from pipelines.data.sources import DicomSource, GlandMask, NiftiSource
from pipelines.data.studies import index_volumes
from pipelines.data.study import Item, Rejected
from pipelines.data.translator_file import TranslatorFile
from pipelines.data.writing.dicom_header import Maker
from pipelines.data.writing.dicom_series import series_place
from pipelines.data.writing.nifti_image import nifti_place


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
    """The folder. items: each of its files. unselected: series that were not asked for."""

    waiting: tuple[Waiting, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int
    desk: Desk


def open_waiting(
    file: TranslatorFile, source: DicomSource | NiftiSource, *, gland: str | None, maker: Maker | None, out: Path
) -> Opened:
    """Find the studies, reading headers only.

    Raises:
        ValueError: a folder is missing, or nothing fits; all problems at once.
    """
    problems: list[str] = []
    index = tried(problems, lambda: index_volumes(source, adc=asks_adc(file)))
    masks = None if gland is None else tried(problems, lambda: open_masks(GlandMask(folder=gland), "--gland"))
    if index is None or problems:
        raise ValueError("; ".join(problems))
    sessions = {(found.patient, found.session) for found in index.candidates}
    desk = Desk(source, file, masks, Counter(patient for patient, _ in sessions), maker, out)
    waiting = tuple(Waiting(one, _place(one, desk), one.shape[-1]) for one in index.candidates)
    return Opened(waiting, index.rejected, index.items, index.unselected, desk)


def asks_adc(file: TranslatorFile) -> bool:
    """Whether the translator learnt from ADC."""
    return isinstance(file.images, Slices) and file.images.values == "adc"


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
