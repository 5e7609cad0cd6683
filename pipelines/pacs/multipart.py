"""Split a multipart body (RFC 2046, 5.1) while it arrives; no more than a chunk and a part's header is held.

`dicomweb-client` holds each part as a whole, takes a body that was cut off for a finished one, and encodes files anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from email.message import Message
from enum import Enum, auto
from typing import TypeAlias

LARGEST_HEADER = 2**14  # bytes of a part's header, of which we need nothing


class Mark(Enum):
    """Where a part begins, and where it ends whole."""

    BEGIN = auto()
    END = auto()


Piece: TypeAlias = Mark | bytes


class Truncated(Exception):
    """The body ended, and its last boundary had not come."""


class Malformed(Exception):
    """It is no multipart body."""


def media_type(content_type: str) -> tuple[str, str]:
    """Media type in lower case, and boundary, from a Content-Type; the boundary is empty if there is none."""
    message = Message()
    message["Content-Type"] = " ".join(content_type.split())
    boundary = message.get_param("boundary")
    return message.get_content_type().lower(), boundary if isinstance(boundary, str) else ""


def split_parts(chunks: Iterable[bytes], boundary: str) -> Iterator[Piece]:
    """BEGIN, bytes, ..., bytes, END for each part; what stands before the first and after the last is left out.

    Raises:
        Truncated, Malformed.
    """
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    buffer, more = bytearray(b"\r\n"), iter(chunks)  # as if a line had ended: a boundary may open the body

    def fill() -> None:
        chunk = next(more, None)
        if chunk is None:
            raise Truncated("the body ended before its last boundary")
        buffer.extend(chunk)

    inside = False
    while True:
        at = buffer.find(delimiter)
        if at < 0:
            ready = len(buffer) - len(delimiter) + 1
            if ready > 0:
                if inside:
                    yield bytes(buffer[:ready])
                del buffer[:ready]
            fill()
            continue
        if inside:
            if at:
                yield bytes(buffer[:at])
            yield Mark.END
        del buffer[: at + len(delimiter)]
        while len(buffer) < 2:
            fill()
        if buffer.startswith(b"--"):
            return
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > LARGEST_HEADER:
                raise Malformed(f"a part's header is longer than {LARGEST_HEADER} bytes")
            fill()
        del buffer[: end + 4]
        inside = True
        yield Mark.BEGIN
