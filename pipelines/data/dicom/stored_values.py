"""Read the elements that modify stored values (`privacy.deidentify.stored_values`); refuse sets that differ in them.

Pixels that are declared padding become 0, as outside the field of view; medians and percentiles skip zeros. The
vendor's scale is used if the images of a set otherwise have different scales. MONOCHROME1 signals, which a viewer shows
inverted, are inverted if their values have no unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from pipelines.data.dicom.real_world import check_scales, unused_scales
from pipelines.data.headers import Frame, Reading, text_of
from pipelines.data.study import Array, Unusable
from privacy.deidentify.stored_values import (
    BLOCKS,
    MODIFIERS,
    PADDING_ENDS,
    RESCALE,
    VENDOR_HEADER,
    VENDOR_INTERCEPT,
    VENDOR_SLOPE,
    Modifier,
    Private,
    private_element,
    rescale_of,
)

VENDOR_TAGS = frozenset(
    VENDOR_SLOPE.group << 16 | low for block in BLOCKS for low in (block, block << 8 | VENDOR_SLOPE.element)
)
SAME_SCALE = 1e-4  # relative: one factor is a decimal text, the other a float of 4 bytes
PADDING_BITS = 16
MAPS = "scales of real-world value maps"
"""A key of an enhanced frame's values: `unused_scales` of its maps. A classic file's values hold the maps."""


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
            if (element := private_element(item, place)) is None:
                continue
            if by is None or (place == VENDOR_INTERCEPT and by != 1):  # of the old stored values
                del item[element.tag]
            else:
                element.value = element.value * by


def _vendor_headers(dataset: Dataset) -> Iterator[Dataset]:
    """The first item of the vendor's private header sequence, if there is one."""
    element = private_element(dataset, VENDOR_HEADER)
    if element is not None and element.VR == "SQ":
        yield from list(element.value or ())[:1]


def _private_number(dataset: Dataset, place: Private) -> float:
    """The number in a private element; NaN if there is none."""
    element = private_element(dataset, place)
    try:
        return math.nan if element is None else float(element.value)
    except (TypeError, ValueError):
        return math.nan


def find_rescale(header: Mapping[str, Any] | Dataset, where: str = "") -> tuple[float, float] | None:
    """Slope and intercept of a header, or of a frame's values; None if it has neither.

    Raises:
        Unusable: `bad_tag` if one is empty, no number, or a slope of 0.
    """
    try:
        return rescale_of(header)
    except ValueError as error:
        raise Unusable("bad_tag", f"{where}{': ' if where else ''}{error}. Export the series again.") from None


