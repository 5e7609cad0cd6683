"""Find the images below a folder by their headers: DICOM series and NIfTI files. No pixel of DICOM is read."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import nibabel
import numpy as np

from pipelines.data.dicom.choosing import add_kinds, object_name
from pipelines.data.dicom.frames import read_frames, series_of
from pipelines.data.dicom.series import tiling_of
from pipelines.data.headers import Frame, text_of
from pipelines.data.index import convert_read_errors
from pipelines.data.nifti.bids import ENDINGS, SUBJECT, decide_from_file, file_stem, read_sidecar
from pipelines.data.pseudonym import allowed_facts, describe_scanner, normalize_identifier
from pipelines.data.quantity import HEADERS
from pipelines.data.sources import KIND
from pipelines.data.study import Unusable
from pipelines.discovery.safe import split_words

What: TypeAlias = Literal["adc", "dwi", "other", "mask"]
KEYWORDS = (
    "PatientID",
    "PatientName",
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "SOPInstanceUID",
    "Modality",
    "Manufacturer",
    "MagneticFieldStrength",
    "SeriesDescription",
    "ImageType",
    "ImageOrientationPatient",
    "Rows",
    "SOPClassUID",
)
CLAIMS = (".dcm", ".dicom", ".ima")
PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
KNOWN = (*PICTURES, *ENDINGS, ".csv", ".tsv", ".json", ".txt", ".yaml", ".yml", ".md", ".xml", ".html", ".pdf", ".zip")
LAST_WORD = re.compile(r"^(.+)([_.-])([A-Za-z][A-Za-z0-9]*)$")
MOST_VALUES = 10  # an image with more different values is no mask


@dataclass(frozen=True)
class Series:
    """Images of one kind in one DICOM series. names: the patient's name and identifier, never shown. tiling: the name
    of many slices tiled into one image, which no reader takes apart; "" if they are not.
    """

    patient: str
    names: frozenset[str]
    study: str
    what: What
    description: str
    image_type: str
    modality: str
    scanner: str
    b_values: frozenset[float]
    orientations: int
    images: int
    doubled: int
    tiling: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Nifti:
    """One NIfTI file. word: the last word of its name, if files of one folder share such words (`adc`). ending: of
    its name, with that word. bids: whether its name contains the patient as BIDS defines it.
    """

    path: Path
    patient: str
    what: What
    word: str
    ending: str
    bids: bool


def dicom_series(paths: Iterable[Path]) -> tuple[list[Series], int]:
    """Series by identity and kind of image; and the number of unreadable files with a DICOM file name.

    Objects that hold no slices are left out, as the reader sets them aside.
    """
    frames: list[Frame] = []
    unreadable = 0
    for path in paths:
        if path.name.lower().endswith(KNOWN):
            continue
        try:
            with convert_read_errors(path.name):
                read = read_frames(path, (*KEYWORDS, *HEADERS), diffusion=True, seen={})
        except Unusable:
            unreadable += path.name.lower().endswith(CLAIMS)
            continue
        frames += [frame for frame in read if not object_name(frame.values)]
    groups: dict[tuple[str, str, What], list[Frame]] = defaultdict(list)
    for frame in add_kinds(frames):
        patient, kind = text_of(frame.values.get("PatientID")), cast(What, frame.values.get(KIND, "other"))
        groups[series_of(frame), patient, kind].append(frame)
    return [_build_series(group, what) for (_, _, what), group in groups.items()], unreadable


def nifti_files(paths: Iterable[Path]) -> tuple[list[Nifti], int]:
    """NIfTI files with their probable kind; and the number of unreadable ones."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        if path.name.lower().endswith(ENDINGS):
            folders[path.parent].append(path)
    images: list[Nifti] = []
    unreadable = 0
    for folder, files in sorted(folders.items()):
        for word, group in _by_word(files).items():
            what, broken = _guess_kind(folder, word, group)
            unreadable += broken
            cut = len(word) + 1 if word else 0
            for path in group:
                rest = file_stem(path.name)[: -cut or None]
                subject = SUBJECT.match(rest)
                patient = subject[1] if subject else rest
                images.append(Nifti(path, patient, what, word, path.name[len(rest) :], subject is not None))
    return images, unreadable


def _build_series(group: Sequence[Frame], what: What) -> Series:
    """A series, described by its first frame."""
    first = group[0].values
    b_values = frozenset(frame.b_value for frame in group if frame.b_value is not None)
    text = {key: text_of(first.get(key)).strip() for key in KEYWORDS}
    uids = Counter((text_of(frame.values.get("SOPInstanceUID")), frame.index) for frame in group)
    turns = {tuple(np.round(_parse_numbers(frame.values.get("ImageOrientationPatient")), 2)) for frame in group}
    return Series(
        patient=normalize_identifier(text["PatientID"]),
        names=frozenset({text["PatientID"], text["PatientName"]} - {""}),
        study=text["StudyInstanceUID"],
        what=what,
        description=text["SeriesDescription"],
        image_type=text["ImageType"],
        modality=text["Modality"],
        scanner=describe_scanner(allowed_facts(text)),
        b_values=b_values,
        orientations=len(turns),
        images=len(group),
        doubled=sum(count - 1 for count in uids.values()),
        tiling=next((tiling for frame in group if (tiling := tiling_of(frame.values))), ""),
        paths=tuple(dict.fromkeys(frame.path for frame in group)),
    )


def _parse_numbers(value: Any) -> list[float]:
    """The numbers of a header's value; none if it is not made of numbers."""
    try:
        return [float(number) for number in value]
    except (TypeError, ValueError):
        return []


def _by_word(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Files by the last word of their names, if several share it, `P1_adc`, `P2_adc`, or it is the suffix of BIDS."""
    matches = {path: LAST_WORD.match(file_stem(path.name)) for path in files}
    counts = Counter(match[3] for match in matches.values() if match)
    groups: dict[str, list[Path]] = defaultdict(list)
    for path, match in matches.items():
        suffix = match is not None and (counts[match[3]] > 1 or SUBJECT.match(path.name) is not None)
        groups[match[3] if match and suffix else ""].append(path)
    return groups


def _guess_kind(folder: Path, word: str, group: Sequence[Path]) -> tuple[What, int]:
    """The kind of a group of files, by the values of its first readable one; and the number of unreadable headers."""
    broken, looked, adc = 0, None, False
    for path in group:
        try:
            with convert_read_errors(path.name):
                image = nibabel.load(path)
                if looked is None and len(image.shape) in (3, 4):
                    looked = np.unique(np.asarray(image.dataobj))
                    description = bytes(image.header["descrip"]).rstrip(b"\0").decode("latin-1")
                    adc = decide_from_file(path, description, read_sidecar(path)).adc is True
        except Unusable:
            broken += 1
    if looked is not None and len(looked) <= MOST_VALUES and np.array_equal(looked, np.round(looked)):
        return "mask", broken
    names = {*split_words(word), *split_words(folder.name)}
    return ("adc" if adc else "dwi" if names & {"dwi", "diff", "diffusion"} else "other"), broken
