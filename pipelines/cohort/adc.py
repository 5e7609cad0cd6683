"""Apparent diffusion coefficients in one unit, 1e-6 mm²/s, whatever the export said; or the study is refused.

Vendors export ADC as integers in 1e-6 mm²/s, as rescaled values in 1e-3 mm²/s, or without saying. Units in headers are
UCUM codes (DICOM PS3.16 CID 7273 names um2/s) or free text such as "1e-3 mm2/s".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from pipelines.cohort.study import Array
from pipelines.cohort.unusable import Unusable

Unit: TypeAlias = Literal["auto", "1e-6 mm2/s", "1e-5 mm2/s", "1e-3 mm2/s", "mm2/s"]

FACTORS: Mapping[str, float] = {"1e-6 mm2/s": 1.0, "1e-5 mm2/s": 10.0, "1e-3 mm2/s": 1e3, "mm2/s": 1e6}
EXPECTED = (300.0, 3500.0)  # median of the nonzero values of a body part, 1e-6 mm²/s; free water at 37 °C is about 3000
POSSIBLE = (50.0, 6000.0)
UNSAID = frozenset({"", "1", "us", "no units", "unspecified", "261665006", "unknown"})  # what headers say when they do not say a unit
AREA = {"nm": 1e-6, "um": 1.0, "µm": 1.0, "μm": 1.0, "mm": 1e6, "cm": 1e8, "m": 1e12}  # -> 1e-6 mm²
TIME = {"s": 1.0, "ms": 1e-3}  # -> s
PATTERN = re.compile(
    r"(?:(?:[x×]?\s*10\s*[*^]{0,2}\s*|1\.?0*e)(?P<power>[+-]?\s*\d{1,2})\s*[.*·]?\s*)?"
    r"(?<![a-z])(?P<length>nm|um|µm|μm|mm|cm|m)\s*\^?(?:2|²)\s*(?:/\s*|\.\s*)(?P<time>ms|s)(?P<inverse>-1)?(?![a-z0-9])"
)


def factor(text: str) -> float | None:
    """What turns a value in the unit named somewhere in `text` into 1e-6 mm²/s; None if `text` names no diffusivity.

    Understands UCUM ("um2/s", "10*-3.mm2/s") and common prose ("ADC 1e-3 mm2/s", "x10^-6 mm²/s", "mm2.s-1").
    """
    found = PATTERN.search(text.lower())
    if found is None:
        return None
    power = int((found["power"] or "0").replace(" ", ""))
    return float(f"{AREA[found['length']] / TIME[found['time']] * 10.0**power:.6g}")


def to_adc(values: Array, *, declared: str | None, header_unit: str | None) -> Array:
    """Bring ADC values into 1e-6 mm²/s.

    values: any shape, after the file's own rescale. declared: a `Unit` from the settings; None or "auto" = none.
    header_unit: what the file says, None = nothing. Without either, the unit is the one among `FACTORS` that brings
    the median of the nonzero values into 300..3500, if there is exactly one.

    Returns:
        float32 array of the same shape.

    Raises:
        ValueError: `declared` is not a `Unit`.
        Unusable: `not_finite`, `no_signal`, `unit_unknown`, `unit_contradiction` (settings and header differ) or
            `unit_implausible` (the stated unit gives a median outside 50..6000).
    """
    if declared not in (None, "auto", *FACTORS):
        raise ValueError(f"unit must be one of auto, {', '.join(FACTORS)}, found {declared!r}")
    median = _median(values)
    stated = _stated(declared, header_unit)
    scale = _guessed(median) if stated is None else stated
    if not POSSIBLE[0] <= scale * median <= POSSIBLE[1]:
        raise Unusable(
            "unit_implausible",
            f"the unit {header_unit if declared in (None, 'auto') else declared!r} makes the median of the nonzero "
            f"values {scale * median:.4g} x 1e-6 mm2/s; {POSSIBLE[0]:g} to {POSSIBLE[1]:g} is possible. Check `unit`, "
            "and that this is an ADC map.",
        )
    return (values * np.float32(scale)).astype(np.float32, copy=False)


def _median(values: Array) -> float:
    bad = int(np.size(values) - np.count_nonzero(np.isfinite(values)))
    if bad:
        raise Unusable("not_finite", f"{bad} values are NaN or infinite; none may be. Set them to 0 in the export.")
    nonzero = values[values != 0]
    if not nonzero.size:
        raise Unusable("no_signal", "all values are 0. Check that the export is whole.")
    return float(np.median(nonzero))


def _stated(declared: str | None, header_unit: str | None) -> float | None:
    said = None if header_unit is None or header_unit.strip().lower() in UNSAID else factor(header_unit)
    if said is None and header_unit is not None and header_unit.strip().lower() not in UNSAID:
        raise Unusable(
            "unit_unknown",
            f"the header says that values are in {header_unit!r}; a diffusivity such as um2/s is needed. "
            "Narrow `select` down to ADC maps.",
        )
    if declared in (None, "auto"):
        return said
    wanted = FACTORS[str(declared)]
    if said is not None and said != wanted:
        raise Unusable(
            "unit_contradiction",
            f"the settings say {declared!r}, the header says {header_unit!r}. With unit: auto the header is followed.",
        )
    return wanted


def _guessed(median: float) -> float:
    fitting = [scale for scale in FACTORS.values() if EXPECTED[0] <= scale * median <= EXPECTED[1]]
    if len(fitting) != 1:
        raise Unusable(
            "unit_unknown",
            f"the file names no unit, and the median of its nonzero values, {median:.4g}, is plausible "
            f"({EXPECTED[0]:g}..{EXPECTED[1]:g} x 1e-6 mm2/s) in {len(fitting)} of the units {', '.join(FACTORS)}; "
            "exactly one is needed. Say which with `unit`, if this is an ADC map.",
        )
    return fitting[0]
