"""Stored whole numbers for changed values: as the file codes them, if it can hold them, or else in 16 bits anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.data.study import Array

Stored = NDArray[np.integer[Any]]
Whole = NDArray[np.int64]
BITS = 16
MOST = 2**BITS - 1


@dataclass(frozen=True)
class Coding:
    """How the new stored values are to be read.

    bits, signed: of a stored value. slope, intercept: from new stored values to the old stored ones (`relative`), or to
    the file's real values (not `relative`), where a table stood between the old ones and those.
    """

    bits: int
    signed: bool
    relative: bool = True
    slope: float = 1.0
    intercept: float = 0.0

    @property
    def same(self) -> bool:
        """Whether all that the file says of the meaning of stored values still holds."""
        return self.relative and (self.slope, self.intercept) == (1.0, 0.0)


def line(stored: Stored, real: Array) -> float | None:
    """Real values per stored one, if the one follows from the other along a line; 0 if all are equal, None if not."""
    flat, values = stored.ravel().astype(np.float64), real.ravel().astype(np.float64)
    low, high = int(flat.argmin()), int(flat.argmax())
    if flat[low] == flat[high]:
        return 0.0
    slope = float((values[high] - values[low]) / (flat[high] - flat[low]))
    off = np.abs(values[low] + slope * (flat - flat[low]) - values).max()
    rounding = 4 * np.finfo(np.float32).eps * np.abs(values).max()
    return slope if slope != 0 and off <= 0.01 * abs(slope) + rounding else None


def coded(
    stored: Sequence[Stored],
    real: Sequence[Array],
    change: Sequence[Array],
    coding: Coding,
    allocated: int,
    *,
    table: bool = False,
) -> tuple[list[Whole], Coding]:
    """New stored values of the slices of a series, and how they are to be read.

    stored, real, change: for each slice (rows, columns) what the file stores, the real values of that, and what is to
    be added to those. coding: the file's. allocated: bits in which a stored value lies.
    table: whether a table stands between stored and real values, which has nothing to say of values beyond its end.
    """
    slopes = [line(*pair) for pair in zip(stored, real, strict=True)]
    if table or any(slope is None for slope in slopes):
        wanted = [plane.astype(np.float64) + moved for plane, moved in zip(real, change, strict=True)]
        return _anew(wanted, relative=False)
    # A slice of one value has no slope of its own, and nothing to translate.
    wanted = [
        plane.astype(np.float64) + (moved.astype(np.float64) / slope if slope else 0.0)
        for plane, moved, slope in zip(stored, change, slopes, strict=True)
    ]
    for bits in (coding.bits, allocated):
        low, high = span(bits, coding.signed)
        if all(low <= np.rint(plane.min()) and np.rint(plane.max()) <= high for plane in wanted):
            return [np.rint(plane).astype(np.int64) for plane in wanted], Coding(bits, coding.signed)
    return _anew(wanted, relative=True)


def span(bits: int, signed: bool) -> tuple[int, int]:
    """The least and the most that can be stored."""
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def _anew(wanted: Sequence[NDArray[np.float64]], *, relative: bool) -> tuple[list[Whole], Coding]:
    """Unsigned 16 bits over the range of the values; 0 stays exactly 0 where nothing is negative."""
    low = min(0.0, *(float(plane.min()) for plane in wanted))
    high = max(float(plane.max()) for plane in wanted)
    slope = float(f"{max(high - low, 1e-12) / MOST:.9e}")  # as a decimal string of DICOM can say it
    intercept = float(f"{low:.8e}")
    new = [np.rint((plane - intercept) / slope).clip(0, MOST).astype(np.int64) for plane in wanted]
    return new, Coding(BITS, signed=False, relative=relative, slope=slope, intercept=intercept)
