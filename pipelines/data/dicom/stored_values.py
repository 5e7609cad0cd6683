"""Read what modifies stored values, by the table of `privacy.deidentify.stored_values`; refuse sets that differ in it.

Declared padding is no tissue: its pixels become 0, the value of everything outside a field of view, which no median and
no percentile counts. A vendor's scale is used where without it images of one set would not have one scale. Signals of
MONOCHROME1, which a viewer shows turned round, are turned round where their values have no unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from pipelines.data.headers import Frame, Reading, text_of
from pipelines.data.study import Array, Unusable
from privacy.deidentify.stored_values import (
    MODIFIERS,
    PADDING_ENDS,
    VENDOR_HEADER,
    VENDOR_INTERCEPT,
    VENDOR_SLOPE,
    Modifier,
    Private,
)

BLOCKS = range(0x10, 0x20)  # the standard allows up to 0xFF; scanners number from 0x10, few go further
VENDOR_TAGS = frozenset(
    VENDOR_SLOPE.group << 16 | low for block in BLOCKS for low in (block, block << 8 | VENDOR_SLOPE.element)
)
SAME_SCALE = 1e-4  # relative: one factor is a decimal text, the other a float of 4 bytes
PADDING_BITS = 16


def vendor_slope(dataset: Dataset) -> float | None:
    """The vendor's scale slope of a header, or of an item of functional groups; None if there is none."""
    for item in (dataset, *_vendor_headers(dataset)):
        slope = _private_number(item, VENDOR_SLOPE)
        if math.isfinite(slope) and slope != 0:
            return slope
    return None


def scale_vendor_slopes(groups: Sequence[Dataset], by: float | None) -> None:
    """Multiply the vendor's scale slopes of headers or functional groups by a factor, or remove them (None)."""
    for item in (item for group in groups for item in (group, *_vendor_headers(group))):
        for place in (VENDOR_SLOPE, VENDOR_INTERCEPT):
            try:
                found = item.private_block(place.group, place.creator)[place.element]
            except KeyError:
                continue
            if by is None or (place == VENDOR_INTERCEPT and by != 1):  # of the old stored values
                del item[found.tag]
            else:
                found.value = found.value * by


def _vendor_headers(dataset: Dataset) -> Iterator[Dataset]:
    try:
        found = dataset.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator)[VENDOR_HEADER.element]
    except KeyError:
        return
    if found.VR == "SQ":
        yield from list(found.value or ())[:1]


def _private_number(dataset: Dataset, place: Private) -> float:
    try:
        return float(dataset.private_block(place.group, place.creator)[place.element].value)
    except (KeyError, TypeError, ValueError):
        return math.nan


