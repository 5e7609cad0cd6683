"""Can this one image be used? Checks on its header, before any pixel is read."""

from __future__ import annotations

from collections.abc import Sequence

from pydicom.pixels import get_decoder
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLSNearLossless,
    SegmentationStorage,
)

from pipelines.data.dicom.frames import SHARED, Frame, text_of
from pipelines.data.unusable import Unusable
from privacy.deidentify.layouts import Layout, kind, rectangles_of

LOSSY = frozenset({JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLSNearLossless})
EITHER = frozenset({JPEG2000, HTJ2K})  # lossy, unless the header says that nothing was lost


def check_image(frame: Frame, *, allow_lossy: bool, blank: Sequence[Layout]) -> None:
    """Refuse what is not a grey image with known planes, all of whose values are there and as they were measured.

    allow_lossy, blank: as in `DicomSource`.

    Raises:
        Unusable: `not_an_image`, `multi_frame`, `mosaic`, `colour`, `transfer_syntax`, `lossy`, `burned_in` or
            `unreadable` (the file is shorter than its pixels).
    """
    _check_kind(frame)
    _check_syntax(frame)
    if not allow_lossy:
        _check_lossless(frame)
    _check_annotation(frame, blank)
    _check_length(frame)


def _check_kind(frame: Frame) -> None:
    """Refuse what is not a grey image with one plane."""
    values, name = frame.values, frame.path.name
    if values.get("SOPClassUID") == SegmentationStorage or values.get("BitsAllocated") == 1:
        raise Unusable("not_an_image", f"{name} is a segmentation: labels, not values. Narrow `select` down to images.")
    if SHARED in values or int(values.get("NumberOfFrames", 1)) != frame.frames:
        raise Unusable(
            "multi_frame",
            f"{name} is a multi-frame image that does not describe each of its {values.get('NumberOfFrames', 1)} "
            "frames (PerFrameFunctionalGroupsSequence), so nothing says where they lie. Export it as Enhanced MR, or "
            "as one file per slice.",
        )
    if "MOSAIC" in text_of(values.get("ImageType")).upper():
        raise Unusable(
            "mosaic",
            f"{name} is a Siemens mosaic, many slices tiled into one image. Turn off mosaic in the protocol, or "
            "convert it with dcm2niix and give the NIfTI files.",
        )
    if "Rows" not in values or "Columns" not in values:
        raise Unusable("not_an_image", f"{name} has no Rows and Columns. Narrow `select` down to images.")
    grey = str(values.get("PhotometricInterpretation", "MONOCHROME2")).startswith("MONOCHROME")
    if int(values.get("SamplesPerPixel", 1)) != 1 or not grey:
        raise Unusable(
            "colour", f"{name} is {values.get('PhotometricInterpretation')}; MONOCHROME1 or MONOCHROME2 is needed."
        )


def _check_syntax(frame: Frame) -> None:
    uid = UID(frame.transfer_syntax)
    known = uid.is_transfer_syntax and (not uid.is_encapsulated or _decodable(uid))
    if not known:
        raise Unusable(
            "transfer_syntax",
            f"{frame.path.name} has the transfer syntax {uid.name or 'none'}, for which no decoder is installed. "
            "Export it uncompressed.",
        )


def _decodable(uid: UID) -> bool:
    try:
        return bool(get_decoder(uid).is_available)
    except NotImplementedError:
        return False


def _check_lossless(frame: Frame) -> None:
    uid, said = UID(frame.transfer_syntax), str(frame.values.get("LossyImageCompression", ""))
    if said == "01" or uid in LOSSY or (uid in EITHER and said != "00"):
        raise Unusable(
            "lossy",
            f"{frame.path.name} was compressed with loss ({uid.name}; LossyImageCompression is {said or 'not said'}), "
            "which moves measured values. Export it without loss, or set lossy: allow.",
        )


def _check_annotation(frame: Frame, blank: Sequence[Layout]) -> None:
    """Text that is part of the picture may name the patient: where it stands must be known for this layout."""
    values = frame.values
    known = [values.get(key) for key in ("Manufacturer", "ManufacturerModelName", "Rows", "Columns")]
    if str(values.get("BurnedInAnnotation", "")).upper() == "YES" and not rectangles_of(blank, kind(*known)):
        maker, model, rows, columns = (text_of(value) for value in known)
        raise Unusable(
            "burned_in",
            f"{frame.path.name} says that text is burned into its pixels, and it may name the patient. Give `blank` "
            f"rectangles for its layout (manufacturer: {maker!r}, model: {model!r}, rows: {rows}, columns: {columns}), "
            "or leave the series out.",
        )


def _check_length(frame: Frame) -> None:
    """Refuse a file that ends before its pixels do, unless compression hides how many bytes they take."""
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
