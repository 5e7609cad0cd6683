"""Stored DICOM pixels become real values: through the real-world value map if it gives a diffusivity, or else through
the modality LUT (DICOM PS3.3 C.7.6.16.2.11 and C.11.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_modality_lut

from pipelines.cohort.adc import UNSAID, factor
from pipelines.cohort.study import Array


def real_values(dataset: Dataset) -> tuple[Array, str | None]:
    """Decode one image.

    Returns:
        (rows, columns) float32 values, and the unit that the header gives them, None if it gives none.

    Raises:
        Exception: whatever the decoder raises for damaged pixels; the caller turns it into `Unusable`.
    """
    stored = dataset.pixel_array
    item = _diffusivity_map(dataset)
    if item is not None and factor(_code(item)) is not None and _covers(item, stored):
        return _mapped(stored, item), _code(item)
    return np.asarray(apply_modality_lut(stored, dataset), np.float32), _modality_unit(dataset, item)


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
    first, last = (item.get(f"RealWorldValue{end}ValueMapped") for end in ("First", "Last"))
    whole = first is None or last is None
    return whole or (float(first) <= float(np.min(stored)) and float(np.max(stored)) <= float(last))


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
