"""What modifies the value of a stored pixel, declared once.

The reader applies each row, a writer restores it, and de-identification keeps its elements: who adds a row here has
added it to all three (DICOM PS3.3 C.7.5.1.1.2, C.7.6.3, C.7.6.16.2.9, C.7.6.16.2.11, C.11.1 and C.11.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


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
VENDOR_SLOPE = Private("Philips MR Imaging DD 001", 0x2005, 0x0E)
VENDOR_INTERCEPT = Private("Philips MR Imaging DD 001", 0x2005, 0x0D)
VENDOR_HEADER = Private("Philips MR Imaging DD 005", 0x2005, 0x0F)
"""The sequence in which Philips' enhanced frames keep the elements of a classic header."""

MODIFIERS = (
    Modifier("bits", ("BitsStored", "HighBit", "PixelRepresentation"), "each"),
    Modifier("padding", tuple(keyword for ends in PADDING_ENDS for keyword in ends), "each"),
    Modifier("rescale", ("RescaleSlope", "RescaleIntercept"), "presence"),
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
    Modifier("brightness", ("PhotometricInterpretation", "PresentationLUTShape"), "meaning"),
    Modifier("vendor scale", (), "presence", private=(VENDOR_SLOPE, VENDOR_INTERCEPT)),
)

KEYWORDS = tuple(keyword for row in MODIFIERS for keyword in row.keywords)
NUMBERS = (  # never altered: a file in which one is an identifier is refused
    *(keyword for ends in PADDING_ENDS for keyword in ends),
    *("RescaleSlope", "RescaleIntercept"),
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
