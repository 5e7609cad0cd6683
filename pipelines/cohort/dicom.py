"""Classic single-frame DICOM series become studies; every other kind of DICOM is refused with its reason.

Headers are read once, without pixels, and grouped by SeriesInstanceUID; positions decide the order of slices, never
file names or instance numbers. Then each series' files are read once more, whole, one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pydicom
from pydicom.datadict import tag_for_keyword
from pydicom.errors import InvalidDicomError
from pydicom.uid import MediaStorageDirectoryStorage

from pipelines.cohort.adc import Unit
from pipelines.cohort.geometry import spacing_of, stack
from pipelines.cohort.index import Candidate, Index, folder_problems, load_all, readable, walk, without_ambiguous
from pipelines.cohort.pixels import real_values
from pipelines.cohort.pseudonym import ALLOWED_HEADERS, allowed_facts, normalized
from pipelines.cohort.series import (
    ENHANCED,
    IDENTITY,
    PLACE,
    SHAPE,
    Header,
    check_series,
    check_thinning,
    selected,
    text_of,
)
from pipelines.cohort.study import Array, Rejected, Study, Volume
from pipelines.cohort.unusable import Unusable

SUFFIXES = (".dcm", ".dicom", ".ima")


@dataclass(frozen=True, kw_only=True)
class DicomSource:
    """A folder of DICOM files, in any arrangement.

    select: DICOM keyword -> text that the header's value must contain, in upper or lower case, for a file to be used;
    {"ImageType": "ADC"} picks the ADC maps. unit: of the values after rescaling; auto = what the header says, or else
    the one plausible unit.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["dicom"] = "dicom"
    folder: str
    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"

    def __post_init__(self) -> None:
        problems = [
            f"select.{keyword}: no such DICOM keyword; use one of PS3.6, as in ImageType"
            for keyword in self.select
            if tag_for_keyword(keyword) is None
        ]
        problems += [
            f"select.{keyword}: empty text selects nothing; remove it, or give the text to look for"
            for keyword, text in self.select.items()
            if not text.strip()
        ]
        if problems:
            raise ValueError("; ".join(problems))


def dicom_problems(source: DicomSource) -> list[str]:
    """What is wrong with the settings' folder."""
    return folder_problems("source.folder", source.folder)


def read_dicom(source: DicomSource) -> tuple[list[Study], list[Rejected]]:
    """Read every selected series below the folder.

    Returns:
        Studies, with values in the unit that `Study.unit` names; and what was not usable, with the reason.

    Raises:
        ValueError: the folder does not exist.
    """
    return load_all(index_dicom(source))


def index_dicom(source: DicomSource) -> Index:
    """Find the selected series below the folder and place them, reading headers only.

    Raises:
        ValueError: the folder does not exist.
    """
    if problems := dicom_problems(source):
        raise ValueError("; ".join(problems))
    root = Path(source.folder).resolve()
    paths = walk(root)
    keywords = [*IDENTITY, *PLACE, *SHAPE, ENHANCED, *ALLOWED_HEADERS, *source.select]
    read = [_header(path, keywords) for path in paths]
    damaged = {path: found for path, found in zip(paths, read, strict=True) if isinstance(found, Unusable)}
    headers = [found for found in read if isinstance(found, Header)]
    asked = {_series(header) for header in headers if selected(header, source.select)}
    chosen = [header for header in headers if _series(header) in asked and _wanted(header, source.select)]
    if not chosen and not damaged:
        raise ValueError(_nothing(source, len(headers)))
    series: dict[str, list[Header]] = {}
    for header in chosen:
        series.setdefault(_series(header), []).append(header)
    results = [_candidate(root, group, _damage(group, headers, damaged)) for group in series.values()]
    candidates, ambiguous = without_ambiguous([result for result in results if isinstance(result, Candidate)])
    rejected = [result for result in results if isinstance(result, Rejected)] + ambiguous
    rejected += [Rejected(_below(root, path), error.reason, error.detail) for path, error in damaged.items()]
    unselected = {_series(header) for header in headers} - set(series)
    return Index(candidates, tuple(rejected), len(paths), read.count(None), len(unselected))


