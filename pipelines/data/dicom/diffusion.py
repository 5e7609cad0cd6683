"""Diffusion weighting: the b-value of an image, and the apparent diffusion coefficient of several images.

The standard element for b is (0018,9087). Older exports have it only in the vendor's private elements, whose block
number differs between files: a block is found by the name of its creator (DICOM PS3.5 7.8.1). Siemens also includes it
in the name of the pulse sequence, which de-identification often keeps; the CSA header adds nothing to these.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.tag import BaseTag, Tag

from pipelines.data.study import Array, Unusable
from privacy.deidentify.stored_values import B_VALUES, FIRST_BLOCKS, Private, private_element

Floats = NDArray[np.float64]

B_VALUE_TAGS: tuple[BaseTag, ...] = (
    *map(Tag, ("ImageType", "SequenceName", "DiffusionBValue", "DiffusionDirectionality")),
    *(Tag(group, block) for _, group, _ in B_VALUES for block in FIRST_BLOCKS),
    *(Tag(group, (block << 8) + low) for _, group, low in B_VALUES for block in FIRST_BLOCKS),
)
SEQUENCE_NAME = re.compile(r"\*?\w+_b(\d{1,5})(?:t|#\d+)?", re.ASCII)  # *ep_b50t, ep_b1000#12
MAPS = frozenset({"ADC", "EADC", "ADC_UNSPECIFIED", "EXP", "FA", "RA", "TENSOR", "DIFFUSION_ANISO", "CALC_BVALUE"})
GE_OFFSET = 1e9  # GE marks some images by adding it to b
HIGHEST_B = 20_000.0  # s/mm²; human scanners have no higher b-values
SMALLEST_SPREAD = 200.0  # s/mm²
LOWEST, HIGHEST = 45.0, 1050.0  # s/mm², of the images in a fit
SAME_B = 20.0  # s/mm²; with imaging gradients included, b-values differ slightly between directions


def b_value(dataset: Dataset) -> float | None:
    """The b-value, s/mm², of a single-frame image or of one frame.

    dataset: a file's header, read at least with `B_VALUE_TAGS`; or an item of PerFrameFunctionalGroupsSequence (or
    SharedFunctionalGroupsSequence) of a multi-frame file.

    Returns:
        0 also for images without diffusion weighting, if their vendor marks them so.
        None if the header has no b-value or an impossible one, and for computed maps (ADC, FA, synthetic b-values),
        whose headers may repeat the b-value of a source image.
    """
    if MAPS & _image_type_words(dataset):
        return None
    groups = dataset.get("MRDiffusionSequence") or [dataset]
    candidates = (
        _standard_b_value(groups[0]),
        *(_private_b_value(dataset, place) for place in B_VALUES),
        _sequence_name_b_value(dataset),
    )
    return next((b for b in candidates if b is not None), None)


def _image_type_words(dataset: Dataset) -> set[str]:
    """The words of ImageType and FrameType, in upper case."""
    frames = dataset.get("MRImageFrameTypeSequence") or [Dataset()]
    words: set[str] = set()
    for value in (dataset.get("ImageType"), frames[0].get("FrameType")):
        words |= {str(word).upper() for word in (value if isinstance(value, MultiValue | list) else [value])}
    return words


def _standard_b_value(dataset: Dataset) -> float | None:
    """The b-value of the standard element; 0 if the directionality is NONE."""
    b = _parse_b_value(dataset.get("DiffusionBValue"))
    return 0.0 if b is None and dataset.get("DiffusionDirectionality") == "NONE" else b


def _private_b_value(dataset: Dataset, place: Private) -> float | None:
    """The b-value of one vendor's private element; GE's offset is subtracted."""
    if (element := private_element(dataset, place)) is None:
        return None
    b = _parse_b_value(element.value)
    return (
        b
        if b is not None or place.creator != "GEMS_PARM_01"
        else _parse_b_value(_first_number(element.value) - GE_OFFSET)
    )


def _sequence_name_b_value(dataset: Dataset) -> float | None:
    """The b-value in the name of Siemens' pulse sequence."""
    match = SEQUENCE_NAME.fullmatch(str(dataset.get("SequenceName") or "").strip())
    return None if match is None else _parse_b_value(match[1])


def _parse_b_value(value: object) -> float | None:
    """A value as a b-value; None if it is no number from 0 to `HIGHEST_B`."""
    b = _first_number(value)
    return b if 0 <= b <= HIGHEST_B else None


