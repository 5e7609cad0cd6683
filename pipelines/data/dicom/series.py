"""Check by headers that images form one series, before any pixel is read.

Each check raises `Unusable` with its own code, so that a hospital can see the problems of its exports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydicom.pixels import get_decoder
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    EnhancedMRImageStorage,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSNearLossless,
    LegacyConvertedEnhancedCTImageStorage,
    LegacyConvertedEnhancedMRImageStorage,
    MRImageStorage,
    PositronEmissionTomographyImageStorage,
    SegmentationStorage,
)

from pipelines.data.dicom.choosing import object_name
from pipelines.data.dicom.frame_grid import LENGTHS, place_problem
from pipelines.data.dicom.frames import GRID, SHARED
from pipelines.data.grids.geometry import COSINE_TOLERANCE
from pipelines.data.headers import Frame, text_of
from pipelines.data.study import Unusable
from privacy.deidentify.layouts import Layout, layout_key, rectangles_of
from privacy.deidentify.stored_values import PALETTE

LOSSY = frozenset({JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless})
ENHANCED = {
    **dict.fromkeys((MRImageStorage, EnhancedMRImageStorage, LegacyConvertedEnhancedMRImageStorage), "Enhanced MR"),
    **dict.fromkeys((CTImageStorage, EnhancedCTImageStorage, LegacyConvertedEnhancedCTImageStorage), "Enhanced CT"),
    PositronEmissionTomographyImageStorage: "Enhanced PET",
}
"""SOP class -> the name of the kind of image that describes each of its frames."""
EITHER = frozenset({JPEG2000, HTJ2K})  # lossy, unless the header states that they are lossless


PLACE = tuple(LENGTHS)
IDENTITY = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID")
SHAPE = (
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "BitsAllocated",
    "PhotometricInterpretation",
    "NumberOfFrames",
    "ImageType",
    "LossyImageCompression",
    "BurnedInAnnotation",
    "NumberOfSlices",
)
LARGEST = 2**28  # voxels of one study: 512 x 512 x 1024, 1 GiB as float32


def check_series(group: Sequence[Frame], *, allow_lossy: bool = False, blank: Sequence[Layout] = ()) -> None:
    """Refuse images that are not one grey series of one patient, with one orientation, size and spacing.

    allow_lossy, blank: as in `DicomSource`.

    Raises:
        Unusable: `not_an_image`, `multi_frame`, `mosaic`, `colour`, `transfer_syntax`, `lossy`, `burned_in`,
            `too_large`, `unreadable` (the file is shorter than its pixels), `missing_tag`, `bad_tag`,
            `duplicate_slice` (one image twice), `mixed_patient`, `mixed_orientation`, `mixed_size` or `mixed_spacing`.
    """
    for frame in group:
        check_image(frame, allow_lossy=allow_lossy, blank=blank)
    _check_size(group)
    _check_tags(group)
    _check_uniform(group)


def _check_size(group: Sequence[Frame]) -> None:
    """Refuse a series that needs more memory than any real study."""
    pixels = sum(int(frame.values["Rows"]) * int(frame.values["Columns"]) for frame in group)
    if pixels > LARGEST:
        raise Unusable(
            "too_large",
            f"{len(group)} images have {pixels} pixels together; {LARGEST} are allowed. Check the header.",
        )


def _check_tags(group: Sequence[Frame]) -> None:
    """Refuse a series without complete identifiers, or with a frame without a valid place."""
    needed = (*PLACE, *IDENTITY[:4])
    missing = {key for key in needed if any(key not in frame.values for frame in group)}
    if missing:
        raise Unusable("missing_tag", f"without a value: {', '.join(sorted(missing))}. Export with complete headers.")
    for frame in group:
        if wrong := place_problem(frame):
            raise Unusable("bad_tag", f"{frame.path.name}: {wrong}")


def _check_uniform(group: Sequence[Frame]) -> None:
    """All files of a series must have one patient, one orientation and one size; and no file may occur twice."""
    images = Counter((str(frame.values["SOPInstanceUID"]), frame.index) for frame in group)
    doubled = [image for image, count in images.items() if count > 1]
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
        values = [frame.values[key] for frame in group]
        if not all(_is_equal(value, values[0], tolerance) for value in values):
            kinds = sorted({text_of(value) for value in values})[:4]
            raise Unusable(
                reason,
                f"{key} differs within the series: {'; '.join(kinds)}. One is allowed; send the series as acquired.",
            )


def _is_equal(value: object, other: object, tolerance: float) -> bool:
    """Whether two header values are equal, numbers to within `tolerance`."""
    if value is other or not tolerance:  # an index keeps equal values once
        return value is other or value == other
    return bool(np.allclose(np.asarray(value, float), np.asarray(other, float), rtol=0, atol=tolerance))


def check_thinning(values: Mapping[str, Any], step_mm: float) -> None:
    """Refuse a series with every second slice missing: its spacing is even, but larger than the header declares.

    Some vendors write only the gap between slices as SpacingBetweenSlices: it is then below SliceThickness, and is
    ignored here.
    """
    declared = abs(float(values.get("SpacingBetweenSlices", 0)))
    thickness = float(values.get("SliceThickness", math.inf))
    if declared > 0 and declared >= 0.9 * thickness and step_mm > 1.5 * declared:
        raise Unusable(
            "gap",
            f"slices are evenly {step_mm:.3f} mm apart, but SpacingBetweenSlices says {declared:.3f} mm: others are "
            "missing in between. Send the whole series.",
        )


def check_image(frame: Frame, *, allow_lossy: bool, blank: Sequence[Layout]) -> None:
    """Refuse an image that is not grey, has no known planes, or whose values are incomplete or not as measured.

    allow_lossy, blank: as in `DicomSource`.

    Raises:
        Unusable: `not_an_image`, `multi_frame`, `mosaic`, `colour`, `transfer_syntax`, `lossy`, `burned_in`, `bad_tag`
            (HighBit leaves open which bits are the value) or `unreadable` (the file is shorter than its pixels).
    """
    _check_kind(frame)
    _check_syntax(frame)
    if not allow_lossy:
        _check_lossless(frame)
    _check_annotation(frame, blank)
    _check_bits(frame)
    _check_length(frame)


def _check_kind(frame: Frame) -> None:
    """Refuse an image that is not grey or has no single plane."""
    values, name = frame.values, frame.path.name
    if values.get("SOPClassUID") == SegmentationStorage or values.get("BitsAllocated") == 1:
        raise Unusable("not_an_image", f"{name} is a segmentation: labels, not values. Narrow `select` down to images.")
    if what := object_name(values):
        raise Unusable(
            "not_an_image", f"{name} holds no slices: it is of the kind {what}. Narrow `select` down to images."
        )
    if SHARED in values or int(values.get("NumberOfFrames", 1)) != frame.frames:
        raise Unusable(
            "multi_frame",
            f"{name} is a multi-frame image that does not describe each of its {values.get('NumberOfFrames', 1)} "
            "frames (PerFrameFunctionalGroupsSequence), so nothing says where they lie. "
            f"{_frames_advice(UID(text_of(values.get('SOPClassUID'))))}",
        )
    if tiling := tiling_of(values):
        raise Unusable(
            "mosaic",
            f"{name} is a {tiling}, many slices tiled into one image. Turn it off in the protocol's export, or convert "
            "it with dcm2niix and give the NIfTI files.",
        )
    if "Rows" not in values or "Columns" not in values:
        raise Unusable("not_an_image", f"{name} has no Rows and Columns. Narrow `select` down to images.")
    grey = str(values.get("PhotometricInterpretation", "MONOCHROME2")).startswith("MONOCHROME")
    if int(values.get("SamplesPerPixel", 1)) != 1 or not grey:
        raise Unusable(
            "colour", f"{name} is {values.get('PhotometricInterpretation')}; MONOCHROME1 or MONOCHROME2 is needed."
        )
    if evidence := _find_colour_evidence(values):
        raise Unusable(
            "colour",
            f"{name} is grey with colours among its stored values ({evidence}; DICOM PS3.3 C.7.6.19): numbers of "
            "colours "
            "are no measured values. Export the series without the supplemental palette.",
        )


def _find_colour_evidence(values: Mapping[str, Any]) -> str:
    """The header entry by which some stored values of a grey image are colours; "" if there is none."""
    shown = text_of(values.get("PixelPresentation")).strip().upper()
    if shown:
        return "" if shown == "MONOCHROME" else f"PixelPresentation {shown}"
    return next((keyword for keyword in PALETTE if keyword in values), "")


def tiling_of(values: Mapping[str, Any]) -> str:
    """The vendor's name of many slices tiled into one image; "" if it is none."""
    if GRID in values:
        return "United Imaging GRID file"
    return "Siemens mosaic" if "MOSAIC" in text_of(values.get("ImageType")).upper() else ""


