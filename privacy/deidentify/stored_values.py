"""What modifies the value of a stored pixel, declared once.

The reader applies each row, a writer restores it, and de-identification keeps its elements: a row that is added here
is added to all three (DICOM PS3.3 C.7.5.1.1.2, C.7.6.3, C.7.6.16.2.9, C.7.6.16.2.11, C.7.6.19, C.11.1 and
C.11.6). This file also says what a missing number means, and where a vendor's element lies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset


class Private(NamedTuple):
    """A vendor's element: its creator, its group, and its last byte, since the block differs between files."""

    creator: str
    group: int
    element: int


@dataclass(frozen=True)
class Modifier:
    """A row of the table.

    name: as messages and documents say it. keywords: of the elements that say it, in a file's header or in functional
    groups. private: a vendor's elements that say it. parts: keywords of the numbers inside its items. within: what a
    set of images that are compared must agree in: `presence` (all have it, or none), `meaning` (all say the same), or
    nothing (`each` image means what it says).
    """

    name: str
    keywords: tuple[str, ...]
    within: Literal["presence", "meaning", "each"]
    private: tuple[Private, ...] = ()
    parts: tuple[str, ...] = ()


PADDING_ENDS = (
    ("PixelPaddingValue", "PixelPaddingRangeLimit"),
    ("FloatPixelPaddingValue", "FloatPixelPaddingRangeLimit"),
    ("DoubleFloatPixelPaddingValue", "DoubleFloatPixelPaddingRangeLimit"),
)
PALETTE = tuple(f"{colour}PaletteColorLookupTableDescriptor" for colour in ("Red", "Green", "Blue"))
RESCALE: Mapping[str, float] = {"RescaleSlope": 1.0, "RescaleIntercept": 0.0}
"""Keyword -> the number that changes nothing. It holds where only the other keyword is there: PS3.3 C.11.1 asks for
both together, and some exports leave one out."""
VENDOR_SLOPE = Private("Philips MR Imaging DD 001", 0x2005, 0x0E)
VENDOR_INTERCEPT = Private("Philips MR Imaging DD 001", 0x2005, 0x0D)
VENDOR_HEADER = Private("Philips MR Imaging DD 005", 0x2005, 0x0F)
"""The sequence in which Philips' enhanced frames keep the elements of a classic header."""

MODIFIERS = (
    Modifier("bits", ("BitsStored", "HighBit", "PixelRepresentation"), "each"),
    Modifier("padding", tuple(keyword for ends in PADDING_ENDS for keyword in ends), "each"),
    Modifier("rescale", tuple(RESCALE), "presence"),
    Modifier("unit", ("RescaleType",), "meaning"),
    Modifier("modality LUT", ("ModalityLUTSequence",), "presence", parts=("LUTDescriptor", "LUTData")),
    Modifier(
        "real-world value map",
        (
            "RealWorldValueMappingSequence",
            "MeasurementUnitsCodeSequence",
        ),  # the second of enhanced frames
        "presence",
        parts=(
            *("RealWorldValueSlope", "RealWorldValueIntercept", "RealWorldValueLUTData"),
            *("RealWorldValueFirstValueMapped", "RealWorldValueLastValueMapped"),
            *("DoubleFloatRealWorldValueFirstValueMapped", "DoubleFloatRealWorldValueLastValueMapped"),
        ),
    ),
    Modifier("colours", ("PixelPresentation", *PALETTE), "each"),
    Modifier("brightness", ("PhotometricInterpretation", "PresentationLUTShape"), "meaning"),
    Modifier("vendor scale", (), "presence", private=(VENDOR_SLOPE, VENDOR_INTERCEPT)),
)

KEYWORDS = tuple(keyword for row in MODIFIERS for keyword in row.keywords)
NUMBERS = (  # never altered: a file in which one is an identifier is refused
    *(keyword for ends in PADDING_ENDS for keyword in ends),
    *RESCALE,
    *PALETTE,
    *(part for row in MODIFIERS for part in row.parts if part != "LUTData"),
)
SLICE_COUNTS = (Private("GEMS_RELA_01", 0x0021, 0x4F), Private("Philips Imaging DD 001", 0x2001, 0x18))
"""Numbers of slice positions (GE, Philips): without them a series that lacks slices at an end would pass."""
B_VALUES = (
    Private("SIEMENS MR HEADER", 0x0019, 0x0C),
    Private("GEMS_PARM_01", 0x0043, 0x39),
    Private("Philips Imaging DD 001", 0x2001, 0x03),
    Private("Image Private Header", 0x0065, 0x09),  # United Imaging
)
"""Where vendors write the b-value of an image."""
TILES = Private("Image Private Header", 0x0065, 0x50)
"""Number of slices that United Imaging tiles into one image (GRID)."""
READ_BESIDES = (VENDOR_HEADER, *SLICE_COUNTS, *B_VALUES, TILES)
KEPT_PRIVATE = (*(place for row in MODIFIERS for place in row.private), *READ_BESIDES)


BLOCKS = range(0x10, 0x100)
"""Where a vendor's elements may lie (PS3.5 7.8.1)."""
FIRST_BLOCKS = BLOCKS[:16]
"""The blocks that scanners use. In a classic file, elements without which an image is refused or checked less are
searched only here: giving a parser the tags of all blocks takes as long as reading the header.
"""


def rescale_of(header: Mapping[str, Any] | Dataset) -> tuple[float, float] | None:
    """Slope and intercept of a header, or of a frame's values by keyword; None if it has neither.

    Raises:
        ValueError: one is empty, no finite number, or a slope of 0; a sentence without its end says which.
    """
    numbers: dict[str, float] = {}
    for keyword in RESCALE:
        if keyword not in header:
            continue
        value = header.get(keyword)
        number = _to_finite(value)
        if number is None or (number == 0 and keyword == "RescaleSlope"):
            needed = "a number other than 0" if keyword == "RescaleSlope" else "a number"
            raise ValueError(f"{keyword} is {'empty' if value in (None, '') else str(value)[:40]}; {needed} is needed")
        numbers[keyword] = number
    slope, intercept = (numbers.get(keyword, default) for keyword, default in RESCALE.items())
    return (slope, intercept) if numbers else None


def _to_finite(value: Any) -> float | None:
    """A value as a finite number; None if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def private_element(dataset: Dataset, place: Private) -> DataElement | None:
    """A vendor's element, in whichever block its creator reserved, however that is spelt; None if it is missing."""
    tags, base_tag = map(int, dataset.keys()), place.group << 16 | place.element
    for tag in sorted(tag for tag in tags if tag & 0xFFFF00FF == base_tag and (tag & 0xFFFF) >> 8 in BLOCKS):
        creator = dataset.get((place.group, (tag & 0xFFFF) >> 8))
        if creator is not None and _fold_creator(creator.value) == _fold_creator(place.creator):
            return dataset[tag]
    return None


def find_listed_creator(creator: object, tag: int, allowed: frozenset[tuple[str, int, int]]) -> str | None:
    """The creator of a private element as the list of allowed ones spells it; None if the element is not on it."""
    names = (name for name, group, low in allowed if (group << 16 | low) == (tag & 0xFFFF00FF))
    return next((name for name in names if _fold_creator(name) == _fold_creator(creator)), None)


def _fold_creator(creator: object) -> str:
    """A creator as it is compared: exports change its case, and pad it."""
    return str(creator).strip(" \0").casefold()
