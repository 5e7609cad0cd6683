"""Real-world value maps (DICOM PS3.3 C.7.6.16.2.11): a line or a table from stored values to values in a unit.

Only maps in a unit of diffusivity are applied. An ambiguous map is refused: one without its numbers, or with pixels
outside its range that are not background. Otherwise an image could be read in another unit than it states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from pipelines.data.adc import UNSAID, find_unit_factor
from pipelines.data.study import Array, Unusable

RANGE_KEYWORDS = ("RealWorldValue{}ValueMapped", "DoubleFloatRealWorldValue{}ValueMapped")


class Map(NamedTuple):
    """unit: as the header writes it. first, last: the range of stored values that it converts, None = no limit.
    table: its values from `first` to `last`, float64 as bytes, instead of slope and intercept; empty = there is none.
    """

    unit: str
    first: float | None
    last: float | None
    slope: float = math.nan
    intercept: float = 0.0
    table: bytes = b""

    def covers(self, stored: NDArray[Any]) -> NDArray[np.bool_]:
        """Where stored values, of any shape, have a real-world value."""
        low = -math.inf if self.first is None else self.first
        high = math.inf if self.last is None else self.last
        return np.asarray((stored >= low) & (stored <= high))

    def values(self, stored: NDArray[Any]) -> Array:
        """Real-world values, of the shape of `stored`; undefined where the map does not cover them.

        Raises:
            Unusable: `bad_tag` if a table is to be used with stored values that are no whole numbers.
        """
        if not self.table:
            return (np.asarray(stored, np.float64) * self.slope + self.intercept).astype(np.float32)
        if stored.dtype.kind not in "iu":
            raise _bad_tag(
                "RealWorldValueLUTData is a table of whole stored values, and the pixels are no whole numbers"
            )
        table = np.frombuffer(self.table)
        places = np.clip(stored.astype(np.int64) - int(self.first or 0), 0, table.size - 1)
        return table[places].astype(np.float32)


def diffusivity_map(header: Dataset) -> Map | None:
    """The real-world value map of a header whose unit is a diffusivity; None if there is none.

    Raises:
        Unusable: `bad_tag` if its numbers are missing or contradict each other, or several such maps differ.
    """
    signed = bool(header.get("PixelRepresentation"))
    items = [
        item
        for item in header.get("RealWorldValueMappingSequence") or []
        if find_unit_factor(unit_of(item)) is not None
    ]
    maps = [_parse_map(item, signed) for item in items]
    if len({(find_unit_factor(value_map.unit), *value_map[1:]) for value_map in maps}) > 1:
        raise _bad_tag(
            f"RealWorldValueMappingSequence holds {len(maps)} maps to diffusivities that differ; one is needed"
        )
    return maps[0] if maps else None


def foreign_unit(header: Dataset) -> str | None:
    """The first unit that a map of a header names, if no map names a diffusivity."""
    units = [unit for item in header.get("RealWorldValueMappingSequence") or [] if (unit := unit_of(item))]
    return None if any(find_unit_factor(unit) is not None for unit in units) else next(iter(units), None)


def unit_of(item: Dataset) -> str:
    """The unit of a map; "" if it names none."""
    codes = item.get("MeasurementUnitsCodeSequence") or [Dataset()]
    text = str(codes[0].get("CodeValue") or codes[0].get("CodeMeaning") or "").strip()
    return "" if text.lower() in UNSAID else text


def unused_scales(items: Sequence[Dataset]) -> tuple[Any, ...]:
    """The scales of maps that are not applied, for comparison between images: (slope, intercept) of a line, or the
    numbers of a table. () if one map is a diffusivity's and therefore applied, or none has numbers.
    """
    if any(find_unit_factor(unit_of(item)) is not None for item in items):
        return ()
    scales: list[Any] = []
    for item in items:
        if item.get("RealWorldValueSlope") is not None:
            scales.append((float(item.RealWorldValueSlope), float(item.get("RealWorldValueIntercept") or 0)))
        elif item.get("RealWorldValueLUTData") is not None:
            scales.append(_table_bytes(item))
    return tuple(scales)


def check_scales(images: Sequence[tuple[tuple[Any, ...], tuple[float, float]]], tolerance: float) -> None:
    """Refuse images whose maps, which are not applied, imply other relative scales than their rescales do.

    images: of each image, its `unused_scales`, and its rescale. tolerance: relative, of two equal scales.

    Raises:
        Unusable: `mixed_values`.
    """
    shapes = {tuple(scale if isinstance(scale, bytes) else b"" for scale in scales) for scales, _ in images}
    if shapes == {()}:
        return
    same = len(shapes) == 1
    if same and any(isinstance(scale, bytes) for scale in images[0][0]):
        same = len({rescale for _, rescale in images}) == 1
    if same:
        rows = [
            [_relative_line(scale, rescale) for scale in scales if scale.__class__ is tuple]
            for scales, rescale in images
        ]
        numbers = np.array(rows, np.float64).reshape(len(rows), -1, 3)  # images, maps, numbers of `_relative_line`
        slopes, intercepts, most = np.moveaxis(numbers, 2, 0)
        same = bool(
            (np.ptp(slopes, axis=0) <= tolerance * np.abs(slopes).max(axis=0)).all()
            and (np.ptp(intercepts, axis=0) <= tolerance * most.max(axis=0)).all()
        )
    if not same:
        raise Unusable(
            "mixed_values",
            "the real-world value maps of the images (RealWorldValueMappingSequence), which name no diffusivity, have "
            "scales that differ, and their rescales do not differ likewise: which of both puts the images on one scale "
            "is open. Export the series again.",
        )


def _relative_line(line: tuple[float, float], rescale: tuple[float, float]) -> tuple[float, float, float]:
    """A map's slope and intercept as a function of rescaled values, and the size of the intercept's terms."""
    slope = line[0] / rescale[0]
    return slope, line[1] - slope * rescale[1], max(abs(line[1]), abs(slope * rescale[1]))


def _parse_map(item: Dataset, signed: bool) -> Map:
    """A map whose numbers are complete and consistent. Raises: Unusable: `bad_tag`."""
    first, last = (_range_end(item, end, signed) for end in ("First", "Last"))
    line, table = item.get("RealWorldValueSlope") is not None, item.get("RealWorldValueLUTData") is not None
    if line == table:
        both = "both RealWorldValueSlope and RealWorldValueLUTData" if line else "neither slope nor table"
        raise _bad_tag(f"the real-world value map in {unit_of(item)} holds {both}; one of them is needed")
    if first is not None and last is not None and first > last:
        raise _bad_tag(f"the real-world value map is for stored values from {first:g} to {last:g}, which are none")
    if line:
        slope, intercept = (_parse_number(item, f"RealWorldValue{word}") for word in ("Slope", "Intercept"))
        if slope == 0:
            raise _bad_tag("RealWorldValueSlope is 0; a number other than 0 is needed")
        return Map(unit_of(item), first, last, slope, intercept)
    values = _table_bytes(item)
    count = len(values) // 8
    if first is None or last is None or count != last - first + 1:
        ends = " to ".join("nowhere" if end is None else f"{end:g}" for end in (first, last))
        raise _bad_tag(
            f"RealWorldValueLUTData has {count} values for stored values from {ends}; one for each is needed"
        )
    return Map(unit_of(item), first, last, table=values)


def _table_bytes(item: Dataset) -> bytes:
    """The values of a map's table, float64 as bytes."""
    return np.atleast_1d(np.asarray(item.RealWorldValueLUTData, np.float64)).tobytes()


def _parse_number(item: Mapping[str, Any] | Dataset, keyword: str) -> float:
    """A finite number of the header; 0 if it is missing. Raises: Unusable: `bad_tag`."""
    value = item.get(keyword)
    try:
        number = 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _bad_tag(f"{keyword} is {str(value)[:40] or 'empty'}; a number is needed")
    return number


def _range_end(item: Dataset, end: str, signed: bool) -> float | None:
    """An end of the range. It may be bytes, where an archive does not know its sign."""
    values = (item.get(keyword.format(end)) for keyword in RANGE_KEYWORDS)
    value = next((value for value in values if value is not None), None)
    if isinstance(value, bytes):
        return float(int.from_bytes(value[:2], "little", signed=signed))
    return None if value is None else float(value)


def _bad_tag(what: str) -> Unusable:
    """The error `bad_tag` with this sentence."""
    return Unusable("bad_tag", f"{what}. Export the series again.")