def _frames_advice(sop_class: UID) -> str:
    """What to do with a multi-frame image of this class whose frames have no positions."""
    if kind := ENHANCED.get(sop_class):
        return f"Export it as {kind}, or as one file per slice."
    if "Secondary Capture" in sop_class.name:
        return "Send the series from which it was made: a secondary capture seldom has positions."
    return "Narrow `select` down to series of slices."


def _check_syntax(frame: Frame) -> None:
    """Refuse a transfer syntax that no installed decoder reads."""
    uid = UID(frame.transfer_syntax)
    known = uid.is_transfer_syntax and (not uid.is_encapsulated or _is_decodable(uid))
    if not known:
        raise Unusable(
            "transfer_syntax",
            f"{frame.path.name} has the transfer syntax {uid.name or 'none'}, for which no decoder is installed. "
            "Export it uncompressed.",
        )


def _is_decodable(uid: UID) -> bool:
    """Whether a decoder of this transfer syntax is installed."""
    try:
        return bool(get_decoder(uid).is_available)
    except NotImplementedError:
        return False


def _check_lossless(frame: Frame) -> None:
    """Refuse an image that was, or may have been, compressed with loss."""
    uid, declared = UID(frame.transfer_syntax), str(frame.values.get("LossyImageCompression", ""))
    if declared == "01" or uid in LOSSY or (uid in EITHER and declared != "00"):
        raise Unusable(
            "lossy",
            f"{frame.path.name} was compressed with loss ({uid.name}; LossyImageCompression is "
            f"{declared or 'not said'}), "
            "which moves measured values. Export it without loss, or set lossy: allow.",
        )


