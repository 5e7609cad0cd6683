"""One study at a time: loaded, brought into one unit and onto square pixels, labelled; or rejected with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from pipelines.cohort.adc import to_adc
from pipelines.cohort.dicom import DicomSource, index_dicom
from pipelines.cohort.index import Candidate, Index, load
from pipelines.cohort.labels import (
    MaskLabels,
    Masks,
    Table,
    TableLabels,
    find_mask,
    open_masks,
    open_table,
    table_labels,
)
from pipelines.cohort.nifti import NiftiSource, index_nifti, read_volume
from pipelines.cohort.prepare import Preparation, Prepared, prepare
from pipelines.cohort.study import Rejected, Study, Volume
from pipelines.cohort.unusable import Unusable

Source: TypeAlias = DicomSource | NiftiSource
Labels: TypeAlias = MaskLabels | TableLabels
T = TypeVar("T")


class Opened(NamedTuple):
    """A hospital's files, whose settings are in order."""

    source: Source
    labels: Labels
    preparation: Preparation
    found: Index
    known: Masks | Table
    gland: Masks | None


class Admitted(NamedTuple):
    """A study that can be used: its slices, and the label of each. scanner: manufacturer and model."""

    patient: str
    study: str
    prepared: Prepared
    labels: Sequence[int]
    scanner: str


def open_files(source: Source, labels: Labels, preparation: Preparation) -> Opened:
    """Index the images and read tables and name mappings.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    problems: list[str] = []
    if preparation.slices == "gland" and preparation.gland is None:
        problems.append("slices: gland needs a gland mask; give gland: {folder: ...}, or slices: all")
    index = _tried(problems, lambda: index_dicom(source) if isinstance(source, DicomSource) else index_nifti(source))
    known = _tried(problems, lambda: _known(labels))
    mask = preparation.gland
    gland = None if mask is None else _tried(problems, lambda: open_masks(mask, "gland"))
    if index is None or known is None or problems:
        raise ValueError("; ".join(problems))
    return Opened(source, labels, preparation, index, known, gland)


def admit(candidate: Candidate, opened: Opened, *, alone: bool) -> Admitted | Rejected:
    """Do all that concerns one study, and no other.

    alone: whether its patient has no other study.
    """
    study = load(candidate)
    if isinstance(study, Rejected):
        return study
    try:
        return _admitted(study, opened, alone)
    except Unusable as error:
        return Rejected(study.study, error.reason, error.detail)


def _admitted(study: Study, opened: Opened, alone: bool) -> Admitted:
    values = np.asarray(study.image.values, np.float32)
    adc = Volume(to_adc(values, declared=opened.source.unit, header_unit=study.unit), study.image.affine)
    lesion = _mask(opened.known, study.patient, "no_label") if isinstance(opened.known, Masks) else None
    gland = None if opened.gland is None else _mask(opened.gland, study.patient, "no_gland")
    prepared = prepare(adc, lesion=lesion, gland=gland, preparation=opened.preparation)
    labels = _slice_labels(study, prepared, opened, alone)
    scanner = " ".join(str(study.facts.get(key, "")) for key in ("Manufacturer", "ManufacturerModelName")).strip()
    return Admitted(study.patient, study.study, prepared, labels, scanner or "unknown")


def _slice_labels(study: Study, prepared: Prepared, opened: Opened, alone: bool) -> list[int]:
    if isinstance(opened.labels, MaskLabels):
        pixels = prepared.lesion.sum(axis=(1, 2), dtype=np.int64)
        return [int(count >= opened.labels.minimum_pixels) for count in pixels]
    slices = [int(position) for position in prepared.position]
    if not isinstance(opened.known, Table):
        raise TypeError(f"a table of labels is needed, found {type(opened.known).__name__}")
    return table_labels(opened.known, study.patient, study.study, slices, alone=alone)


def _mask(masks: Masks, patient: str, missing: str) -> Volume:
    path = find_mask(masks, patient, missing=missing)
    try:
        return read_volume(path)
    except Unusable as error:
        raise Unusable("bad_mask", f"the mask {path.name}: {error.detail} ({error.reason})") from error


def _known(labels: Labels) -> Masks | Table:
    return open_masks(labels, "labels") if isinstance(labels, MaskLabels) else open_table(labels)


def _tried(problems: list[str], do: Callable[[], T]) -> T | None:
    try:
        return do()
    except ValueError as error:
        problems.append(str(error))
        return None