def find_padding(stored: NDArray[Any], header: Dataset) -> NDArray[np.bool_] | None:
    """Where stored values (rows, columns) are declared padding; None = nowhere.

    header: a file's, or a frame's meaning as in a classic file.

    Raises:
        Unusable: `bad_padding` if the declared value does not fit the stored bits, and pixels have its last bits.
    """
    if stored.dtype.kind == "f":
        ends = [float(header[key].value) for key in _padding_ends(header, stored.dtype.itemsize // 8 + 1)]
        if not ends:
            return None
        if any(math.isnan(end) for end in ends):
            return np.asarray(np.isnan(stored))
        return np.asarray((stored >= min(ends)) & (stored <= max(ends)))
    bounds = padding_range(header)
    if bounds is None:
        return None
    bits, signed = int(header.BitsStored), bool(header.PixelRepresentation)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if bounds[0] <= most and bounds[1] >= least:
        return np.asarray((stored >= bounds[0]) & (stored <= bounds[1]))
    _check_last_bits(stored, bounds, bits, signed)
    return None


def padding_range(header: Dataset) -> tuple[int, int] | None:
    """The smallest and the largest stored value that a header declares as padding of whole numbers; None = none."""
    keys = _padding_ends(header, 0)
    signed = bool(header.get("PixelRepresentation"))
    ends = [_keep_last_bits(_parse_16_bits(header[key].value), PADDING_BITS, signed) for key in keys]
    return (min(ends), max(ends)) if ends else None


def _padding_ends(header: Dataset, kind: int) -> list[str]:
    """The keywords of a header that limit its padding: a limit without a value limits nothing (C.7.5.1.1.2)."""
    value, limit = PADDING_ENDS[kind]
    return [key for key in (value, limit) if _has_value(header, key)] if _has_value(header, value) else []


def _check_last_bits(stored: NDArray[Any], declared: tuple[int, int], bits: int, signed: bool) -> None:
    """A decoder keeps only the stored bits of a pixel, so padding and tissue with equal last bits are equal."""
    for end in set(declared):
        last = _keep_last_bits(end, bits, signed)
        count = int((stored == last).sum())
        if last and count:
            raise Unusable(
                "bad_padding",
                f"PixelPaddingValue {end} does not fit {bits} {'signed' if signed else 'unsigned'} bits, and {count} "
                f"pixels hold {last}, its last {bits} bits: they may be padding or tissue. Export with a padding "
                "value that BitsStored can hold, or without one.",
            )


def _keep_last_bits(value: int, bits: int, signed: bool) -> int:
    """The number that the last `bits` bits of a value stand for."""
    last = value & (1 << bits) - 1
    return last - (1 << bits) if signed and last >> bits - 1 else last


def _has_value(header: Dataset, keyword: str) -> bool:
    """Whether the header has this element, with a value."""
    return keyword in header and header[keyword].value not in (None, "", b"")


def _parse_16_bits(value: Any) -> int:
    """A number of 16 bits, which an archive may keep as bytes where it does not know its sign."""
    return int.from_bytes(value[:2], "little") if isinstance(value, bytes) else int(value)


def build_reading(frames: Sequence[Frame], *, adc: bool, fitted: bool) -> Reading:
    """How to read the values of a set of images that must be comparable: a series, or all images of a fit.

    adc: whether they are an ADC map, whose values have a unit whatever their brightness. fitted: whether ADC is fitted
    to them.

    Raises:
        Unusable: `mixed_values` if they differ in an element that modifies values, `inverted` if it is ambiguous which
            signal is high, `bad_tag` as `rescaling`.
    """
    for frame in frames:
        find_rescale(frame.values, _frame_name(frame))
    for row in MODIFIERS:
        if row.within == "presence":
            _check_presence(frames, row)
    vendor = _needs_vendor_scale(frames, adc)
    if not vendor:  # whose scale is the better evidence
        check_scales([(_map_scales(frame), find_rescale(frame.values) or (1.0, 0.0)) for frame in frames], SAME_SCALE)
    return Reading(vendor=vendor, turned=_is_turned(frames, adc, fitted))


def _map_scales(frame: Frame) -> tuple[Any, ...]:
    """`unused_scales` of a frame's real-world value maps, of a classic or an enhanced file."""
    scales = frame.values.get(MAPS)
    return unused_scales(frame.values.get("RealWorldValueMappingSequence") or []) if scales is None else tuple(scales)


def _is_turned(frames: Sequence[Frame], adc: bool, fitted: bool) -> bool:
    """Whether stored values are to be inverted. A map's values have a unit, so its brightness is ignored."""
    shown = {(text_of(f.values.get("PhotometricInterpretation")), _presentation_shape(f.values)) for f in frames}
    inverted = {photometric == "MONOCHROME1" for photometric, _ in shown}
    shown_text = "; ".join(
        sorted(f"{photometric} with {shape or 'no PresentationLUTShape'}" for photometric, shape in shown)
    )
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
            f"{frames[0].path.name} is {shown_text}: whether high values are high signals is open. Export it as "
            "MONOCHROME2.",
        )
    return turned and not adc


def _presentation_shape(values: Mapping[str, Any]) -> str:
    """PresentationLUTShape in upper case; "" if it is missing."""
    return text_of(values.get("PresentationLUTShape")).strip().upper()


def _check_presence(frames: Sequence[Frame], row: Modifier) -> None:
    """Refuse a keyword that only some images have, unless its value is what a missing one means."""
    for keyword in row.keywords or ("",):
        has = [keyword in frame.values if keyword else frame.vendor_slope is not None for frame in frames]
        if len(set(has)) == 1 or (keyword in RESCALE and all(_is_unchanged(frame, keyword) for frame in frames)):
            continue
        odd = frames[has.index(has.count(True) * 2 < len(has))]
        tag_text = keyword or ", ".join(f"({tag.group:04X},xx{tag.element:02X})" for tag in row.private[:1])
        raise Unusable(
            "mixed_values",
            f"{row.name} ({tag_text}) is in {has.count(True)} of {len(has)} images and missing in the others "
            f"({_frame_name(odd)} is unlike most), so their values cannot be compared. Export the series again.",
        )


def _frame_name(frame: Frame) -> str:
    """The file's name, with the number of the frame in a multi-frame file."""
    return f"{frame.path.name}, frame {frame.index + 1}" if frame.frames > 1 else frame.path.name


def _is_unchanged(frame: Frame, keyword: str) -> bool:
    """Whether a number of the rescale changes nothing, as if it were missing."""
    return float(frame.values.get(keyword, RESCALE[keyword])) == RESCALE[keyword]


def _needs_vendor_scale(frames: Sequence[Frame], adc: bool) -> bool:
    """Whether values after the rescale are not on one scale, and the vendor's scale slope puts them on one."""
    steps = np.array([(f.vendor_slope or 1.0) * (find_rescale(f.values) or (1.0, 0.0))[0] for f in frames])
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

    values: any shape, NaN where padded. turned: whether they are MONOCHROME1 signals, which are inverted: the brightest
    becomes the highest, the darkest 0, as air.
    """
    outside = np.isnan(values)
    if turned and not outside.all():
        values = values[~outside].max() - values
    return np.where(outside, np.float32(0), values)
