"""Convert apparent diffusion coefficients to 1e-6 mm²/s, whatever the unit of the export, or refuse the study.

Vendors export ADC as integers in 1e-6 mm²/s, as rescaled values in 1e-3 mm²/s, or without a unit. `quantity` checks
first that an image is an ADC map at all, which values alone cannot show. Units in headers are
UCUM codes (DICOM PS3.16 CID 7273 names um2/s) or free text such as "1e-3 mm2/s".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from pipelines.data.study import Array, Unusable

Percentiles: TypeAlias = tuple[float, float, float]

FACTORS: Mapping[str, float] = {"1e-6 mm2/s": 1.0, "1e-5 mm2/s": 10.0, "1e-3 mm2/s": 1e3, "mm2/s": 1e6}
INFERRED = ("1e-6 mm2/s", "1e-3 mm2/s", "mm2/s")
"""Units in which ADC is exported without a stated unit: Siemens and GE; Philips; FSL, MRtrix and DIPY."""
AT = (1, 50, 99)  # per cent
BOUNDS = ((-1000.0, 2000.0), (200.0, 3300.0), (900.0, 6000.0))
"""Allowed ranges of the 1st, 50th and 99th percentile of the nonzero values, 1e-6 mm²/s.

Free water at 37 °C has 3000 to 3200, and no tissue has more; noise and the choice of b-values widen this range, and
noise makes some values negative. Measured figures are in docs/reference/formats.md.
"""
# Header texts that state no unit; 261665006 is SNOMED's "unknown".
UNSAID = frozenset({"", "1", "us", "no units", "unspecified", "261665006", "unknown"})
AREA = {"nm": 1e-6, "um": 1.0, "µm": 1.0, "μm": 1.0, "mm": 1e6, "cm": 1e8, "m": 1e12}  # -> 1e-6 mm²
TIME = {"s": 1.0, "ms": 1e-3}  # -> s
PATTERN = re.compile(
    r"(?:(?:[x×]?\s*10\s*[*^]{0,2}\s*|1\.?0*e)(?P<power>[+-]?\s*\d{1,2})\s*[.*·]?\s*)?"
    r"(?<![a-z])(?P<length>nm|um|µm|μm|mm|cm|m)\s*\^?(?:2|²)\s*(?:/\s*|\.\s*)(?P<time>ms|s)(?P<inverse>-1)?(?![a-z0-9])"
)


def find_unit_factor(text: str) -> float | None:
    """The factor from the unit named somewhere in `text` to 1e-6 mm²/s; None if `text` names no unit of diffusivity.

    Understands UCUM ("um2/s", "10*-3.mm2/s") and common prose ("ADC 1e-3 mm2/s", "x10^-6 mm²/s", "mm2.s-1").
    """
    match = PATTERN.search(text.lower())
    if match is None:
        return None
    power = int((match["power"] or "0").replace(" ", ""))
    return float(f"{AREA[match['length']] / TIME[match['time']] * 10.0**power:.6g}")


class Converted(NamedTuple):
    """values: float32, 1e-6 mm²/s. scale: the factor applied to the file's values. percentiles: the 1st, 50th and
    99th of the nonzero values, 1e-6 mm²/s. evidence: how the unit is known.
    """

    values: Array
    scale: float
    percentiles: Percentiles
    evidence: str


def convert_to_adc(values: Array, *, declared: str | None, header_unit: str | None) -> Converted:
    """Bring ADC values into 1e-6 mm²/s.

    values: any shape, after the file's own rescale, of an image that is known to be an ADC map. declared: a `Unit` from
    the settings; None or "auto" = none. header_unit: the unit in the file, None = none. Without either, the unit is
    the one in `INFERRED` that brings the percentiles into the range of tissue (`BOUNDS`).

    Raises:
        ValueError: `declared` is not a `Unit`.
        Unusable: `not_finite`, `no_signal`, `unit_unknown`, `unit_contradiction` (settings and header differ) or
            `unit_implausible` (in the stated unit the percentiles are outside the range of tissue).
    """
    if declared not in (None, "auto", *FACTORS):
        raise ValueError(f"unit must be one of auto, {', '.join(FACTORS)}, found {declared!r}")
    measured = compute_percentiles(values)
    stated = _find_stated_scale(declared, header_unit)
    if stated is None:
        scale, evidence = _infer_scale(measured)
    else:
        scale = stated
        evidence = f"unit {declared} by the settings" if declared not in (None, "auto") else f"unit {header_unit!r}"
        if not _is_plausible(measured, scale):
            raise Unusable(
                "unit_implausible",
                f"with the {evidence}, 1, 50 and 99 % of the values that are not 0 lie below "
                f"{_format_percentiles(measured, scale)} x 1e-6 mm2/s; tissue has {_format_bounds()}. Check `unit`, "
                "and that this "
                "is an ADC map.",
            )
    low, middle, high = (scale * value for value in measured)
    evidence += f": values at 1, 50, 99 % are {_format_percentiles(measured, scale)} x 1e-6 mm2/s"
    return Converted((values * np.float32(scale)).astype(np.float32, copy=False), scale, (low, middle, high), evidence)


def compute_percentiles(values: Array) -> Percentiles:
    """The 1st, 50th and 99th percentile of the nonzero values. Raises: Unusable: `not_finite`, `no_signal`."""
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise Unusable("not_finite", f"{bad} values are NaN or infinite; none may be. Set them to 0 in the export.")
    nonzero = values[values != 0]
    if not nonzero.size:
        raise Unusable("no_signal", "all values are 0. Check that the export is whole.")
    low, middle, high = map(float, np.percentile(nonzero, AT))
    return low, middle, high


def _is_plausible(quantiles: Percentiles, scale: float) -> bool:
    """Whether all three percentiles, times `scale`, lie within `BOUNDS`."""
    return all(low <= scale * value <= high for value, (low, high) in zip(quantiles, BOUNDS, strict=True))


def _format_percentiles(quantiles: Percentiles, scale: float) -> str:
    """The three percentiles in 1e-6 mm²/s, for a message."""
    return ", ".join(f"{scale * value:.4g}" for value in quantiles)


def _format_bounds() -> str:
    """The allowed ranges of the three percentiles, for a message."""
    return ", ".join(f"{low:g} to {high:g}" for low, high in BOUNDS)


def _find_stated_scale(declared: str | None, header_unit: str | None) -> float | None:
    """The factor to 1e-6 mm²/s by settings or header; None if neither states a unit. Raises: Unusable."""
    header_scale = (
        None if header_unit is None or header_unit.strip().lower() in UNSAID else find_unit_factor(header_unit)
    )
    if header_scale is None and header_unit is not None and header_unit.strip().lower() not in UNSAID:
        raise Unusable(
            "unit_unknown",
            f"the header says that values are in {header_unit!r}; a diffusivity such as um2/s is needed. "
            "Narrow `select` down to ADC maps.",
        )
    if declared in (None, "auto"):
        return header_scale
    declared_scale = FACTORS[str(declared)]
    if header_scale is not None and header_scale != declared_scale:
        raise Unusable(
            "unit_contradiction",
            f"the settings say {declared!r}, the header says {header_unit!r}. With unit: auto the header is followed.",
        )
    return declared_scale


def _infer_scale(quantiles: Percentiles) -> tuple[float, str]:
    """The factor of the one unit in which the percentiles are plausible, and the evidence. Raises: Unusable."""
    fitting = [unit for unit in INFERRED if _is_plausible(quantiles, FACTORS[unit])]
    if len(fitting) != 1:  # never more than one, because the bounds are less than a factor of 1000 apart
        raise Unusable(
            "unit_unknown",
            "the file names no unit, and 1, 50 and 99 % of its values that are not 0 lie below "
            f"{_format_percentiles(quantiles, 1)}, which is no tissue ({_format_bounds()} x 1e-6 mm2/s) in any of the "
            "units "
            f"{', '.join(INFERRED)}. Set the unit with `unit`, if this is an ADC map.",
        )
    return FACTORS[fitting[0]], f"unit inferred, {fitting[0]}"
