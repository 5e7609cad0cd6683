"""Read uncompressed pixels from where the first pass over a header found them, so that no header is parsed twice.

Whole files are parsed again where that could give another result: compressed or deflated pixels, a header whose
meaning of values lies in sequences of undefined length, bytes behind the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pydicom.valuerep import EXPLICIT_VR_LENGTH_32

from pipelines.data.dicom.stored_values import VENDOR_TAGS
from pipelines.data.headers import Meaning, Pixels
from privacy.deidentify.stored_values import KEYWORDS

NEEDED = (
    *("SOPClassUID", "Manufacturer", "ManufacturerModelName"),
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames", "Rows", "Columns"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *KEYWORDS,
)
"""All elements that decoding and the conversion of values need."""

START = bytes.fromhex("E07F1000")  # of the element PixelData
SYNTAXES = (ImplicitVRLittleEndian, ExplicitVRLittleEndian)
UNDEFINED = 0xFFFFFFFF


def find_pixels(
    file: BinaryIO,
    dataset: FileDataset,
    raw: Mapping[int, Any],
    size: int,
    seen: dict[tuple[object, ...], Any],
) -> Pixels | None:
    """Where the pixels lie, in a file that was read up to them; None if the whole file must be parsed for them.

    file: at the first byte behind what was read. raw: the dataset's elements as they were read, by the numbers of their
    tags, with those of `NEEDED` that the file has. size: of the file, bytes. seen: earlier files' elements; equal ones
    are kept once.
    """
    syntax, (implicit, little) = dataset.file_meta.get("TransferSyntaxUID"), dataset.original_encoding
    if syntax not in SYNTAXES or not little or implicit != (syntax == ImplicitVRLittleEndian):
        return None
    head = file.read(12)
    if len(head) < 12 or head[:4] != START:
        return None
    vr = None if implicit else head[4:6].decode("latin-1")
    long = vr in EXPLICIT_VR_LENGTH_32
    if not implicit and not long:
        return None
    length = int.from_bytes(head[8:12] if long else head[4:8], "little")
    at = file.tell() - (0 if long else 4)
    if length in (0, UNDEFINED) or at + length != size:
        return None
    elements = [element for tag in _needed_tags() if (element := raw.get(tag)) is not None]
    if not all(isinstance(element, RawDataElement) and isinstance(element.value, bytes | None) for element in elements):
        return None
    charset = dataset.original_character_set
    key = (
        find_pixels,
        vr,
        syntax,
        str(charset),
        *((int(element.tag), element.VR, element.value) for element in elements),
    )
    meaning = seen.get(key) or seen.setdefault(key, Meaning(vr, str(syntax), charset, tuple(elements)))
    return Pixels(at, length, meaning)


def read_pixels(path: Path, pixels: Pixels) -> bytes:
    """The bytes of a file's pixels.

    Raises:
        OSError: as for any file.
        ValueError: the file ends before its pixels do.
    """
    with path.open("rb") as file:
        file.seek(pixels.at)
        data = file.read(pixels.length)
    if len(data) != pixels.length:
        raise ValueError(f"{pixels.length} bytes of pixels were there, and {len(data)} are left")
    return data


def build_pixel_header(meaning: Meaning) -> Dataset:
    """The elements of a header that say what its pixels mean."""
    header = Dataset()
    header.set_original_encoding(meaning.vr is None, True, meaning.charset)
    for element in meaning.elements:
        header[element.tag] = element
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = meaning.syntax
    return header


@cache
def _needed_tags() -> tuple[int, ...]:
    """The tags of `NEEDED`, and those of the vendor's scale."""
    return (*dict.fromkeys(int(Tag(keyword)) for keyword in NEEDED), *sorted(VENDOR_TAGS))
