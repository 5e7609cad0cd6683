"""Text in the pixels: which images may show some, and blanking it. Pixels are not searched; flags and image types
decide.

An image is refused if its header says that text is burned in, or if its type usually has some (ultrasound,
secondary capture, video, screenshots) and the header does not say NO. Blanking decodes every frame and writes it
uncompressed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import pack_bits, pixel_array

from privacy.deidentify.identifiers import list_tags
from privacy.deidentify.keyed import keyed_digest
from privacy.deidentify.layouts import Layout, Rectangle, kind_of, rectangles_of
from privacy.deidentify.profile import NotDeidentifiable

RISKY_CLASSES = (
    "1.2.840.10008.5.1.4.1.1.7",  # secondary capture, also multi-frame
    "1.2.840.10008.5.1.4.1.1.3",  # ultrasound multi-frame
    "1.2.840.10008.5.1.4.1.1.6",  # ultrasound
    "1.2.840.10008.5.1.4.1.1.77.1.1.1",  # video
    "1.2.840.10008.5.1.4.1.1.77.1.2.1",
    "1.2.840.10008.5.1.4.1.1.77.1.4.1",
)
RISKY_MODALITIES = {"US", "IVUS", "OT", "SC", "XC", "ES", "DOC", "SR", "HC", "DG"}
RISKY_CONVERSIONS = {"DV", "DI", "DF", "WSD", "SD", "SI", "DRW"}
SIZES = ("Rows", "Columns", "SamplesPerPixel")
FLOATS = {0x7FE00008: 32, 0x7FE00009: 64}  # bits of FloatPixelData and DoubleFloatPixelData
RISKY_TYPES = ("SCREEN", "REPORT", "DOSE", "SUMMARY", "CAPTURE")


def may_show_text(dataset: Dataset) -> bool:
    """Whether the pixels may contain text: flagged, or of a risky type and not flagged NO."""
    flag = _list_words(dataset, "BurnedInAnnotation")
    if flag:
        return flag != ["NO"]
    kind = str(dataset.get("SOPClassUID", ""))
    return (
        any(kind == risky or kind.startswith(risky + ".") for risky in RISKY_CLASSES)
        or bool(RISKY_MODALITIES & set(_list_words(dataset, "Modality")))
        or bool(RISKY_CONVERSIONS & set(_list_words(dataset, "ConversionType")))
        or any(term in word for word in _list_words(dataset, "ImageType") for term in RISKY_TYPES)
    )


@dataclass(frozen=True)
class Blanked:
    """Pixels (frames, rows, columns, samples) before and after their rectangles were made constant.

    digest: of both, the rectangles and the image's identity, under the hospital's key; a confirmation applies to
    exactly these pixels. photometric: of the pixels, which are RGB if the file has YBR.
    """

    before: NDArray[np.generic]
    after: NDArray[np.generic]
    rectangles: tuple[Rectangle, ...]
    photometric: str
    digest: str


def to_blank(dataset: Dataset, layouts: Sequence[Layout]) -> tuple[Rectangle, ...]:
    """The rectangles to blank; empty = the pixels may leave as they are.

    Raises:
        NotDeidentifiable: `burned_in` (may show text, and no layout gives rectangles), `recognizable` (a face), or
            `overlay_in_pixels`.
    """
    if "YES" in _list_words(dataset, "RecognizableVisualFeatures"):
        raise NotDeidentifiable("recognizable", "RecognizableVisualFeatures is YES. Deface it, and set the flag to NO.")
    if any(
        tag >> 16 & 0xFF00 == 0x6000 and tag & 0xFFFF == 0x0102 and _has_value(dataset, tag)
        for tag in list_tags(dataset)
    ):
        raise NotDeidentifiable("overlay_in_pixels", "An overlay lies in the pixels' unused bits. Export it without.")
    rectangles = rectangles_of(layouts, kind_of(dataset)) if may_show_text(dataset) else ()
    if may_show_text(dataset) and not rectangles:
        raise NotDeidentifiable(
            "burned_in",
            "BurnedInAnnotation is not NO, and the image is flagged or of a kind that usually shows text. Give "
            "rectangles for its layout: --blank FILE.",
        )
    return rectangles


def blank_pixels(dataset: Dataset, rectangles: tuple[Rectangle, ...], key: bytes) -> Blanked:
    """The decoded pixels before and after, with the rectangles 0 in every frame and sample.

    Raises:
        NotDeidentifiable: `undecodable`.
    """
    before = decode_pixels(dataset)
    after = before.copy()
    for box in rectangles:
        after[:, box.top : box.bottom, box.left : box.right] = 0
    shown = shown_as(dataset)
    descriptions = [
        f"{part.dtype.str} {part.shape} {hashlib.sha256(part.tobytes()).hexdigest()}" for part in (before, after)
    ]
    identity = json.dumps([str(dataset.SOPInstanceUID), shown, *descriptions, *map(str, rectangles)])
    return Blanked(before, after, rectangles, shown, keyed_digest(key, "blanked image", identity))


def decode_pixels(dataset: Dataset) -> NDArray[np.generic]:
    """All frames: (frames, rows, columns, samples), YBR as RGB.

    Raises:
        NotDeidentifiable: `undecodable`.
    """
    try:
        syntax = dataset.file_meta.TransferSyntaxUID
        if not syntax.is_little_endian:
            raise ValueError("big endian")
        values = np.array(pixel_array(dataset))
        if str(dataset.PhotometricInterpretation).startswith("YBR_PARTIAL"):
            raise ValueError("no colours of a still image")
        samples = int(dataset.SamplesPerPixel)
        return values.reshape(-1, int(dataset.Rows), int(dataset.Columns), samples)
    except MemoryError:
        raise
    except Exception as error:
        raise NotDeidentifiable(
            "undecodable", f"The pixels cannot be decoded to be blanked ({type(error).__name__}). Export it again."
        ) from error


def shown_as(dataset: Dataset) -> str:
    """The photometric interpretation of pixels after decoding."""
    photometric = str(dataset.PhotometricInterpretation)
    return "RGB" if photometric.startswith("YBR") else photometric


def build_stored(dataset: Dataset, values: NDArray[np.generic]) -> Dataset:
    """Decoded frames as elements of Explicit VR Little Endian."""
    elements = Dataset()
    bits = int(dataset.BitsAllocated)
    if bits == 1:
        elements.add_new("PixelData", "OB", pack_bits(values.ravel().astype(np.uint8), pad=True))
    elif values.dtype.kind == "f":
        double = values.dtype.itemsize == 8
        elements.add_new(
            "DoubleFloatPixelData" if double else "FloatPixelData", "OD" if double else "OF", values.tobytes()
        )
    else:
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        elements.add_new("PixelData", "OB" if bits <= 8 else "OW", data + b"\0" * (len(data) % 2))
    if values.shape[3] > 1:
        elements.PlanarConfiguration = 0
        elements.PhotometricInterpretation = shown_as(dataset)
    return elements


def only_pixels(dataset: Dataset, tag: int, data: bytes, order: str) -> bytes:
    """Uncompressed pixels without bytes after the last pixel and without bits that are no part of a value.

    order: "<" or ">", of the file's bytes.

    Raises:
        NotDeidentifiable: `undecodable`, if there are fewer bytes than the header says.
    """
    bits = FLOATS.get(tag) or int(dataset.BitsAllocated)
    sizes = [int(dataset.get("NumberOfFrames") or 1), *(int(dataset[k].value) for k in SIZES), bits]
    total = math.prod(sizes)
    if str(dataset.PhotometricInterpretation) == "YBR_FULL_422":
        total = total * 2 // 3
    length = (total + 7) // 8
    if len(data) < length:
        raise NotDeidentifiable(
            "undecodable", "There are fewer pixels than rows, columns and frames say. Export the image again."
        )
    pixel_bytes = (
        data[:length] if tag in FLOATS or bits not in (8, 16, 32) else _stored_bits(dataset, data[:length], order)
    )
    return pixel_bytes + b"\0" * (length % 2)


def _stored_bits(dataset: Dataset, data: bytes, order: str) -> bytes:
    """Pixels whose other bits are zero, or the sign; the values are the same.

    If HighBit leaves out bits below, readers disagree about the value: such bits must be clear.
    """
    allocated = int(dataset.BitsAllocated)
    bits_stored = int(dataset.get("BitsStored") or allocated)
    low = int(dataset.get("HighBit", bits_stored - 1)) - bits_stored + 1
    if low < 0 or bits_stored < 1 or low + bits_stored > allocated:
        raise NotDeidentifiable("undecodable", "BitsStored and HighBit do not fit BitsAllocated. Correct them.")
    if bits_stored == allocated:
        return data
    signed = bool(dataset.get("PixelRepresentation"))
    values = np.frombuffer(data, f"{order}{'i' if signed else 'u'}{allocated // 8}")
    above = allocated - low - bits_stored
    masked_values = ((values << above) >> (above + low) << low).astype(
        values.dtype
    )  # signed: the sign moves in from above
    if low and (masked_values != values).any():
        raise NotDeidentifiable("undecodable", "Bits are set that HighBit leaves out. Correct it, or clear them.")
    return masked_values.tobytes()


def _list_words(dataset: Dataset, keyword: str) -> list[str]:
    """The values of an attribute in upper case; ["?"] if it cannot be read."""
    try:
        value = dataset.get(keyword) or ""
    except Exception:  # an unreadable flag is not NO
        return ["?"]
    parts = [value] if isinstance(value, str) else list(value)
    return [str(part).strip().upper() for part in parts if str(part).strip()]


def _has_value(dataset: Dataset, tag: int) -> bool:
    """Whether an element has a value; an unreadable one counts as a value."""
    try:
        return bool(dataset[tag].value)
    except Exception:  # an overlay that cannot be read may be anywhere
        return True
