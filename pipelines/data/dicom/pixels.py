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

from pipelines.data.adc import find_unit_factor
from pipelines.data.dicom.codestream import check_codestream
from pipelines.data.dicom.frames import PER_FRAME, SHARED, transform_of
from pipelines.data.dicom.real_world import Map, diffusivity_map, foreign_unit
from pipelines.data.dicom.stored_values import find_padding, find_rescale, vendor_slope
from pipelines.data.dicom.uncompressed import build_pixel_header
from pipelines.data.headers import Meaning, Reading
from pipelines.data.study import Array, Unusable
from privacy.deidentify.layouts import Layout, Rectangle, kind_of, rectangles_of

DECODERS: dict[UID, str] = {
    **dict.fromkeys(JPEG2000TransferSyntaxes, "pylibjpeg"),  # with the high-throughput kinds
    **dict.fromkeys(JPEGLSTransferSyntaxes, "pyjpegls"),
    **dict.fromkeys(JPEGTransferSyntaxes, "gdcm"),
    **dict.fromkeys(RLETransferSyntaxes, "pydicom"),
}
PLAIN = Reading()


def decode_real_values(
    dataset: Dataset, indices: Sequence[int] = (0,), blank: Sequence[Layout] = (), reading: Reading = PLAIN
) -> Iterator[tuple[Array, str | None]]:
    """Decode images of one file, one after the other.

    indices: of the frames, from 0. blank: layouts of images; the stored values within the rectangles of this image's
    layout are first set to its smallest value. reading: how the values of their set are read.

    Yields:
        (rows, columns) float32 values, 0 where padded (NaN if signals will be inverted), and the unit that the header
        gives them, None if it gives none.

    Raises:
        Unusable: as `padded`, `rescaling` and `diffusivity_map`; `mixed_unit` if a value map covers some pixels only.
        Exception: whatever the decoder raises for damaged pixels; the caller turns it into `Unusable`.
    """
    check_codestream(dataset)
    plugin = DECODERS.get(dataset.file_meta.TransferSyntaxUID, "")
    decoded = iter_pixels(dataset, indices=list(indices), raw=True, decoding_plugin=plugin)
    rectangles = rectangles_of(blank, kind_of(dataset))
    for index, stored in zip(indices, decoded, strict=True):
        scale = _build_scaling(transform_of(dataset, index), _vendor_step(dataset, index, reading), reading)
        yield scale(blank_rectangles(stored, rectangles))


def build_decoder(
    meaning: Meaning, blank: Sequence[Layout] = (), reading: Reading = PLAIN
) -> Callable[[bytes], tuple[Array, str | None]]:
    """A function from the bytes of one uncompressed image to its values and unit, as `decode_real_values` gives them.

    The header is evaluated once for all files with an equal one. Raises: as `decode_real_values`.
    """
    header = build_pixel_header(meaning)
    decoder = get_decoder(UID(meaning.syntax))
    options: dict[str, Any] = as_pixel_options(header, pixel_keyword="PixelData", pixel_vr=meaning.vr or "OW")
    rectangles = rectangles_of(blank, kind_of(header))
    scale = _build_scaling(header, _vendor_step(header, 0, reading), reading)

    def decode(data: bytes) -> tuple[Array, str | None]:
        stored, _ = next(decoder.iter_array(data, indices=[0], raw=True, **options))
        return scale(blank_rectangles(stored, rectangles))

    return decode


def blank_rectangles(stored: NDArray[Any], rectangles: Sequence[Rectangle]) -> NDArray[Any]:
    """Stored values (rows, columns), with the rectangles set to the image's smallest value."""
    if not rectangles:
        return stored
    result = stored.copy()
    for box in rectangles:
        result[box.top : box.bottom, box.left : box.right] = np.min(stored)
    return result


def _vendor_step(dataset: Dataset, index: int, reading: Reading) -> float | None:
    """The divisor from rescaled values to the vendor's scale; None where that scale is not used.

    Of Philips: value = (stored RS + RI) / (RS SS), RS = RescaleSlope, RI = RescaleIntercept, SS = scale slope.
    """
    if not reading.vendor:
        return None
    groups = [*(dataset.get(PER_FRAME) or [])[index : index + 1], *(dataset.get(SHARED) or [])[:1], dataset]
    slope = next((vendor_scale for group in groups if (vendor_scale := vendor_slope(group)) is not None), 1.0)
    return slope * (find_rescale(transform_of(dataset, index)) or (1.0, 0.0))[0]


