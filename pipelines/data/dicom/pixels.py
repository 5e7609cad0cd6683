"""Convert stored DICOM pixels to real values: by the real-world value map if it gives a diffusivity, or else by
the modality LUT (DICOM PS3.3 C.7.6.16.2.11 and C.11.1), or an enhanced file's transformation of each frame.

Each compressed syntax has one decoder, so that a study is the same on every machine: OpenJPEG for JPEG 2000, CharLS for
JPEG-LS, GDCM for the other JPEGs, pydicom's own for run lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_modality_lut, get_decoder, iter_pixels
from pydicom.pixels.utils import as_pixel_options
from pydicom.uid import (
    UID,
    JPEG2000TransferSyntaxes,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
    RLETransferSyntaxes,
)

from pipelines.data.adc import UNSAID, factor
from pipelines.data.dicom.codestream import check_codestream
from pipelines.data.dicom.frames import OWN, functional_groups
from pipelines.data.dicom.uncompressed import header_of
from pipelines.data.headers import Meaning
from pipelines.data.study import Array
from privacy.deidentify.layouts import Layout, Rectangle, kind_of, rectangles_of

DECODERS: dict[UID, str] = {
    **dict.fromkeys(JPEG2000TransferSyntaxes, "pylibjpeg"),  # with the high-throughput kinds
    **dict.fromkeys(JPEGLSTransferSyntaxes, "pyjpegls"),
    **dict.fromkeys(JPEGTransferSyntaxes, "gdcm"),
    **dict.fromkeys(RLETransferSyntaxes, "pydicom"),
}
RANGE_KEYWORDS = ("RealWorldValue{}ValueMapped", "DoubleFloatRealWorldValue{}ValueMapped")


def real_values(
    dataset: Dataset, indices: Sequence[int] = (0,), blank: Sequence[Layout] = ()
) -> Iterator[tuple[Array, str | None]]:
    """Decode images of one file, one after the other.

    indices: of the frames, from 0. blank: layouts of images; the stored values within the rectangles of this image's
    layout are first set to its smallest value.

    Yields:
        (rows, columns) float32 values, and the unit that the header gives them, None if it gives none.

    Raises:
        Exception: whatever the decoder raises for damaged pixels; the caller turns it into `Unusable`.
    """
    check_codestream(dataset)
    plugin = DECODERS.get(dataset.file_meta.TransferSyntaxUID, "")
    decoded = iter_pixels(dataset, indices=list(indices), raw=True, decoding_plugin=plugin)
    rectangles = rectangles_of(blank, kind_of(dataset))
    for index, stored in zip(indices, decoded, strict=True):
        yield _scale_of(_transform(dataset, index))(blanked(stored, rectangles))


def decoder_of(meaning: Meaning, blank: Sequence[Layout] = ()) -> Callable[[bytes], tuple[Array, str | None]]:
    """A function from the bytes of one uncompressed image to its values and unit, as `real_values` gives them.

    What the header says is worked out once for all files that agree in it. Raises: as `real_values`.
    """
    header = header_of(meaning)
    decoder = get_decoder(UID(meaning.syntax))
    options: dict[str, Any] = as_pixel_options(header, pixel_keyword="PixelData", pixel_vr=meaning.vr or "OW")
    rectangles, scale = rectangles_of(blank, kind_of(header)), _scale_of(header)

    def decoded(data: bytes) -> tuple[Array, str | None]:
        stored, _ = next(decoder.iter_array(data, indices=[0], raw=True, **options))
        return scale(blanked(stored, rectangles))

    return decoded


def blanked(stored: NDArray[Any], rectangles: Sequence[Rectangle]) -> NDArray[Any]:
    """Stored values (rows, columns), with the rectangles set to the image's smallest value."""
    if not rectangles:
        return stored
    result = stored.copy()
    for box in rectangles:
        result[box.top : box.bottom, box.left : box.right] = np.min(stored)
    return result


def _transform(dataset: Dataset, index: int) -> Dataset:
    """The header elements that give a frame's stored values their meaning, as in a classic file."""
    if not dataset.get(OWN):
        return dataset
    found = Dataset()
    found.set_original_encoding(*dataset.original_encoding)
    for keyword in ("PixelRepresentation", "ModalityLUTSequence", "RealWorldValueMappingSequence"):
        if keyword in dataset:
            found[keyword] = dataset[keyword]
    for item in functional_groups(dataset, index, "PixelValueTransformationSequence"):
        for keyword in ("RescaleSlope", "RescaleIntercept", "RescaleType"):
            if keyword in item:
                found[keyword] = item[keyword]
    if maps := functional_groups(dataset, index, "RealWorldValueMappingSequence"):
        found.RealWorldValueMappingSequence = maps
    return found


def _scale_of(transform: Dataset) -> Callable[[NDArray[np.generic]], tuple[Array, str | None]]:
    """The function from stored to real values, with their unit."""
    item = _diffusivity_map(transform)
    unit = cache(partial(_modality_unit, transform, item))
    mapped = item is not None and factor(_code(item)) is not None

    def scaled(stored: NDArray[np.generic]) -> tuple[Array, str | None]:
        if item is not None and mapped and _covers(item, stored):
            return _mapped(stored, item), _code(item)
        return np.asarray(apply_modality_lut(stored, transform), np.float32), unit()

    return scaled


def _diffusivity_map(dataset: Dataset) -> Dataset | None:
    """The real-world value map whose unit is a diffusivity, or else the first that names a unit, or None."""
    items: list[Dataset] = [item for item in dataset.get("RealWorldValueMappingSequence") or [] if _code(item)]
    return next((item for item in items if factor(_code(item)) is not None), next(iter(items), None))


def _code(item: Dataset) -> str:
    codes = item.get("MeasurementUnitsCodeSequence") or [Dataset()]
    text = str(codes[0].get("CodeValue") or codes[0].get("CodeMeaning") or "").strip()
    return "" if text.lower() in UNSAID else text


def _covers(item: Dataset, stored: NDArray[np.generic]) -> bool:
    if "RealWorldValueSlope" not in item:
        return False
    first, last = (_range_limit(item, end) for end in ("First", "Last"))
    return first is None or last is None or (first <= float(np.min(stored)) and float(np.max(stored)) <= last)


def _range_limit(item: Dataset, end: str) -> float | None:
    found = (item.get(keyword.format(end)) for keyword in RANGE_KEYWORDS)
    return next((float(value) for value in found if value is not None), None)


def _mapped(stored: NDArray[np.generic], item: Dataset) -> Array:
    slope, intercept = float(item.RealWorldValueSlope), float(item.get("RealWorldValueIntercept", 0))
    return (np.asarray(stored, np.float64) * slope + intercept).astype(np.float32)


def _modality_unit(dataset: Dataset, item: Dataset | None) -> str | None:
    """RescaleType or the explanation of a modality LUT, if it names a unit; else a foreign unit of the value map."""
    tables = dataset.get("ModalityLUTSequence") or [Dataset()]
    for text in (dataset.get("RescaleType"), tables[0].get("LUTExplanation"), tables[0].get("ModalityLUTType")):
        if text and (factor(str(text)) is not None or str(text) == "HU"):
            return str(text)
    return _code(item) if item is not None and factor(_code(item)) is None else None
