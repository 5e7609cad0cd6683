"""Picture files (JPEG, PNG, ...) that a table names: one line a picture, with its patient and its label."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image, ImageOps

from pipelines.cohort.admission import Admitted, Examples, Opened, Waiting, no_masks
from pipelines.cohort.csvfile import Line, chosen, read_lines, refused
from pipelines.cohort.index import folder_problems, walk
from pipelines.cohort.labels import WHOLE
from pipelines.cohort.pseudonym import normalized
from pipelines.cohort.study import Array, Rejected
from pipelines.cohort.unusable import Unusable

LARGEST = (
    150_000_000  # pixels; more is a slide scan, or a file made to fill the memory (PIL itself stops at 179 million)
)
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
UNIT = "intensity, -1 to 1"


@dataclass(frozen=True, kw_only=True)
class PictureSource:
    """A folder of pictures and the table (CSV with a header line) that describes them.

    image: the column with a picture's file, as `pattern` places it below the folder. patient, label: columns; labels
    are 0 or 1. where: column -> values; only lines with one of them are used, {site: [vienna, graz]} for instance.

    A picture that several lines name is not used, be they of one patient or of two: used for both, it would train under
    one's label and be tested under the other's. So here a patient's line can take another's picture from him.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["picture"] = "picture"
    folder: str
    table: str
    image: str = "image"
    pattern: str = "{image}"
    patient: str = "patient"
    label: str = "label"
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "{image}" not in self.pattern:
            raise ValueError(
                f"pattern must say where the image column stands, as in {{image}}.jpg; found {self.pattern!r}"
            )


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What a network sees of a picture: (channels, size, size), from -1 (black) to 1.

    channels: 3 = red, green, blue; 1 = grey. fit: `squash` both sides, or `crop` the middle square first.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["pictures"] = "pictures"
    size: int = 64
    channels: Literal[1, 3] = 3
    fit: Literal["squash", "crop"] = "squash"

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 1024:
            raise ValueError(f"size must be in [8, 1024] pixels, found {self.size}")

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.channels, self.size, self.size)


def picture_names(source: PictureSource) -> list[str]:
    """What the table's chosen lines call their pictures.

    Raises:
        OSError, ValueError, csv.Error: the table cannot be read, or lacks the column.
    """
    header, lines = read_lines(Path(source.table))
    if source.image not in header:
        raise ValueError(f"no column {source.image}; see the names in its first line")
    return [line[source.image] for _, line in chosen(lines, source.where)]


def open_pictures(source: PictureSource, images: Pictures) -> Opened:
    """Read the table; each of its lines becomes a study that waits.

    Raises:
        ValueError: settings are wrong (a folder or column is missing, no line fits, ...); all problems at once.
    """
    problems = folder_problems("source.folder", source.folder)
    everything: list[Line] = []
    lines: list[tuple[int, dict[str, str]]] = []
    try:
        header, everything = read_lines(Path(source.table))
        lines = chosen(everything, source.where)
        if missing := [name for name in (source.image, source.patient, source.label) if name not in header]:
            problems.append(f"source.table: no column {', '.join(missing)}; see the names in its first line")
    except (OSError, ValueError, csv.Error) as error:
        problems.append(f"source.table: {source.table!r} cannot be read ({error})")
    if problems:
        raise ValueError("; ".join(problems))
    root = Path(source.folder).resolve()
    named = Counter(line[source.image] for _, line in lines)
    waiting, rejected = [], refused(everything)
    seen = len(lines) + len(rejected)
    for number, line in lines:
        study = f"line {number}: {line[source.image]}"
        try:
            patient, label = _checked(source, line, named)
        except Unusable as error:
            rejected.append(Rejected(study, error.reason, error.detail))
            continue
        path = root / source.pattern.replace("{image}", line[source.image])
        waiting.append(Waiting(patient, study, partial(_admit, study, patient, label, path, root, images)))
    return Opened(tuple(waiting), tuple(rejected), seen, 0, len(everything) - seen, UNIT)


