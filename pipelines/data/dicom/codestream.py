"""Read a compressed image's declared size, and check it before a decoder reserves memory for it.

Any reader of a deflated file unpacks it as a whole, so its unpacked size is counted first.

JPEG 2000 declares its size in the SIZ marker (ISO/IEC 15444-1 A.5.1), the other JPEGs in a start-of-frame marker
(ISO/IEC 10918-1 B.2.2; ISO/IEC 14495-1 C.2.2 for JPEG-LS).
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO

from pydicom.dataset import Dataset
from pydicom.encaps import generate_frames

from pipelines.data.study import Unusable

J2K_START = b"\xff\x4f\xff\x51"
JPEG_START = b"\xff\xd8"
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}
ALONE = frozenset(range(0xD0, 0xD8)) | {0x01}  # markers without a length
DEFLATED = b"1.2.840.10008.1.2.1.99"
META = 144  # bytes: preamble, prefix, and the length of the group with the transfer syntax
UNPACKED = 2**29  # bytes of a deflated file
CHUNK = 2**20


def check_deflated(path: Path) -> None:
    """Refuse a deflated file that unpacks to far more than an image, without keeping the unpacked bytes.

    Raises:
        Unusable: `too_large`.
    """
    with path.open("rb") as file:
        check_unpacked(file)


def check_unpacked(file: BinaryIO) -> None:
    """As `check_deflated`, for an open file at its beginning; afterwards the file stands there again."""
    head = file.read(2048)
    if DEFLATED in head:
        file.seek(META + int.from_bytes(head[META - 4 : META], "little"))
        inflate, size, rest = zlib.decompressobj(-zlib.MAX_WBITS), 0, b""
        while not inflate.eof and (rest := inflate.unconsumed_tail or file.read(CHUNK)):
            size += len(inflate.decompress(rest, CHUNK))
            if size > UNPACKED:
                raise Unusable("too_large", f"it unpacks to more than {UNPACKED} bytes. Export it without deflation.")
    file.seek(0)


def check_codestream(dataset: Dataset) -> None:
    """Refuse pixels whose declared size differs from the header's, before decoding them.

    Raises:
        Unusable: `unreadable` if a compressed frame has another size, or none.
    """
    uid = dataset.file_meta.TransferSyntaxUID
    if not uid.is_encapsulated or "RLE" in uid.name:
        return
    count = int(dataset.get("NumberOfFrames") or 1)
    header_size = (int(dataset.Rows), int(dataset.Columns))
    for frame in generate_frames(dataset.PixelData, number_of_frames=count):
        declared_size = image_size(frame)
        if declared_size != header_size:
            raise Unusable(
                "unreadable",
                f"compressed pixels are of size {declared_size}, but the header says {header_size}. Export it again.",
            )


def image_size(data: bytes) -> tuple[int, int] | None:
    """The (rows, columns) of a JPEG, JPEG-LS or JPEG 2000 image; None if it declares none."""
    start = data[:4096].find(J2K_START)  # 0, or behind the boxes of a JP2 file
    if start >= 0 and len(data) >= start + 24:
        columns, rows, column0, row0 = struct.unpack_from(">4I", data, start + 8)
        return rows - row0, columns - column0
    return _jpeg_size(data) if data[:2] == JPEG_START else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """The (rows, columns) of the first start-of-frame marker; None if there is none."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in FRAME_MARKERS:
            rows, columns = struct.unpack_from(">2H", data, at + 5)
            return rows, columns
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in ALONE:
            at += 2
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None
