"""Are these DICOM files one classic series? Checks on headers, before any pixel is read.

Each check raises `Unusable` with its own code, so that a hospital can see what its exports suffer from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.multival import MultiValue
from pydicom.pixels import get_decoder
from pydicom.uid import UID

from pipelines.cohort.geometry import COSINE_TOLERANCE
from pipelines.cohort.unusable import Unusable

PLACE = ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing")
IDENTITY = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID")
SHAPE = ("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "ImageType")
ENHANCED = "SharedFunctionalGroupsSequence"  # its presence marks the multi-frame classes, even with one frame
LENGTHS = {"ImageOrientationPatient": 6, "ImagePositionPatient": 3, "PixelSpacing": 2}


@dataclass(frozen=True)
class Header:
    """One file, without its pixels. values: keyword -> value, for the keywords that are present and not empty."""

    path: Path
    transfer_syntax: str
    values: Mapping[str, Any]


def selected(header: Header, select: Mapping[str, str]) -> bool:
    """Whether a file's header contains every text that is asked for."""
    return all(text.lower() in text_of(header.values.get(keyword)).lower() for keyword, text in select.items())


def text_of(value: object) -> str:
    """A header value as text; several values are joined by a backslash, as in the file."""
    return "\\".join(map(str, value)) if isinstance(value, MultiValue) else str(value or "")


def check_series(group: Sequence[Header]) -> None:
    """Refuse files that are not one classic, grey, single-frame series of one patient on one kind of plane.

    Raises:
        Unusable: `multi_frame`, `mosaic`, `not_an_image`, `colour`, `transfer_syntax`, `missing_tag`, `bad_tag`,
            `duplicate_slice` (one SOPInstanceUID twice), `mixed_patient`, `mixed_orientation`, `mixed_size` or
            `mixed_spacing`.
    """
    _check_kind(group)
    _check_tags(group)
    _check_uniform(group)


def _check_kind(group: Sequence[Header]) -> None:
    """Refuse what is not a classic, grey, single-frame image that can be decoded here."""
    for header in group:
        values, name = header.values, header.path.name
        if ENHANCED in values or int(values.get("NumberOfFrames", 1)) > 1:
            raise Unusable("multi_frame", f"{name} is a multi-frame image; only one frame per file is read so far.")
        if "MOSAIC" in text_of(values.get("ImageType")).upper():
            raise Unusable("mosaic", f"{name} is a Siemens mosaic; only one slice per file is read so far.")
        if "Rows" not in values or "Columns" not in values:
            raise Unusable("not_an_image", f"{name} has no Rows and Columns. Narrow `select` down to images.")
        grey = str(values.get("PhotometricInterpretation", "MONOCHROME2")).startswith("MONOCHROME")
        if int(values.get("SamplesPerPixel", 1)) != 1 or not grey:
            raise Unusable(
                "colour", f"{name} is {values.get('PhotometricInterpretation')}; MONOCHROME1 or MONOCHROME2 is needed."
            )
        _check_syntax(header)


def _check_syntax(header: Header) -> None:
    uid = UID(header.transfer_syntax)
    known = uid.is_transfer_syntax and (not uid.is_encapsulated or _decodable(uid))
    if not known:
        raise Unusable(
            "transfer_syntax",
            f"{header.path.name} has the transfer syntax {uid.name or 'none'}, for which no decoder is installed. "
            "Export it uncompressed.",
        )


def _decodable(uid: UID) -> bool:
    try:
        return bool(get_decoder(uid).is_available)
    except NotImplementedError:
        return False


def _check_tags(group: Sequence[Header]) -> None:
    needed = (*PLACE, *IDENTITY[:4])
    missing = {key for key in needed if any(key not in header.values for header in group)}
    if missing:
        raise Unusable("missing_tag", f"without a value: {', '.join(sorted(missing))}. Export with complete headers.")
    for header in group:
        for key, length in LENGTHS.items():
            numbers = [float(number) for number in np.atleast_1d(header.values[key])]
            if len(numbers) != length or not np.isfinite(numbers).all() or (length == 2 and min(numbers) <= 0):
                raise Unusable(
                    "bad_tag",
                    f"{header.path.name}: {key} is {numbers}; {length} finite numbers are needed, spacing > 0.",
                )


def _check_uniform(group: Sequence[Header]) -> None:
    """All files of a series must be of one patient, one orientation, one size; and each file there once."""
    doubled = [uid for uid, count in Counter(str(h.values["SOPInstanceUID"]) for h in group).items() if count > 1]
    if doubled:
        raise Unusable(
            "duplicate_slice", f"{len(doubled)} images occur twice (same SOPInstanceUID). Remove the second copy."
        )
    for reason, key, tolerance in (
        ("mixed_patient", "PatientID", 0.0),
        ("mixed_orientation", "ImageOrientationPatient", COSINE_TOLERANCE),
        ("mixed_size", "Rows", 0.0),
        ("mixed_size", "Columns", 0.0),
        ("mixed_spacing", "PixelSpacing", 1e-3),
    ):
        found = [header.values[key] for header in group]
        if not all(_equal(value, found[0], tolerance) for value in found):
            kinds = sorted({text_of(value) for value in found})[:4]
            raise Unusable(
                reason,
                f"{key} differs within the series: {'; '.join(kinds)}. One is allowed; send the series as acquired.",
            )


def _equal(one: object, other: object, tolerance: float) -> bool:
    if not tolerance:
        return one == other
    return bool(np.allclose(np.asarray(one, float), np.asarray(other, float), rtol=0, atol=tolerance))


def check_thinning(values: Mapping[str, Any], step_mm: float) -> None:
    """Every second slice missing leaves an even spacing, but not the one that the header declares.

    Some vendors write only the gap between slices as SpacingBetweenSlices: then it is below SliceThickness, and says
    nothing here.
    """
    declared = abs(float(values.get("SpacingBetweenSlices", 0)))
    thickness = float(values.get("SliceThickness", math.inf))
    if declared > 0 and declared >= 0.9 * thickness and step_mm > 1.5 * declared:
        raise Unusable(
            "gap",
            f"slices are evenly {step_mm:.3f} mm apart, but SpacingBetweenSlices says {declared:.3f} mm: others are "
            "missing in between. Send the whole series.",
        )
