"""DICOM series, classic or enhanced, become studies; every other kind of DICOM is refused with its reason.

Headers are read once, without pixels, and grouped by SeriesInstanceUID; positions decide the order of slices, never
file names or instance numbers. Then each series' files are read once more, whole, one at a time. docs/formats.md lists
what is read, and every reason.
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

from pipelines.cohort.adc import Unit
from pipelines.cohort.diffusion import fit_adc
from pipelines.cohort.frames import Frame, read_frames, text_of
from pipelines.cohort.index import Candidate, Index, folder_problems, load_all, readable, walk, without_ambiguous
from pipelines.cohort.pixels import Rectangle, real_values
from pipelines.cohort.pseudonym import ALLOWED_HEADERS, allowed_facts, normalized
from pipelines.cohort.quantity import HEADERS, Verdict, check_adc, of_headers, of_series, shown
from pipelines.cohort.series import IDENTITY, PLACE, SHAPE, check_series, selected
from pipelines.cohort.stacks import Stack, diffusion_stack, plain_stack, separated
from pipelines.cohort.study import Array, Rejected, Study, Volume
from pipelines.cohort.unusable import Unusable

FITTED_UNIT: Unit = "1e-6 mm2/s"
SUFFIXES = (".dcm", ".dicom", ".ima")


@dataclass(frozen=True, kw_only=True)
class DicomSource:
    """A folder of DICOM files, in any arrangement.

    select: DICOM keyword -> text that the header's value must contain, in upper or lower case, for an image to be used;
    a number must be equal. {"ImageType": "ADC"} picks the ADC maps. unit: of the values after rescaling; auto = what
    the header says, or else the one plausible unit. `select` narrows a choice, and is no evidence that an image is an
    ADC map: its header must say so, or a person by naming the unit.

    derive: none takes values as they are; adc takes diffusion-weighted images of two or more b-values, and fits ADC.
    lossy: whether images that were compressed with loss are used. It moves values by an amount that no header tells,
    so they are refused unless a hospital has nothing else. blank: rectangles (column0, row0, column1, row1) of stored
    pixels, the ends not included, where text is burned in; they are blanked in every image of this source.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["dicom"] = "dicom"
    folder: str
    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"
    derive: Literal["none", "adc"] = "none"
    lossy: Literal["refuse", "allow"] = "refuse"
    blank: tuple[Rectangle, ...] = ()

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
        problems += [
            f"blank: {list(rectangle)} is no rectangle; give column0, row0, column1, row1 with 0 <= column0 < column1 "
            "and 0 <= row0 < row1"
            for rectangle in self.blank
            if not (0 <= rectangle[0] < rectangle[2] and 0 <= rectangle[1] < rectangle[3])
        ]
        if self.derive == "adc" and self.unit not in ("auto", FITTED_UNIT):
            problems.append(f"unit: a fitted ADC is in {FITTED_UNIT}, found {self.unit!r}; remove unit")
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


def index_dicom(source: DicomSource, *, adc: bool = False) -> Index:
    """Find the selected series below the folder and place them, reading headers only.

    adc: whether values are to be ADC; series that are not known to be are then rejected, `not_adc`.

    Raises:
        ValueError: the folder does not exist.
    """
    if problems := dicom_problems(source):
        raise ValueError("; ".join(problems))
    root = Path(source.folder).resolve()
    paths = walk(root)
    seen: dict[tuple[object, ...], Any] = {}
    read = [_frames(path, source, seen) for path in paths]
    damaged = {path: found for path, found in zip(paths, read, strict=True) if isinstance(found, Unusable)}
    frames = [frame for found in read if not isinstance(found, Unusable) for frame in found]
    asked = {_series(frame) for frame in frames if selected(frame, source.select)}
    chosen = [frame for frame in frames if _series(frame) in asked and _wanted(frame, source.select)]
    if not chosen and not damaged:
        raise ValueError(_nothing(source, len(frames)))
    series: dict[str, list[Frame]] = {}
    for frame in chosen:
        series.setdefault(_series(frame), []).append(frame)
    homes = _homes(frames)
    results = [
        found
        for group in series.values()
        for found in _candidates(root, group, _damage(group, homes, damaged), source, adc)
    ]
    candidates, ambiguous = without_ambiguous([result for result in results if isinstance(result, Candidate)])
    rejected = [result for result in results if isinstance(result, Rejected)] + ambiguous
    rejected += [Rejected(_below(root, path), error.reason, error.detail) for path, error in damaged.items()]
    unselected = {_series(frame) for frame in frames} - set(series)
    ignored = sum(found == [] for found in read)
    return Index(candidates, tuple(rejected), len(paths), ignored, len(unselected))


def _frames(path: Path, source: DicomSource, seen: dict[tuple[object, ...], Any]) -> list[Frame] | Unusable:
    """A file's images; none if it is not a DICOM image and does not claim to be one."""
    try:
        with readable(path.name):
            keywords = (*IDENTITY, *PLACE, *SHAPE, *HEADERS, *ALLOWED_HEADERS, *source.select)
            return read_frames(path, keywords, diffusion=source.derive == "adc", seen=seen)
    except Unusable as error:
        foreign = isinstance(error.__cause__, InvalidDicomError) and path.suffix.lower() not in SUFFIXES
        return [] if foreign else error