def _header(path: Path, keywords: Sequence[str]) -> Header | Unusable | None:
    """A file's header; None if it is not a DICOM image and does not claim to be one."""
    try:
        with readable(path.name):
            dataset = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(keywords))
            syntax = dataset.file_meta.get("TransferSyntaxUID", "")
            if dataset.file_meta.get("MediaStorageSOPClassUID") == MediaStorageDirectoryStorage:
                return None
            found = {keyword: dataset.get(keyword) for keyword in keywords}
            values = {key: value for key, value in found.items() if not _empty(value)}
            if "SeriesInstanceUID" not in values:
                raise Unusable(
                    "missing_tag", "there is no SeriesInstanceUID; the file may be cut short. Export it again."
                )
            return Header(path, str(syntax), values)
    except Unusable as error:
        foreign = isinstance(error.__cause__, InvalidDicomError) and path.suffix.lower() not in SUFFIXES
        return None if foreign else error


def _empty(value: object) -> bool:
    return value is None or str(value).strip() == ""


def _series(header: Header) -> str:
    return str(header.values["SeriesInstanceUID"])


def _wanted(header: Header, select: Mapping[str, str]) -> bool:
    """A header that ends before Rows is one cut short, so what it does not say does not count against it."""
    return selected(header, select) or "Rows" not in header.values


def _nothing(source: DicomSource, count: int) -> str:
    if not count:
        return f"source.folder: no DICOM file below {source.folder!r}; give the folder that holds the images"
    return f"source.select: none of {count} DICOM images matches {dict(source.select)}; change or remove it"


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _damage(group: Sequence[Header], headers: Sequence[Header], damaged: Mapping[Path, Unusable]) -> str | None:
    """A file without a readable header belongs to the series of its folder, if only one series lies there."""
    homes = {header.path.parent for header in group}
    near = [path.name for path in damaged if path.parent in homes]
    uid = group[0].values.get("SeriesInstanceUID")
    alone = all(header.values.get("SeriesInstanceUID") == uid for header in headers if header.path.parent in homes)
    return near[0] if near and alone else None


def _candidate(root: Path, group: Sequence[Header], damage: str | None) -> Candidate | Rejected:
    first = group[0]
    uids = [str(first.values[key]) for key in ("StudyInstanceUID", "SeriesInstanceUID") if key in first.values]
    home = _below(root, first.path.parent)
    study = "/".join([*([] if home == "." else [home]), *uids]) or first.path.name
    try:
        if damage is not None:
            raise Unusable("unreadable", f"{damage} beside it cannot be read, and is likely one of its slices.")
        with readable(study):
            check_series(group)
            return _placed(study, group)
    except Unusable as error:
        return Rejected(study, error.reason, error.detail)


def _placed(study: str, group: Sequence[Header]) -> Candidate:
    values = group[0].values
    positions = np.array([header.values["ImagePositionPatient"] for header in group], float)
    orientation = np.array(values["ImageOrientationPatient"], float)
    rows_mm, columns_mm = (float(number) for number in values["PixelSpacing"])
    order, affine = stack(orientation, positions, (rows_mm, columns_mm))
    check_thinning(values, float(spacing_of(affine)[2]))
    ordered = [group[position] for position in order]
    shape = (int(values["Columns"]), int(values["Rows"]), len(group))
    patient = normalized(str(values["PatientID"]))
    whole = partial(_load, study, patient, ordered, affine, shape)
    return Candidate(patient, study, str(values["StudyInstanceUID"]), affine, shape, whole)


def _load(study: str, patient: str, ordered: Sequence[Header], affine: Any, shape: tuple[int, int, int]) -> Study:
    values: Array = np.empty(shape, np.float32)
    units: set[str | None] = set()
    for position, header in enumerate(ordered):
        with readable(header.path.name):
            plane, unit = real_values(pydicom.dcmread(header.path))
        if plane.shape != (shape[1], shape[0]):
            raise Unusable("mixed_size", f"{header.path.name} holds pixels of shape {plane.shape}, unlike its header.")
        values[:, :, position] = plane.T
        units.add(unit)
    if len(units) > 1:
        raise Unusable("mixed_unit", f"slices say different units: {sorted(map(str, units))}. Export the series again.")
    return Study(patient, study, Volume(values, affine), units.pop(), allowed_facts(_plain(ordered[0])))


def _plain(header: Header) -> Mapping[str, object]:
    return {key: text_of(value) for key, value in header.values.items() if key in ALLOWED_HEADERS}