def _build_scaling(
    transform: Dataset, step: float | None, reading: Reading
) -> Callable[[NDArray[np.generic]], tuple[Array, str | None]]:
    """The function from stored to real values, with their unit. step: from `_vendor_step`."""
    padding = np.float32(np.nan if reading.turned else 0)
    unit = cache(partial(_modality_unit, transform))
    value_map, rescale = diffusivity_map(transform), find_rescale(transform)

    def scale_values(stored: NDArray[np.generic]) -> tuple[Array, str | None]:
        outside = find_padding(stored, transform)
        unit_text: str | None
        if value_map is not None:
            values, unit_text = _apply_map(stored, outside, value_map, transform), value_map.unit
        else:
            values, unit_text = _rescale_values(stored, transform, rescale), unit()
            values = values if step is None else values / np.float32(step)
        if reading.turned:  # NaN marks padding; other NaN become infinite, and are refused later
            values = np.nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        return (values if outside is None else np.where(outside, padding, values)), unit_text

    return scale_values


def _rescale_values(stored: NDArray[Any], header: Dataset, line: tuple[float, float] | None) -> Array:
    """Values by the modality LUT, or else by slope and intercept. stored: any shape."""
    if header.get("ModalityLUTSequence"):
        return np.asarray(apply_modality_lut(stored, header), np.float32)
    if line is None:
        return np.asarray(stored, np.float32)
    return (stored.astype(np.float64) * line[0] + line[1]).astype(np.float32)


def find_outside_map(stored: NDArray[Any], header: Dataset) -> NDArray[np.bool_] | None:
    """Where stored values are neither padding nor in the range of the value map that is used; None = nowhere.

    header: a file's, or a frame's meaning as in a classic file. Raises: as `decode_real_values`.
    """
    value_map = diffusivity_map(header)
    if value_map is None:
        return None
    outside, out_of_range = find_padding(stored, header), ~value_map.covers(stored)
    out_of_range = out_of_range if outside is None else out_of_range & ~outside
    return out_of_range if out_of_range.any() else None


def is_table(header: Dataset) -> bool:
    """Whether a lookup table gives stored values their meaning. header: as in `find_outside_map`."""
    value_map = diffusivity_map(header)
    return "ModalityLUTSequence" in header or (value_map is not None and bool(value_map.table))


def _apply_map(stored: NDArray[Any], outside: NDArray[np.bool_] | None, value_map: Map, header: Dataset) -> Array:
    """Values in the map's unit. Pixels outside its range get the value of the rescale or LUT, which must be 0
    (background) or a diffusivity. outside: where pixels are padded.
    """
    values = value_map.values(stored)
    out_of_range = ~value_map.covers(stored)
    out_of_range = out_of_range if outside is None else out_of_range & ~outside
    if not out_of_range.any():
        return values
    rest_values, unit = _rescale_values(stored[out_of_range], header, find_rescale(header)), _modality_unit(header)
    rest_factor, map_factor = find_unit_factor(unit or ""), find_unit_factor(value_map.unit)
    if rest_factor is not None and map_factor is not None:
        values[out_of_range] = rest_values * np.float32(rest_factor / map_factor)
    elif not rest_values.any():
        values[out_of_range] = 0
    else:
        ends = " to ".join("any" if end is None else f"{end:g}" for end in (value_map.first, value_map.last))
        raise Unusable(
            "mixed_unit",
            f"the real-world value map in {value_map.unit} is for stored values {ends}, and {int(out_of_range.sum())} "
            "pixels "
            f"hold {np.min(stored[out_of_range])} to {np.max(stored[out_of_range])}, which are neither 0 nor in a "
            "unit. Export the "
            "series with a map for all values, or with PixelPaddingValue for those that are none.",
        )
    return values


def _modality_unit(dataset: Dataset) -> str | None:
    """RescaleType or the explanation of a modality LUT, if it names a unit; else a foreign unit of the value map."""
    tables = dataset.get("ModalityLUTSequence") or [Dataset()]
    for text in (dataset.get("RescaleType"), tables[0].get("LUTExplanation"), tables[0].get("ModalityLUTType")):
        if text and (find_unit_factor(str(text)) is not None or str(text) == "HU"):
            return str(text)
    return foreign_unit(dataset)