def _series(frame: Frame) -> str:
    return str(frame.values["SeriesInstanceUID"])


def _wanted(frame: Frame, select: Mapping[str, str]) -> bool:
    """A header that ends before Rows is one cut short, so what it does not say does not count against it."""
    return selected(frame, select) or "Rows" not in frame.values


def _nothing(source: DicomSource, count: int) -> str:
    if not count:
        return (
            f"source.folder: no DICOM file below {source.folder!r} (links that leave it are not followed); give the "
            "folder that holds the images"
        )
    return f"source.select: none of {count} DICOM images matches select ({', '.join(source.select)}); change it"


def _below(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _homes(frames: Sequence[Frame]) -> dict[Path, set[str]]:
    """Folder -> the series that lie there."""
    homes: dict[Path, set[str]] = {}
    for frame in frames:
        homes.setdefault(frame.path.parent, set()).add(_series(frame))
    return homes


def _damage(group: Sequence[Frame], homes: Mapping[Path, set[str]], damaged: Mapping[Path, Unusable]) -> str | None:
    """A file without a readable header belongs to the series of its folder, if only one series lies there."""
    own = {frame.path.parent for frame in group}
    near = [path.name for path in damaged if path.parent in own]
    alone = all(len(homes[home]) == 1 for home in own)
    return near[0] if near and alone else None


def _candidates(
    root: Path, group: Sequence[Frame], damage: str | None, source: DicomSource, adc: bool
) -> list[Candidate | Rejected]:
    """One for each stack of a series."""
    first = group[0]
    uids = [str(first.values[key]) for key in ("StudyInstanceUID", "SeriesInstanceUID") if key in first.values]
    home = _below(root, first.path.parent)
    study = "/".join([*([] if home == "." else [home]), *uids]) or first.path.name
    if damage is not None:
        detail = f"{damage} beside it cannot be read, and is likely one of its slices."
        return [Rejected(study, "unreadable", detail)]
    stacks = separated(group)
    return [
        _candidate(f"{study}/{name}" if name else study, frames, source, alone=len(stacks) == 1, adc=adc)
        for name, frames in stacks.items()
    ]


def _candidate(
    study: str, group: Sequence[Frame], source: DicomSource, *, alone: bool, adc: bool
) -> Candidate | Rejected:
    try:
        with readable(study):
            check_series(group, allow_lossy=source.lossy == "allow", blank=source.blank)
            values = group[0].values
            verdicts = [of_headers(frame.values) for frame in group]
            asked = adc and source.derive == "none"
            if asked and not any(one.adc for one in verdicts):  # before its geometry, which says less
                check_adc(of_series(verdicts), declared=source.unit != "auto", seen=shown(values))
            placed = (diffusion_stack if source.derive == "adc" else plain_stack)(group, whole=alone)
            if asked:
                check_adc(of_series(verdicts), declared=source.unit != "auto", seen=shown(values))
            patient = normalized(str(values["PatientID"]))
            whole = partial(_load, study, patient, placed, source.blank, of_series(verdicts))
            session = str(values["StudyInstanceUID"])
            return Candidate(patient, study, session, placed.affine, placed.shape, whole, placed)
    except Unusable as error:
        return Rejected(study, error.reason, error.detail)


def _load(study: str, patient: str, placed: Stack, blank: Sequence[Rectangle], verdict: Verdict) -> Study:
    values, units = _volumes(placed, blank)
    facts = allowed_facts(_plain(placed.volumes[0][0]))
    if placed.b_values is not None:
        adc = fit_adc(values, placed.b_values)
        fitted = f"fitted here to b-values {', '.join(f'{b:g}' for b in sorted(set(placed.b_values)))} s/mm2"
        return Study(patient, study, Volume(adc, placed.affine), FITTED_UNIT, facts, fitted)
    if len(units) > 1:
        raise Unusable("mixed_unit", f"slices say different units: {sorted(map(str, units))}. Export the series again.")
    return Study(patient, study, Volume(values[0], placed.affine), units.pop(), facts, verdict.said)


def _volumes(placed: Stack, blank: Sequence[Rectangle]) -> tuple[Array, set[str | None]]:
    """The values (V, I, J, K) of a stack, each file read once; and the units that its images name."""
    columns, rows, _ = placed.shape
    values: Array = np.empty((len(placed.volumes), *placed.shape), np.float32)
    units: set[str | None] = set()
    places: dict[Path, dict[int, tuple[int, int]]] = {}
    for volume, frames in enumerate(placed.volumes):
        for position, frame in enumerate(frames):
            places.setdefault(frame.path, {})[frame.index] = (volume, position)
    for path, wanted in places.items():
        with readable(path.name):
            planes = real_values(pydicom.dcmread(path), list(wanted), blank)
            for (volume, position), (plane, unit) in zip(wanted.values(), planes, strict=True):
                if plane.shape != (rows, columns):
                    raise Unusable("mixed_size", f"{path.name} holds pixels of shape {plane.shape}, unlike its header.")
                values[volume, :, :, position] = plane.T
                units.add(unit)
    return values, units


def _plain(frame: Frame) -> Mapping[str, object]:
    return {key: text_of(frame.values[key]) for key in ALLOWED_HEADERS if key in frame.values}
