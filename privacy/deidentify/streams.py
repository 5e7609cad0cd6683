"""Removes from compressed pixels what is no image: comments, application segments, and bytes after or between the
frames.

JPEG (ITU-T T.81), JPEG-LS (T.87) and JPEG 2000 (T.800) streams are parsed marker by marker, and only those markers that
decoding needs are kept. Streams that cannot be parsed so (RLE, video, a JP2 file) must be decoded instead.
"""

from __future__ import annotations

import re

from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.tag import Tag
from pydicom.uid import UID

JPEG = range(0xC0, 0xD0)  # frames, tables of codes
JPEG_TABLES = {0xDB, 0xDD, 0xF7, 0xF8}  # quantization, restarts, JPEG-LS
JPEG2000_MAIN = {0x50, 0x51, 0x52, 0x53, 0x55, 0x57, 0x5C, 0x5D, 0x5E, 0x5F, 0x60, 0x63}
JPEG2000_TILE = {0x52, 0x53, 0x58, 0x5C, 0x5D, 0x5E, 0x5F, 0x61}
COMMENTS = {0x64}
NEXT = re.compile(rb"\xff+[\xc0-\xcf\xd8-\xfe]")  # no stuffed byte, no restart
END, SCAN, COMMENT = 0xD9, 0xDA, 0xFE
PART, DATA = 0x90, 0x93  # SOT and SOD of a JPEG 2000 tile-part


class Unknown(Exception):
    """A stream that cannot be parsed."""


def cleaned_streams(dataset: Dataset, syntax: UID) -> DataElement | None:
    """Pixel Data with nothing but the frames, encapsulated anew; None if a frame cannot be parsed."""
    try:
        count = int(dataset.get("NumberOfFrames") or 1)
        frames = list(generate_frames(dataset.PixelData, number_of_frames=count))
        if len(frames) != count:
            return None
        made = DataElement(Tag(0x7FE00010), "OB", encapsulate([strip_stream(frame, syntax) for frame in frames]))
    except Exception:  # damaged streams raise all kinds of exceptions; decoding will report them
        return None
    made.is_undefined_length = True
    return made


def strip_stream(stream: bytes, syntax: UID) -> bytes:
    """One frame's stream without what is no image.

    Raises:
        Unknown: it cannot be parsed.
    """
    if stream[:2] == b"\xff\x4f":
        return _strip_jpeg2000(stream)
    if stream[:2] == b"\xff\xd8" and "JPEG" in syntax.name:
        return _strip_jpeg(stream)
    raise Unknown


def _strip_jpeg(stream: bytes) -> bytes:
    """A JPEG or JPEG-LS stream with only the segments that decoding needs. Raises: Unknown."""
    segments, at = [stream[:2]], 2
    while True:
        marker, at = _read_marker(stream, at)
        if marker == END:
            return b"".join([*segments, b"\xff\xd9"])
        end = at + _read_length(stream, at)
        segment = stream[at:end]
        if marker in JPEG or marker in JPEG_TABLES or marker == SCAN or _is_needed(marker, segment):
            segments.append(bytes((0xFF, marker)) + segment)
        elif marker != COMMENT and not 0xE0 <= marker <= 0xEF:
            raise Unknown
        at = end
        if marker == SCAN:
            match = NEXT.search(stream, at)
            if match is None:
                raise Unknown
            segments.append(stream[at : match.start()])
            at = match.start()


def _is_needed(marker: int, segment: bytes) -> bool:
    """Whether an application segment says how colours are to be read, and nothing else."""
    if marker == 0xE8 and segment[2:6] == b"mrfx":
        raise Unknown
    return (marker == 0xE0 and len(segment) == 16 and segment[2:7] == b"JFIF\0" and segment[-2:] == b"\0\0") or (
        marker == 0xEE and len(segment) == 14 and segment[2:7] == b"Adobe"
    )


def _strip_jpeg2000(stream: bytes) -> bytes:
    """A JPEG 2000 stream with only the segments that decoding needs. Raises: Unknown."""
    segments, at = [stream[:2]], 2
    while True:
        start = at
        marker, at = _read_marker(stream, at)
        if marker == END:
            return b"".join([*segments, b"\xff\xd9"])
        if marker == PART:
            end = start + int.from_bytes(stream[at + 4 : at + 8], "big")
            if end <= start or end > len(stream):
                raise Unknown  # "to the end", which is not known here
            _check_tile_header(stream, at + _read_length(stream, at), end)
            segments.append(stream[start:end])
        else:
            end = at + _read_length(stream, at)
            if marker in JPEG2000_MAIN:
                segments.append(stream[start:end])
            elif marker not in COMMENTS:
                raise Unknown
        at = end


def _check_tile_header(stream: bytes, at: int, end: int) -> None:
    """Raise Unknown if the header of a tile-part contains anything but coding parameters."""
    while at < end:
        marker, at = _read_marker(stream, at)
        if marker == DATA:
            return
        if marker not in JPEG2000_TILE:
            raise Unknown
        at += _read_length(stream, at)
    raise Unknown


def _read_marker(stream: bytes, at: int) -> tuple[int, int]:
    """A marker's code and the position after it. Raises: Unknown: there is none at this position."""
    while stream[at : at + 2] == b"\xff\xff":
        at += 1
    if at + 2 > len(stream) or stream[at] != 0xFF:
        raise Unknown
    return stream[at + 1], at + 2


def _read_length(stream: bytes, at: int) -> int:
    """A segment's length, its own two bytes included. Raises: Unknown: the stream ends before."""
    length = int.from_bytes(stream[at : at + 2], "big")
    if length < 2 or at + length > len(stream):
        raise Unknown
    return length
