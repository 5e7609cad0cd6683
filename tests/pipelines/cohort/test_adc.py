"""ADC in 1e-6 mm²/s, whatever the export said; refused where that is not certain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.cohort.adc import FACTORS, factor, to_adc
from pipelines.cohort.unusable import Unusable

TISSUE = np.array([0, 800, 1300, 1600, 2900], np.float32)


def reason(values: np.ndarray, declared: str | None = None, header: str | None = None) -> str:
    with pytest.raises(Unusable) as caught:
        to_adc(values, declared=declared, header_unit=header)
    return caught.value.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("um2/s", 1),
        ("µm2/s", 1),
        ("μm²/s", 1),
        ("mm2/s", 1e6),
        ("mm^2/s", 1e6),
        ("1e-6 mm2/s", 1),
        ("1e-5 mm2/s", 10),
        ("1e-3 mm2/s", 1e3),
        ("1.0e-3 mm2/s", 1e3),
        ("10*-6.mm2/s", 1),
        ("10*-3.mm2/s", 1e3),
        ("10^-3 mm^2/s", 1e3),
        ("x10-6 mm²/s", 1),
        ("× 10^-6 mm²/s", 1),
        ("10**-6 mm2/s", 1),
        ("ADC 1e-3 mm2/s", 1e3),
        ("ADC [mm2.s-1]", 1e6),
        ("um2/ms", 1e3),
        ("cm2/s", 1e8),
        ("ms", None),
        ("1", None),
        ("HU", None),
        ("mm", None),
        ("s/mm2", None),
        ("mm2", None),
        ("TE=65;sec=43200.1", None),
        ("{ADC}", None),
    ],
)
def test_units_in_headers(text: str, expected: float | None) -> None:
    found = factor(text)
    assert found is None if expected is None else found == pytest.approx(expected)


@settings(deadline=None)
@given(st.sampled_from(sorted(FACTORS)), st.floats(60, 5900), st.booleans())
def test_a_stated_unit_gives_the_same_adc_whatever_it_is(unit: str, adc: float, in_header: bool) -> None:
    values = np.array([0, adc, adc], np.float32) / np.float32(FACTORS[unit])
    stated = {"declared": "auto", "header_unit": unit} if in_header else {"declared": unit, "header_unit": None}
    found = to_adc(values, **stated)
    assert found.dtype == np.float32
    assert np.allclose(found, [0, adc, adc], rtol=1e-5)


@pytest.mark.parametrize("unit", FACTORS)
def test_the_only_plausible_unit_is_found(unit: str) -> None:
    values = TISSUE / np.float32(FACTORS[unit])
    assert np.allclose(to_adc(values, declared=None, header_unit=None), TISSUE, rtol=1e-5)


@settings(deadline=None)
@given(st.floats(1e-6, 1e7))
def test_a_guess_is_never_made_between_two_units(median: float) -> None:
    fitting = [scale for scale in FACTORS.values() if 300 <= scale * float(np.float32(median)) <= 3500]
    values = np.full(3, median, np.float32)
    if len(fitting) == 1:
        assert np.allclose(to_adc(values, declared="auto", header_unit=None), median * fitting[0], rtol=1e-4)
    else:
        assert reason(values, "auto") == "unit_unknown"


def test_two_plausible_units_are_refused() -> None:
    assert reason(np.full(3, 320, np.float32)) == "unit_unknown"  # 320 or 3200 x 1e-6 mm²/s
    assert reason(np.full(3, 20, np.float32)) == "unit_unknown"


@pytest.mark.parametrize("unsaid", ["1", "US", "", " unspecified "])
def test_headers_that_say_nothing_say_nothing(unsaid: str) -> None:
    assert np.allclose(to_adc(TISSUE, declared="auto", header_unit=unsaid), TISSUE)


def test_contradictions_and_nonsense_are_refused() -> None:
    assert reason(TISSUE, "1e-3 mm2/s") == "unit_implausible"
    assert reason(TISSUE, "auto", "1e-3 mm2/s") == "unit_implausible"
    assert reason(TISSUE / 100, "1e-6 mm2/s") == "unit_implausible"
    assert reason(TISSUE, "1e-6 mm2/s", "1e-3 mm2/s") == "unit_contradiction"
    assert reason(TISSUE, "auto", "HU") == "unit_unknown"
    assert reason(TISSUE, "1e-6 mm2/s", "ms") == "unit_unknown"
    assert reason(np.zeros(3, np.float32)) == "no_signal"
    assert reason(np.array([1000, np.nan], np.float32)) == "not_finite"
    assert reason(-TISSUE) == "unit_unknown"
    with pytest.raises(ValueError, match="unit must be one of auto"):
        to_adc(TISSUE, declared="um2/s", header_unit=None)


def test_a_header_that_agrees_with_the_settings_is_fine() -> None:
    assert np.allclose(to_adc(TISSUE, declared="1e-6 mm2/s", header_unit="um2/s"), TISSUE)