def padded(stored: NDArray[Any], header: Dataset) -> NDArray[np.bool_] | None:
    """Where stored values (rows, columns) are declared padding; None = nowhere.

    header: a file's, or a frame's meaning as in a classic file.

    Raises:
        Unusable: `bad_padding` if the declared value does not fit the stored bits, and pixels have its last bits.
    """
    if stored.dtype.kind == "f":
        ends = [float(header[key].value) for key in PADDING_ENDS[stored.dtype.itemsize // 8 + 1] if _says(header, key)]
        if not ends:
            return None
        if any(math.isnan(end) for end in ends):
            return np.asarray(np.isnan(stored))
        return np.asarray((stored >= min(ends)) & (stored <= max(ends)))
    whole = padding_range(header)
    if whole is None:
        return None
    bits, signed = int(header.BitsStored), bool(header.PixelRepresentation)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if whole[0] <= most and whole[1] >= least:
        return np.asarray((stored >= whole[0]) & (stored <= whole[1]))
    _check_last_bits(stored, whole, bits, signed)
    return None


def padding_range(header: Dataset) -> tuple[int, int] | None:
    """The smallest and the largest stored value that a header declares as padding of whole numbers; None = none."""
    keys = [key for key in PADDING_ENDS[0] if _says(header, key)]
    signed = bool(header.get("PixelRepresentation"))
    ends = [_of_bits(_whole(header[key].value), PADDING_BITS, signed) for key in keys]
    return (min(ends), max(ends)) if ends else None


def _check_last_bits(stored: NDArray[Any], declared: tuple[int, int], bits: int, signed: bool) -> None:
    """A decoder keeps the stored bits of a pixel only, so padding and tissue of equal last bits look alike."""
    for end in set(declared):
        last = _of_bits(end, bits, signed)
        count = int((stored == last).sum())
        if last and count:
            raise Unusable(
                "bad_padding",
                f"PixelPaddingValue {end} does not fit {bits} {'signed' if signed else 'unsigned'} bits, and {count} "
                f"pixels hold {last}, its last {bits} bits: they may be padding or tissue. Export with a padding "
                "value that BitsStored can hold, or without one.",
            )


def _of_bits(value: int, bits: int, signed: bool) -> int:
    last = value & (1 << bits) - 1
    return last - (1 << bits) if signed and last >> bits - 1 else last


def _says(header: Dataset, keyword: str) -> bool:
    return keyword in header and header[keyword].value not in (None, "", b"")


def _whole(value: Any) -> int:
    """A number of 16 bits, which an archive may keep as bytes where it does not know its sign."""
    return int.from_bytes(value[:2], "little") if isinstance(value, bytes) else int(value)


def reading_of(frames: Sequence[Frame], *, adc: bool, fitted: bool) -> Reading:
    """How the values of a set of images that are compared are read: a series, or all images of a fit.

    adc: they are an ADC map, so their values are in its unit, whatever their brightness. fitted: ADC is fitted to them.

    Raises:
        Unusable: `mixed_values` if they differ in what modifies values, `inverted` if it is open which signal is
            high.
    """
    for row in MODIFIERS:
        if row.within == "presence":
            _check_presence(frames, row)
    return Reading(vendor=_needs_vendor_scale(frames, adc), turned=_is_turned(frames, adc, fitted))


def _is_turned(frames: Sequence[Frame], adc: bool, fitted: bool) -> bool:
    """Whether what is stored as dark is shown bright. That of a map has no influence: its values have a unit."""
    shown = {(text_of(f.values.get("PhotometricInterpretation")), _shape(f.values)) for f in frames}
    inverted = {photometric == "MONOCHROME1" for photometric, _ in shown}
    said = "; ".join(sorted(f"{one} with {shape or 'no PresentationLUTShape'}" for one, shape in shown))
    if len(inverted) > 1:
        raise Unusable(
            "mixed_values",
            f"some of {len(frames)} images are MONOCHROME1 and others MONOCHROME2: what is bright in one is dark in "
            "the other. Export the series again.",
        )
    turned = inverted == {True}
    contradicted = any(shape and (shape == "INVERSE") != turned for _, shape in shown)
    if not adc and (contradicted or (turned and fitted)):
        raise Unusable(
            "inverted",
            f"{frames[0].path.name} is {said}: whether high values are high signals is open. Export it as MONOCHROME2.",
        )
    return turned and not adc


def _shape(values: Mapping[str, Any]) -> str:
    return text_of(values.get("PresentationLUTShape")).strip().upper()


def _check_presence(frames: Sequence[Frame], row: Modifier) -> None:
    has = [_has(frame, row) for frame in frames]
    if len(set(has)) > 1 and not (row.name == "rescale" and all(map(_is_unchanged, frames))):
        rare = has.count(True) * 2 < len(has)
        odd = frames[has.index(rare)]
        place = f"{odd.path.name}, frame {odd.index + 1}" if odd.frames > 1 else odd.path.name
        said = ", ".join((*row.keywords, *(f"({one.group:04X},xx{one.element:02X})" for one in row.private[:1])))
        raise Unusable(
            "mixed_values",
            f"{row.name} ({said}) is in {has.count(True)} of {len(has)} images and missing in the others "
            f"({place} is unlike most), so their values cannot be compared. Export the series again.",
        )


def _has(frame: Frame, row: Modifier) -> bool:
    private = bool(row.private) and frame.vendor_slope is not None
    return private or any(keyword in frame.values for keyword in row.keywords)


def _is_unchanged(frame: Frame) -> bool:
    """Whether the rescale changes nothing, as if it were missing."""
    values = frame.values
    return float(values.get("RescaleSlope", 1)) == 1 and float(values.get("RescaleIntercept", 0)) == 0


def _needs_vendor_scale(frames: Sequence[Frame], adc: bool) -> bool:
    """Whether values after the rescale are not on one scale, and the vendor's scale slope puts them on one."""
    steps = np.array([(f.vendor_slope or 1.0) * float(f.values.get("RescaleSlope", 1)) for f in frames])
    if frames[0].vendor_slope is None or np.allclose(steps, steps[0], rtol=SAME_SCALE, atol=0):
        return False
    if adc:
        raise Unusable(
            "mixed_values",
            f"RescaleSlope times the vendor's scale slope (2005,xx0E) is {steps.min():.6g} to {steps.max():.6g} "
            "within one map, so its values have no common unit. Export the series again.",
        )
    return True


def as_shown(values: Array, *, turned: bool) -> Array:
    """Values without padding: 0 in its place.

    values: any shape, NaN where padded. turned: they are signals of MONOCHROME1, and become such that the brightest is
    the highest, and the darkest is 0, as air is.
    """
    outside = np.isnan(values)
    if turned and not outside.all():
        values = values[~outside].max() - values
    return np.where(outside, np.float32(0), values)
