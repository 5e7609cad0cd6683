"""The parts of DICOM headers that an index keeps: frames without their pixels, and stacks of sorted frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.study import Affine


@dataclass(frozen=True, eq=False)
class Meaning:
    """The part of a header that gives uncompressed pixels their meaning: one object for all files that agree in it.

    vr: of the pixels, as the file says it, None = implicit. syntax: the transfer syntax. elements: pydicom's raw
    elements.
    """

    vr: str | None
    syntax: str
    charset: str | list[str]
    elements: tuple[Any, ...]


@dataclass(frozen=True)
class Pixels:
    """Where a file's uncompressed pixels lie, and what they mean. at, length: bytes."""

    at: int
    length: int
    meaning: Meaning


@dataclass(frozen=True)
class Frame:
    """One image, without its pixels: a classic file, or one frame of an enhanced one.

    index, frames: the frame's number in the file, and the file's number of frames. values: keyword -> value, for the
    keywords that are present and not empty. b_value: s/mm², None = missing or not asked for. slices: the number of
    slice positions according to the vendor's header. pixels: None if the whole file must be parsed for them.
    vendor_slope: the vendor's scale slope, None = missing.
    """

    path: Path
    transfer_syntax: str
    values: Mapping[str, Any]
    index: int = 0
    frames: int = 1
    b_value: float | None = None
    slices: int | None = None
    pixels: Pixels | None = None
    vendor_slope: float | None = None


def text_of(value: object) -> str:
    """A header value as text; multiple values are joined by a backslash, as in the file."""
    from pydicom.multival import MultiValue  # slow to import

    return "\\".join(map(str, value)) if isinstance(value, MultiValue) else str(value or "")


@dataclass(frozen=True)
class Reading:
    """How stored values become real values. vendor: the vendor's scale is used, too. turned: signals are inverted."""

    vendor: bool = False
    turned: bool = False


@dataclass(frozen=True)
class Stack:
    """Volumes on one grid.

    volumes: (V, K) images, each volume in order along the normal. affine: (4, 4) RAS, of (column, row, slice).
    b_values: (V,) s/mm², None where not asked for. reading: how all their values are read.
    """

    volumes: tuple[tuple[Frame, ...], ...]
    affine: Affine
    b_values: tuple[float, ...] | None = None
    reading: Reading = Reading()

    @property
    def shape(self) -> tuple[int, int, int]:
        """(columns, rows, slices) of each volume."""
        values = self.volumes[0][0].values
        return int(values["Columns"]), int(values["Rows"]), len(self.volumes[0])