def loose_pictures(folder: str, images: Pictures) -> Opened:
    """Every picture file below a folder, without a table: its path stands for the patient, and every label is 0.

    Raises:
        ValueError: there is no such folder, or no picture in it.
    """
    if problems := folder_problems("folder", folder):
        raise ValueError(problems[0])
    root = Path(folder).resolve()
    paths = walk(root)
    found = [path for path in paths if path.suffix.lower() in SUFFIXES]
    if not found:
        raise ValueError(f"folder: no picture ({', '.join(SUFFIXES)}) below {folder!r}; give another folder")
    names = [path.relative_to(root).as_posix() for path in found]
    waiting = [
        Waiting(name, name, partial(_admit, name, name, 0, path, root, images))
        for name, path in zip(names, found, strict=True)
    ]
    return Opened(tuple(waiting), (), len(paths), len(paths) - len(found), 0, UNIT)


def _checked(source: PictureSource, line: Mapping[str, str], named: Mapping[str, int]) -> tuple[str, int]:
    patient, label = normalized(line[source.patient]), WHOLE.get(line[source.label], line[source.label])
    if not patient:
        raise Unusable("no_patient", f"the column {source.patient} is empty. Every picture must name its patient.")
    if label not in ("0", "1"):
        reason = "bad_label" if label else "no_label"
        raise Unusable(reason, f"the column {source.label} has {label!r}; it must be 0 or 1. Correct the table.")
    if named[line[source.image]] > 1:
        raise Unusable("duplicate_picture", f"{named[line[source.image]]} lines name this picture; leave one.")
    return patient, int(label)


def _admit(study: str, patient: str, label: int, path: Path, root: Path, images: Pictures) -> Admitted:
    if not path.resolve().is_relative_to(root) or not path.is_file():
        raise Unusable(
            "no_picture", f"there is no file {path.name!r} for it below the folder. Add it, or drop its line."
        )
    picture = read_picture(path, images)
    examples = Examples(picture[None], no_masks(1), no_masks(1), np.zeros(1, np.float32))
    return Admitted(patient, study, examples, [label], "unknown")


def read_picture(path: Path, images: Pictures) -> Array:
    """One picture as (channels, size, size) float32 from -1 to 1, upright as its EXIF says; no metadata is kept.

    Raises:
        Unusable: `too_large`, or `several_frames` (an animation or a stack of pages).
        Exception: whatever the decoder raises; the caller turns it into `Unusable`.
    """
    with _opened(path) as file:
        if file.width * file.height > LARGEST:
            raise Unusable("too_large", f"{file.width} x {file.height} pixels; at most {LARGEST:,} are read.")
        if getattr(file, "n_frames", 1) > 1:
            raise Unusable("several_frames", f"it holds {getattr(file, 'n_frames', 1)} pictures; one is needed.")
        upright = ImageOps.exif_transpose(file)
        if images.fit == "crop":
            side = min(upright.size)
            upright = ImageOps.fit(upright, (side, side), method=Image.Resampling.BOX)
        planes = _planes(upright, images.channels)
        small = [plane.resize((images.size, images.size), Image.Resampling.BOX, reducing_gap=None) for plane in planes]
    return np.stack([np.asarray(plane, np.float32) for plane in small]) * np.float32(2) - np.float32(1)


def _opened(path: Path) -> Image.Image:
    try:
        return Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise Unusable("too_large", f"more pixels than PIL opens; at most {LARGEST:,} are read.") from error


def _planes(picture: Image.Image, channels: int) -> Sequence[Image.Image]:
    """Float planes from 0 to 1, so that nothing is rounded before it is made smaller."""
    if picture.mode in ("I", "F"):
        raise Unusable("value_type", "32-bit grey values do not say what is white. Save it with 8 or 16 bits.")
    if picture.mode.startswith("I;16"):  # which PIL's convert would clip to 8 bits
        return [Image.fromarray(np.asarray(picture, np.float32) / np.float32(65535))] * channels
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear)
    flat = picture.convert("RGB" if channels == 3 else "L")
    values = np.asarray(flat, np.float32).reshape(flat.height, flat.width, channels) / np.float32(255)
    return [Image.fromarray(values[:, :, channel]) for channel in range(channels)]