def _check_annotation(frame: Frame, blank: Sequence[Layout]) -> None:
    """Burned-in text may name the patient: its place must be known for this layout."""
    values = frame.values
    known = [values.get(key) for key in ("Manufacturer", "ManufacturerModelName", "Rows", "Columns")]
    if str(values.get("BurnedInAnnotation", "")).upper() == "YES" and not rectangles_of(blank, layout_key(*known)):
        maker, model, rows, columns = (text_of(value) for value in known)
        raise Unusable(
            "burned_in",
            f"{frame.path.name} says that text is burned into its pixels, and it may name the patient. Give `blank` "
            f"rectangles for its layout (manufacturer: {maker!r}, model: {model!r}, rows: {rows}, columns: {columns}), "
            "or leave the series out.",
        )


def _check_bits(frame: Frame) -> None:
    """Refuse uncompressed values that are not in the lowest bits: programs read them in several ways."""
    stored, high = (frame.values.get(keyword) for keyword in ("BitsStored", "HighBit"))
    if UID(frame.transfer_syntax).is_encapsulated or stored is None or high is None:
        return
    if int(high) != int(stored) - 1:
        raise Unusable(
            "bad_tag",
            f"{frame.path.name} stores {stored} bits and says that the highest is number {high}; {int(stored) - 1} is "
            "needed, which puts the value into the lowest bits. Export it again.",
        )


def _check_length(frame: Frame) -> None:
    """Refuse a file that is shorter than its pixels, unless their compressed size is unknown."""
    uid, values, size = UID(frame.transfer_syntax), frame.values, frame.path.stat().st_size
    if uid.is_encapsulated or uid == DeflatedExplicitVRLittleEndian:
        return
    needed = frame.frames * int(values["Rows"]) * int(values["Columns"]) * int(values.get("BitsAllocated", 8)) // 8
    if needed > size:
        raise Unusable(
            "unreadable",
            f"{frame.path.name} has {size} bytes, but its header promises {needed} bytes of pixels: it is cut short. "
            "Copy or export it again.",
        )
