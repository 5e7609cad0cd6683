"""ADC in 1e-6 mm²/s, whatever the export said; refused where that is not certain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.adc import AT, BOUNDS, FACTORS, INFERRED, convert_to_adc, find_unit_factor
from pipelines.data.study import Unusable

TISSUE = np.array([0, 800, 1300, 1600, 2900], np.float32)


def reason(values: np.ndarray, declared: str | None = None, header: str | None = None) -> str:
    with pytest.raises(Unusable) as caught:
        convert_to_adc(values, declared=declared, header_unit=header)
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
    found = find_unit_factor(text)
    assert found is None if expected is None else found == pytest.approx(expected)


@settings(deadline=None)
@given(st.sampled_from(sorted(FACTORS)), st.floats(950, 1950), st.booleans())
def test_a_stated_unit_gives_the_same_adc_whatever_it_is(unit: str, adc: float, in_header: bool) -> None:
    values = np.array([0, adc, adc], np.float32) / np.float32(FACTORS[unit])
    stated = {"declared": "auto", "header_unit": unit} if in_header else {"declared": unit, "header_unit": None}
    found = convert_to_adc(values, **stated)
    assert found.values.dtype == np.float32
    assert np.allclose(found.values, [0, adc, adc], rtol=1e-5)
    assert found.percentiles == pytest.approx((adc, adc, adc), rel=1e-5)
    assert unit in found.evidence and f"{adc:.4g}" in found.evidence


@pytest.mark.parametrize("unit", INFERRED)
def test_a_unit_that_vendors_export_without_a_word_is_inferred_and_told(unit: str) -> None:
    found = convert_to_adc(TISSUE / np.float32(FACTORS[unit]), declared=None, header_unit=None)
    assert np.allclose(found.values, TISSUE, rtol=1e-5) and found.scale == FACTORS[unit]
    assert found.evidence.startswith(f"unit inferred, {unit}: values at 1, 50, 99 % are ")


def plausible(values: np.ndarray) -> bool:
    return all(low <= found <= high for found, (low, high) in zip(np.percentile(values, AT), BOUNDS, strict=True))


@settings(deadline=None)
@given(st.lists(st.floats(1, 6000), min_size=3, max_size=9), st.sampled_from([1e-6, 1e-3, 0.01, 0.1, 1.0, 10.0, 1e3]))
def test_a_unit_is_inferred_only_if_tissue_has_such_values_in_it(adc: list[float], by: float) -> None:
    values = np.array(adc, np.float32) * np.float32(by)
    fitting = [FACTORS[unit] for unit in INFERRED if plausible(values.astype(float) * FACTORS[unit])]
    if fitting:
        assert convert_to_adc(values, declared="auto", header_unit=None).scale == fitting[0]
        assert len(fitting) == 1
    else:
        assert reason(values, "auto") == "unit_unknown"


def test_a_hundredth_of_a_millimetre_squared_is_never_guessed() -> None:
    values = TISSUE / np.float32(10)
    assert "1e-5 mm2/s" not in INFERRED
    assert reason(values) == "unit_unknown"
    assert np.allclose(convert_to_adc(values, declared="1e-5 mm2/s", header_unit=None).values, TISSUE, rtol=1e-5)


def test_a_refusal_says_the_numbers_that_were_found() -> None:
    for stated in ({"declared": None, "header_unit": None}, {"declared": "1e-6 mm2/s", "header_unit": None}):
        with pytest.raises(Unusable) as caught:
            convert_to_adc(np.linspace(0, 400, 401, dtype=np.float32), **stated)
        assert "4.99, 200.5, 396" in caught.value.detail and "900 to 6000" in caught.value.detail


@pytest.mark.parametrize("unsaid", ["1", "US", "", " unspecified "])
def test_headers_that_say_nothing_say_nothing(unsaid: str) -> None:
    assert np.allclose(convert_to_adc(TISSUE, declared="auto", header_unit=unsaid).values, TISSUE)


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
        convert_to_adc(TISSUE, declared="um2/s", header_unit=None)


def test_a_header_that_agrees_with_the_settings_is_fine() -> None:
    assert np.allclose(convert_to_adc(TISSUE, declared="1e-6 mm2/s", header_unit="um2/s").values, TISSUE)
