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
from pipelines.data.dicom.frames import OWN, SHARED, transform_of
from pipelines.data.dicom.stored_values import padded, vendor_slope
from pipelines.data.dicom.uncompressed import header_of
from pipelines.data.headers import Meaning, Reading
from pipelines.data.study import Array
from privacy.deidentify.layouts import Layout, Rectangle, kind_of, rectangles_of

DECODERS: dict[UID, str] = {
    **dict.fromkeys(JPEG2000TransferSyntaxes, "pylibjpeg"),  # with the high-throughput kinds
    **dict.fromkeys(JPEGLSTransferSyntaxes, "pyjpegls"),
    **dict.fromkeys(JPEGTransferSyntaxes, "gdcm"),
    **dict.fromkeys(RLETransferSyntaxes, "pydicom"),
}
PLAIN = Reading()
RANGE_KEYWORDS = ("RealWorldValue{}ValueMapped", "DoubleFloatRealWorldValue{}ValueMapped")


def real_values(
    dataset: Dataset, indices: Sequence[int] = (0,), blank: Sequence[Layout] = (), reading: Reading = PLAIN
) -> Iterator[tuple[Array, str | None]]:
    """Decode images of one file, one after the other.

    indices: of the frames, from 0. blank: layouts of images; the stored values within the rectangles of this image's
    layout are first set to its smallest value. reading: how the values of their set are read.

    Yields:
        (rows, columns) float32 values, 0 where padded (NaN if they will be turned round), and the unit that the header
        gives them, None if it gives none.

    Raises:
        Unusable: as `padded`.
        Exception: whatever the decoder raises for damaged pixels; the caller turns it into `Unusable`.
    """
    check_codestream(dataset)
    plugin = DECODERS.get(dataset.file_meta.TransferSyntaxUID, "")
    decoded = iter_pixels(dataset, indices=list(indices), raw=True, decoding_plugin=plugin)
    rectangles = rectangles_of(blank, kind_of(dataset))
    for index, stored in zip(indices, decoded, strict=True):
        scale = _scale_of(transform_of(dataset, index), _vendor_step(dataset, index, reading), reading)
        yield scale(blanked(stored, rectangles))


def decoder_of(
    meaning: Meaning, blank: Sequence[Layout] = (), reading: Reading = PLAIN
) -> Callable[[bytes], tuple[Array, str | None]]:
    """A function from the bytes of one uncompressed image to its values and unit, as `real_values` gives them.

    What the header says is worked out once for all files that agree in it. Raises: as `real_values`.
    """
    header = header_of(meaning)
    decoder = get_decoder(UID(meaning.syntax))
    options: dict[str, Any] = as_pixel_options(header, pixel_keyword="PixelData", pixel_vr=meaning.vr or "OW")
    rectangles = rectangles_of(blank, kind_of(header))
    scale = _scale_of(header, _vendor_step(header, 0, reading), reading)

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


def _vendor_step(dataset: Dataset, index: int, reading: Reading) -> float | None:
    """A rescaled value of 1 in the vendor's scale, as a divisor; None where that scale is not asked for.

    Of Philips: value = (stored RS + RI) / (RS SS), RS = RescaleSlope, RI = RescaleIntercept, SS = scale slope.
    """
    if not reading.vendor:
        return None
    groups = [*(dataset.get(OWN) or [])[index : index + 1], *(dataset.get(SHARED) or [])[:1], dataset]
    slope = next((found for group in groups if (found := vendor_slope(group)) is not None), 1.0)
    return slope * float(transform_of(dataset, index).get("RescaleSlope", 1))


def _scale_of(
    transform: Dataset, step: float | None, reading: Reading
) -> Callable[[NDArray[np.generic]], tuple[Array, str | None]]:
    """The function from stored to real values, with their unit. step: as of `_vendor_step`."""
    padding = np.float32(np.nan if reading.turned else 0)
    item = _diffusivity_map(transform)
    unit = cache(partial(_modality_unit, transform, item))
    code = None if item is None else _code(item)
    mapped = code is not None and factor(code) is not None

    def scaled(stored: NDArray[np.generic]) -> tuple[Array, str | None]:
        outside = padded(stored, transform)
        inside = stored if outside is None else stored[~outside]
        if item is not None and mapped and _covers(item, inside):
            values, said = _mapped(stored, item), code
        else:
            values, said = np.asarray(apply_modality_lut(stored, transform), np.float32), unit()
            values = values if step is None else values / np.float32(step)
        if reading.turned:  # NaN stands for padding there; others are refused later, as infinite values are
            values = np.nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        return (values if outside is None else np.where(outside, padding, values)), said

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
    """stored: those that are no padding, any shape."""
    if "RealWorldValueSlope" not in item:
        return False
    if not stored.size:
        return True
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
