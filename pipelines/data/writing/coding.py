"""Encode changed values as stored integers: with the file's own coding if it fits, or else with a new 16-bit coding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.data.study import Array

Stored = NDArray[np.integer[Any]]
Whole = NDArray[np.int64]
BITS = 16
MOST = 2**BITS - 1


class Padding(NamedTuple):
    """Padded pixels of a slice. pixels: (rows, columns). span: the smallest and the largest value that is padding."""

    pixels: NDArray[np.bool_]
    span: tuple[int, int]


@dataclass(frozen=True)
class Coding:
    """The coding of the new stored values.

    bits, signed: of a stored value. slope, intercept: from new stored values to the old stored ones (`relative`), or to
    the file's real values (not `relative`), if a lookup table converted the old ones to those. padding: the new stored
    value of padded pixels, None = as the files say it, or no pixel is padded.
    """

    bits: int
    signed: bool
    relative: bool = True
    slope: float = 1.0
    intercept: float = 0.0
    padding: int | None = None

    @property
    def same(self) -> bool:
        """Whether the file's own conversion of stored values is still valid."""
        return self.relative and (self.slope, self.intercept) == (1.0, 0.0)


def fit_line(stored: Stored, real: Array) -> float | None:
    """The slope from stored to real values if their relation is linear; 0 if all are equal, None if it is not."""
    if not stored.size:
        return 0.0
    flat, values = stored.ravel().astype(np.float64), real.ravel().astype(np.float64)
    low, high = int(flat.argmin()), int(flat.argmax())
    if flat[low] == flat[high]:
        return 0.0
    slope = float((values[high] - values[low]) / (flat[high] - flat[low]))
    off = np.abs(values[low] + slope * (flat - flat[low]) - values).max()
    rounding = 4 * np.finfo(np.float32).eps * np.abs(values).max()
    return slope if slope != 0 and off <= 0.01 * abs(slope) + rounding else None


def encode_values(
    stored: Sequence[Stored],
    real: Sequence[Array],
    change: Sequence[Array],
    coding: Coding,
    allocated: int,
    *,
    table: bool = False,
    padding: Sequence[Padding | None] = (),
) -> tuple[list[Whole], Coding]:
    """New stored values of the slices of a series, and their coding.

    stored, real, change: for each slice (rows, columns) the stored values, their real values, and the change of the
    real values. coding: the file's. allocated: bits per stored value in the file.
    table: whether a lookup table converts stored to real values, which is undefined beyond its ends. padding: of each
    slice, where the file says that pixels are padded; they keep their stored value, or get one of their own.
    """
    padding = padding or [None] * len(stored)
    outside = [
        np.zeros(plane.shape, bool) if plane_padding is None else plane_padding.pixels
        for plane, plane_padding in zip(stored, padding, strict=True)
    ]
    change = [np.where(out, np.float32(0), moved) for moved, out in zip(change, outside, strict=True)]
    slopes = [fit_line(a[~out], b[~out]) for a, b, out in zip(stored, real, outside, strict=True)]
    if table or any(slope is None for slope in slopes):
        target_values = [plane.astype(np.float64) + moved for plane, moved in zip(real, change, strict=True)]
        return _encode_in_16_bits(target_values, outside, relative=False)
    # A constant slice has no slope, and nothing to translate.
    target_values = [
        plane.astype(np.float64) + (moved.astype(np.float64) / slope if slope else 0.0)
        for plane, moved, slope in zip(stored, change, slopes, strict=True)
    ]
    for bits in (coding.bits, allocated):
        low, high = value_range(bits, coding.signed)
        if all(low <= np.rint(plane.min()) and np.rint(plane.max()) <= high for plane in target_values):
            new = [np.rint(plane).astype(np.int64) for plane in target_values]
            if not any(_is_hidden(*each) for each in zip(new, padding, strict=True)):
                return new, Coding(bits, coding.signed)
    return _encode_in_16_bits(target_values, outside, relative=True)


def _is_hidden(new: Whole, padding: Padding | None) -> bool:
    """Whether a value that is no padding would be read as such."""
    if padding is None:
        return False
    low, high = padding.span
    return bool(((new >= low) & (new <= high) & ~padding.pixels).any())


def value_range(bits: int, signed: bool) -> tuple[int, int]:
    """The smallest and the largest value that can be stored."""
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)


def _encode_in_16_bits(
    target_values: Sequence[NDArray[np.float64]], outside: Sequence[NDArray[np.bool_]], *, relative: bool
) -> tuple[list[Whole], Coding]:
    """Unsigned 16 bits over the range of the values; 0 stays exactly 0 if no value is negative.

    outside: where pixels are padded: they get the largest value, which is then no other pixel's.
    """
    inside = [plane[~out] for plane, out in zip(target_values, outside, strict=True)]
    padding = MOST if any(out.any() for out in outside) else None
    most = MOST if padding is None else MOST - 1
    low = min(0.0, *(float(part.min(initial=0)) for part in inside))
    high = max(float(part.max(initial=low)) for part in inside)
    slope = float(f"{max(high - low, 1e-12) / most:.9e}")  # rounded to fit DICOM's decimal string
    intercept = float(f"{low:.8e}")
    new = [np.rint((plane - intercept) / slope).clip(0, most).astype(np.int64) for plane in target_values]
    if padding is not None:
        new = [np.where(out, padding, plane) for plane, out in zip(new, outside, strict=True)]
    return new, Coding(BITS, signed=False, relative=relative, slope=slope, intercept=intercept, padding=padding)