def _first_number(value: object) -> float:
    """The first number of a value; NaN if there is none. Archives keep an element that they do not know as bytes."""
    if isinstance(value, bytes):
        text = _first_number(value.decode("latin-1").strip(" \0").split("\\"))
        return _unpack_number(value) if math.isnan(text) else text
    if isinstance(value, MultiValue | list | tuple):
        return _first_number(value[0]) if len(value) else math.nan
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def _unpack_number(value: bytes) -> float:
    """A little-endian number: elements of unknown type are only used in this byte order."""
    form = {4: "<f", 8: "<d"}.get(len(value))
    return math.nan if form is None else float(struct.unpack(form, value)[0])


def fit_adc(
    signals: Array,
    b_values: Sequence[float] | NDArray[np.floating],
    *,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    weighted: bool = False,
) -> Array:
    """Fit log S = log S0 - b ADC by least squares in every voxel: the monoexponential model, in closed form.

    Vendors fit different images: some include b = 0, where flowing blood adds signal, some b > 1000, where tissue is
    no longer monoexponential. Here images from `lowest` to `highest` are used, as PI-RADS v2.1 advises (50-100 up to
    800-1000; with imaging gradients included, b-values are slightly lower or higher). If they do not span 200 s/mm²,
    those below `lowest` are used, too; those above `highest` never are. Several images of one b-value (directions; at
    most 20 s/mm² apart) are first replaced by their geometric mean.

    weighted: each image has the weight S², which to first order compensates that the logarithm increases noise at small
    signals (Salvador et al., Hum Brain Mapp 2005;24:144). It is not the default: tissue is not quite monoexponential,
    so the weights shift ADC towards that of the low b-values. Inside two ProstateX glands (b 50/400/800) the scanner's
    own map is 3 % below the fit without weights, but 7 % below the fit with them.

    signals: (B, ...) magnitudes, any scale. b_values: (B,) s/mm², in any order.

    Returns:
        (...) float32, 1e-6 mm²/s. 0 where a signal is 0, negative or not finite, and where signal grows with b
        (diffusion coefficients are not negative).

    Raises:
        Unusable: `b_values` if fewer than two b-values that span at least 200 s/mm² are left.
        ValueError: not one b-value per image.
    """
    b = np.asarray(b_values, np.float64)
    if b.shape != signals.shape[:1]:
        raise ValueError(f"b_values must be one per image, {signals.shape[:1]}, found {b.shape}")
    shells = _group_by_b_value(b, lowest, highest)
    used = np.array([b[shell].mean() for shell in shells])
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.stack([np.log(signals[shell], dtype=np.float64).mean(axis=0) for shell in shells])
    valid = np.isfinite(logs).all(axis=0)
    logs = np.where(valid, logs, 0.0)
    logs -= logs.max(axis=0)
    weights = np.exp(2 * logs) if weighted else np.ones_like(logs)
    b_axis = used.reshape(-1, *[1] * valid.ndim)
    distance = b_axis - (weights * b_axis).sum(axis=0) / weights.sum(axis=0)
    slope = (weights * distance * logs).sum(axis=0) / (weights * distance**2).sum(axis=0)
    adc: Array = np.where(valid, np.maximum(-1e6 * slope, 0), 0).astype(np.float32)
    return adc


def select_b_values(b_values: Sequence[float]) -> tuple[float, ...]:
    """Those b-values that `fit_adc` uses, ascending, each once. Raises: Unusable: as `fit_adc`."""
    b = np.unique(np.asarray(b_values, np.float64))
    return tuple(float(b[k]) for shell in _group_by_b_value(b, LOWEST, HIGHEST) for k in shell)


def _group_by_b_value(b_values: Floats, lowest: float, highest: float) -> list[list[int]]:
    """Positions of the images in the fit: one list per b-value, ascending."""
    for low in (lowest, 0.0):
        positions = [int(k) for k in np.argsort(b_values, kind="stable") if low <= b_values[k] <= highest]
        if positions and b_values[positions[-1]] - b_values[positions[0]] >= SMALLEST_SPREAD:
            break
    else:
        raise Unusable(
            "b_values",
            f"the images have b-values {np.unique(b_values).tolist()[:9]}; at least two from 0 to {highest:g} s/mm2 "
            f"that are {SMALLEST_SPREAD:g} s/mm2 apart are needed. Send the whole diffusion series, or an ADC map.",
        )
    shells = [[positions[0]]]
    for k in positions[1:]:
        if b_values[k] - b_values[shells[-1][0]] <= SAME_B:
            shells[-1].append(k)
        else:
            shells.append([k])
    return shells
