"""Detect a file's format from its first bytes, so that files that a source does not read are reported, not ignored."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import pydicom
from pydicom.dataset import FileDataset
from pydicom.errors import InvalidDicomError
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pydicom.valuerep import VR

from pipelines.data.study import Item

Kind: TypeAlias = Literal["dicom", "nifti", "picture", "packed_dicom", "packed", "empty", "other"]
HEAD = 544  # bytes: slightly more than the longest NIfTI header
MARK_AT, MARK = 128, b"DICM"
NIFTI = {348: (344, (b"n+1", b"ni1")), 540: (4, (b"n+2", b"ni2"))}
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"BM")
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
GZIP = b"\x1f\x8b"
PACKED = (GZIP, b"PK\x03\x04", b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd")
FIRST_GROUPS = (0x0002, 0x0008)
LARGEST_FIRST = 1024  # bytes that the first element of a headless file may have
VRS = frozenset(vr.value.encode() for vr in VR if len(vr.value) == 2)
READS = {"dicom": "DICOM", "nifti": "NIfTI", "picture": "picture"}
UNPACK = "Unpack it, if it holds images."


def starts_dataset(head: bytes) -> bool:
    """Whether bytes look like a DICOM dataset without preamble and the prefix DICM.

    Such a dataset begins with an element of group 0002 or 0008 that has a known value representation or a short length.
    """
    if len(head) < 8:
        return False
    for order in ("little", "big"):
        group, element = int.from_bytes(head[:2], order), int.from_bytes(head[2:4], order)
        if group in FIRST_GROUPS and element <= 0x0100 and head[4:6] in VRS:
            return True
    group, element, length = (int.from_bytes(head[at : at + n], "little") for at, n in ((0, 2), (2, 2), (4, 4)))
    return group in FIRST_GROUPS and element <= 0x0100 and 0 < length <= LARGEST_FIRST and length % 2 == 0


def is_dicom(head: bytes) -> bool:
    """Whether these are the first bytes of a DICOM file, with or without the prefix DICM."""
    return head[MARK_AT : MARK_AT + 4] == MARK or starts_dataset(head)


def read_dataset(path: Path, **how: object) -> FileDataset:
    """As `pydicom.dcmread`; also reads a dataset without preamble, prefix and meta information, as some archives write.

    A missing transfer syntax is set to the uncompressed one with which the elements were parsed.

    Raises:
        InvalidDicomError: it is not a DICOM file.
        Exception: whatever the parser raises for damaged files.
    """
    with path.open("rb") as file:
        return parse_dataset(file, **how)


def parse_dataset(file: BinaryIO, **how: object) -> FileDataset:
    """As `read_dataset`, for an open file at its beginning; afterwards the file stands after the last element read."""
    head = file.read(HEAD)
    file.seek(0)
    marked = head[MARK_AT : MARK_AT + 4] == MARK
    if not marked and not starts_dataset(head):
        raise InvalidDicomError("neither the mark DICM nor an element of DICOM stands where a file begins")
    dataset = pydicom.dcmread(file, force=not marked, **how)
    if not marked and "SOPClassUID" not in dataset:
        raise InvalidDicomError("neither the mark DICM nor a SOPClassUID")
    if not dataset.file_meta.get("TransferSyntaxUID"):
        implicit, little = dataset.original_encoding
        plain = ExplicitVRLittleEndian if little else ExplicitVRBigEndian
        dataset.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian if implicit else plain
    return dataset


def detect_kind(path: Path) -> Kind:
    """The kind of a file; `other` also if it cannot be read. packed_dicom: a DICOM file in gzip."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
        inside = _unpack_head(path) if head.startswith(GZIP) else b""
    except (OSError, EOFError, zlib.error):
        return "packed" if path.suffix.lower() == ".gz" else "other"
    if inside:
        return "packed_dicom" if is_dicom(inside) else "nifti" if _is_nifti(inside) else "packed"
    if not head:
        return "empty"
    if is_dicom(head):
        return "dicom"
    if _is_nifti(head):
        return "nifti"
    if head.startswith(PICTURES) or path.suffix.lower() in PICTURE_SUFFIXES or head[8:12] == b"WEBP":
        return "picture"
    return "packed" if head.startswith(PACKED) or head[257:262] == b"ustar" else "other"


def left_out(name: str, path: Path, reads: Literal["dicom", "nifti", "picture"]) -> Item:
    """The item of a file that a source of DICOM, NIfTI or pictures does not read: the reason, and what to do."""
    kind = detect_kind(path)
    if kind == "empty":
        return Item(name, "not_imaging", reason="empty", detail="It has no bytes. Copy it again, or remove it.")
    if kind in ("packed", "packed_dicom"):
        return Item(name, "not_selected", reason="packed", detail=f"A packed file is not looked into. {UNPACK}")
    if kind == "other" or kind == reads:
        detail = "It does not begin as DICOM, NIfTI or a picture does."
        return Item(name, "not_imaging", reason="no_image", detail=detail)
    detail = f"It is {READS[kind]}, and this source reads {READS[reads]}. Give it a source of kind {kind} of its own."
    return Item(name, "not_selected", reason="other_format", detail=detail)


def _unpack_head(path: Path) -> bytes:
    """The first `HEAD` bytes of a gzip file's content."""
    with gzip.open(path) as file:
        return file.read(HEAD)


def _is_nifti(head: bytes) -> bool:
    """Whether these are the first bytes of a NIfTI-1 or NIfTI-2 header, of either byte order."""
    return any(
        size in (int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")) and head[at : at + 3] in marks
        for size, (at, marks) in NIFTI.items()
    )
