"""Rescales, value maps, vendors' scales and padding whose headers say less or more than the standard asks for, as laws:
the default of what is missing holds everywhere, and what leaves a value open is refused by name; never half values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from enhanced_file import enhanced
from pydicom.dataset import Dataset
from small_series import COLUMNS, ROWS, SLICES, Series

from pipelines.data.dicom.reader import index_dicom
from pipelines.data.dicom.real_world import check_scales
from pipelines.data.dicom.stored_values import find_padding, vendor_slope
from pipelines.data.sources import DicomSource
from pipelines.data.study import Rejected, Study, Unusable
from pipelines.data.writing.dicom_header import Maker
from pipelines.data.writing.dicom_series import series_files
from privacy.deidentify.dicom_image import as_bytes, deidentify_image
from privacy.deidentify.profile import Profile
from privacy.deidentify.stored_values import (
    B_VALUES,
    PADDING_ENDS,
    PALETTE,
    RESCALE,
    SLICE_COUNTS,
    VENDOR_HEADER,
    VENDOR_SLOPE,
    Private,
    private_element,
    rescale_of,
)

KEY = bytes(range(32))
MAKER = Maker(KEY, Profile(), "north", "zscore", "0" * 16)
Change = Callable[[int, Dataset], None]
LAYOUTS = ("classic", "enhanced", "shared", "legacy")
TRUE = 600 + np.stack([Series().stored(k) for k in range(SLICES)]).astype(float).transpose(2, 1, 0)  # (I, J, K)
BACKGROUND = np.arange(ROWS) == 0


def read(folder: Path, *, adc: bool = False, **options: Any) -> tuple[list[Study], list[Rejected]]:
    index = index_dicom(DicomSource(folder=str(folder), **options), adc=adc)
    loaded, rejected = list[Study](), list(index.rejected)
    for candidate in index.candidates:
        try:
            loaded.append(candidate.load())
        except Unusable as error:
            rejected.append(Rejected(candidate.study, error.reason, error.detail))
    return loaded, rejected


def only(folder: Path, **options: Any) -> Study:
    (study,), rejected = read(folder, **options)
    assert not rejected, rejected
    return study


def safe(folder: Path, out: Path) -> Path:
    out.mkdir()
    for number, path in enumerate(sorted(folder.rglob("*.dcm"))):
        (out / f"{number:04d}.dcm").write_bytes(as_bytes(deidentify_image(pydicom.dcmread(path), key=KEY)))
    return out


def read_twice(folder: Path, out: Path, **options: Any) -> Study:
    """The only study of a folder, which is the same after de-identification."""
    study, again = only(folder, **options), only(safe(folder, out), **options)
    assert np.array_equal(study.image.values, again.image.values) and study.unit == again.unit
    return study


def refused_twice(folder: Path, out: Path, **options: Any) -> Rejected:
    """Why a folder's only study is refused, for the same reason before and after de-identification."""
    (studies, (found,)), (others, (again,)) = read(folder, **options), read(safe(folder, out), **options)
    assert not studies and not others and found.reason == again.reason and found.detail.endswith(".")
    return found


def translated(folder: Path, out: Path, by: float) -> tuple[Study, np.ndarray]:
    """What is read of a translated study, whose foreground was changed by a number; and what is expected."""
    (candidate,) = index_dicom(DicomSource(folder=str(folder))).candidates
    study = candidate.load()
    values = np.asarray(study.image.values, np.float32)
    change = np.where(values == 0, 0, by).astype(np.float32)
    out.mkdir()
    for name, data in series_files(candidate, study, change, MAKER):
        (out / name).write_bytes(data)
    after = only(out)
    assert after.unit == study.unit
    return after, values + change


def made(folder: Path, layout: str, change: Change) -> Path:
    """A series of stored values 600 to 1053, as classic files or as an enhanced one."""

    def each(k: int, d: Dataset) -> None:
        d.PixelData = (600 + Series().stored(k)).astype("<u2").tobytes()
        change(k, d)

    if layout == "classic":
        return Series(change=each).write(folder)
    folder.mkdir(parents=True)
    whole = enhanced(
        [Series(change=each).dataset(k) for k in range(SLICES)],
        shared=("RescaleSlope", "RescaleIntercept") if layout == "shared" else (),
    )
    if layout == "legacy":
        for group in whole.PerFrameFunctionalGroupsSequence:
            if item := group.pop("PixelValueTransformationSequence", None):
                group.UnassignedPerFrameConvertedAttributesSequence = item.value
    whole.save_as(folder / "e.dcm", enforce_file_format=True)
    return folder


def divided(dataset: Dataset, by: float, less: float = 0.0) -> None:
    """The same values in other stored numbers."""
    pixels = (np.frombuffer(dataset.PixelData, "<u2") - less) / by
    dataset.PixelData = np.rint(pixels).astype("<u2").tobytes()


# -- a rescale of which one number is missing -------------------------------------------------------------------------

LINES = {"slope": ({"RescaleSlope": "2"}, 2.0, 0.0), "intercept": ({"RescaleIntercept": "-100"}, 1.0, -100.0)}


def test_a_rescale_is_one_pair_for_whoever_asks() -> None:
    cases: dict[tuple[Any, ...], Any] = {
        (): None, (("RescaleSlope", 2),): (2, 0), (("RescaleIntercept", -7),): (1, -7),
        (("RescaleSlope", "3"), ("RescaleIntercept", "5")): (3, 5),
    }  # fmt: skip
    for given, expected in cases.items():
        header = Dataset()
        for keyword, value in given:
            setattr(header, keyword, value)
        assert rescale_of(header) == rescale_of(dict(given)) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LINES)
def test_a_number_that_is_missing_everywhere_has_its_default(name: str, layout: str, tmp_path: Path) -> None:
    said, slope, intercept = LINES[name]

    def change(k: int, d: Dataset) -> None:
        divided(d, slope, intercept)
        for keyword, text in said.items():
            setattr(d, keyword, text)

    folder = made(tmp_path / "files", layout, change)
    assert np.abs(read_twice(folder, tmp_path / "safe").image.values - TRUE).max() <= slope / 2
    for by in (0.0, 30.0, 90000.0):  # the last needs another coding, and so another rescale
        after, expected = translated(folder, tmp_path / f"out{by:g}", by)
        assert np.abs(after.image.values - expected).max() <= max(slope, np.ptp(expected) / 30000)


@pytest.mark.parametrize("layout", ["classic", "enhanced", "legacy"])
@pytest.mark.parametrize("odd", [{2}, {0, 1, 3, 4}], ids=["one lacks it", "one has it"])
@pytest.mark.parametrize("missing", RESCALE)
def test_a_number_that_is_missing_in_some_images_is_refused_unless_it_changes_nothing(
    missing: str, odd: set[int], layout: str, tmp_path: Path
) -> None:
    def change(k: int, d: Dataset, numbers: dict[str, str]) -> None:
        for keyword, text in numbers.items():
            if keyword != missing or k not in odd:
                setattr(d, keyword, text)

    told = {"RescaleSlope": "2", "RescaleIntercept": "-100"}
    found = refused_twice(
        made(tmp_path / "a", layout, lambda k, d: change(k, d, told)), tmp_path / "a safe", adc=layout == "classic"
    )
    assert found.reason == "mixed_values" and f"({missing})" in found.detail and "unlike most" in found.detail
    neutral = told | {missing: f"{RESCALE[missing]:g}"}
    values = read_twice(made(tmp_path / "b", layout, lambda k, d: change(k, d, neutral)), tmp_path / "b safe")
    assert np.array_equal(values.image.values, TRUE * 2 if missing == "RescaleIntercept" else TRUE - 100)


def weighted(folder: Path, change: Callable[[int, Dataset], None], b_values: tuple[int, ...] = (0, 800)) -> Path:
    """A diffusion series of ADC 1000 x 1e-6 mm²/s; the change may scale the pixels."""
    for number, b in enumerate(b_values):

        def each(k: int, d: Dataset, b: int = b, number: int = number) -> None:
            d.ImageType, d.DiffusionBValue = ["ORIGINAL", "PRIMARY", "M"], float(b)
            d.SOPInstanceUID = d.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.4.{number}.{k + 1}"
            d.PixelData = np.full((ROWS, COLUMNS), round(20000 * np.exp(-b * 1e-3)), "<u2").tobytes()
            change(b, d)

        Series(change=each).write(folder / f"b{number}")
    return folder


@pytest.mark.parametrize("missing", [{0}, {800}, {0, 800}])
def test_a_fit_uses_the_slope_of_images_without_an_intercept(missing: set[int], tmp_path: Path) -> None:
    def change(b: int, d: Dataset) -> None:
        slope = 4 if b else 1
        divided(d, slope)
        d.RescaleSlope = str(slope)
        if b not in missing:
            d.RescaleIntercept = "0"

    study = read_twice(weighted(tmp_path / "files", change), tmp_path / "safe", derive="adc")
    assert np.allclose(study.image.values, 1000, atol=2)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("odd", [{2}, set(range(SLICES))], ids=["in one", "in all"])
@pytest.mark.parametrize(
    ("keyword", "text", "told"), [("RescaleSlope", "0", "0"), ("RescaleSlope", "", "empty"),
                                  ("RescaleSlope", "1\\2", "[1, 2]"), ("RescaleIntercept", "", "empty")],
)  # fmt: skip
def test_a_number_that_is_none_is_refused_by_name(
    keyword: str, text: str, told: str, odd: set[int], layout: str, tmp_path: Path
) -> None:
    if layout == "shared" and odd == {2}:
        pytest.skip("what frames share is in all of them")

    def change(k: int, d: Dataset) -> None:
        d.RescaleSlope, d.RescaleIntercept = "1", "0"
        if k in odd:
            d[keyword].value = text

    found = refused_twice(made(tmp_path / "files", layout, change), tmp_path / "safe")
    assert found.reason == "bad_tag" and f"{keyword} is {told}" in found.detail and "Error" not in found.detail


# -- real-world value maps --------------------------------------------------------------------------------------------


def put_map(dataset: Dataset, unit: str = "um2/s", first: int = 0, last: int = 4000, **numbers: Any) -> Dataset:
    """A value map that is added to those that are there."""
    code, item = Dataset(), Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = unit, "UCUM", "no units" if unit == "1" else unit
    item.RealWorldValueFirstValueMapped, item.RealWorldValueLastValueMapped = first, last
    for word, value in numbers.items():
        setattr(item, f"RealWorldValue{word}", value)
    item.LUTExplanation, item.LUTLabel, item.MeasurementUnitsCodeSequence = "ADC", "ADC", [code]
    dataset.RealWorldValueMappingSequence = [*(dataset.get("RealWorldValueMappingSequence") or []), item]
    return item


def halves(dataset: Dataset, **more: Any) -> None:
    """Half values in stored pixels of which the first row is 0, and a map that doubles them."""
    pixels = np.frombuffer(dataset.PixelData, "<u2").reshape(ROWS, COLUMNS) // 2
    pixels[BACKGROUND] = 0
    dataset.PixelData = pixels.tobytes()
    put_map(dataset, **{"Slope": 2.0, "Intercept": 0.0} | more)


DOUBLED = np.where(BACKGROUND[None, :, None], 0, TRUE // 2 * 2)


@pytest.mark.repeats(2)
@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("straight", [True, False])
def test_a_map_by_a_table_is_applied(straight: bool, layout: str, tmp_path: Path) -> None:
    first, last = int(TRUE.min()), int(TRUE.max())
    stored = np.arange(first, last + 1)
    table = 2.0 * stored if straight else 500 + stored**1.1

    def change(k: int, d: Dataset) -> None:
        put_map(d, first=first, last=last, LUTData=table.tolist())

    study = read_twice(folder := made(tmp_path / "files", layout, change), tmp_path / "safe", adc=True)
    assert study.unit == "um2/s" and np.allclose(study.image.values, table[TRUE.astype(int) - first])
    for by in (0.0, 30.0, 90000.0):
        after, expected = translated(folder, tmp_path / f"out{by:g}", by)
        assert np.abs(after.image.values - expected).max() <= max(0.1, expected.max() / 65000)  # half a step


@pytest.mark.repeats(3)
@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("intercept", [0.0, -50.0])
@pytest.mark.parametrize("whole", [set(), {0, 4}], ids=["a row", "a row, and whole slices"])
def test_background_beyond_a_map_stays_background_and_the_map_is_used(
    whole: set[int], intercept: float, layout: str, tmp_path: Path
) -> None:
    def change(k: int, d: Dataset) -> None:
        halves(d, first=1, last=4095, Intercept=intercept)
        if k in whole:
            d.PixelData = bytes(2 * ROWS * COLUMNS)

    folder = made(tmp_path / "files", layout, change)
    study = read_twice(folder, tmp_path / "safe", adc=True)
    expected = np.where(BACKGROUND[None, :, None], 0, DOUBLED + intercept)
    expected[:, :, sorted(whole)] = 0
    assert study.unit == "um2/s" and np.array_equal(study.image.values, expected)
    for by in (0.0, 30.0, -300.0, 90000.0):
        after, wanted = translated(folder, tmp_path / f"out{by:g}", by)
        assert np.abs(after.image.values - wanted).max() <= max(0.1, wanted.max() / 65000)
        assert (after.image.values[expected == 0] == 0).all()


@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("ends", [(1, 400), (450, 4000), (0, 100), (2000, 3000)])
def test_a_map_that_misses_tissue_is_refused(ends: tuple[int, int], layout: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "files", layout, lambda k, d: halves(d, first=ends[0], last=ends[1]))
    for adc in (False, True):
        found = refused_twice(folder, tmp_path / f"safe {adc}", adc=adc)
        assert found.reason == "mixed_unit" and f"{ends[0]} to {ends[1]}" in found.detail


def test_beyond_a_map_a_rescale_in_a_diffusivity_counts(tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        halves(d, first=1, last=400)
        d.RescaleSlope, d.RescaleIntercept, d.RescaleType = "0.002", "0", "1e-3 mm2/s"

    study = read_twice(made(tmp_path / "files", "classic", change), tmp_path / "safe", adc=True)
    assert study.unit == "um2/s" and np.allclose(study.image.values, DOUBLED)


BAD_MAPS: dict[str, dict[str, Any]] = {
    "neither slope nor table": {},
    "both RealWorldValueSlope and RealWorldValueLUTData": {
        "Slope": 2.0, "Intercept": 0.0, "LUTData": [2.0 * k for k in range(101)], "last": 100,
    },
    "RealWorldValueLUTData has 10 values": {"LUTData": [2.0] * 10},
    "RealWorldValueSlope is 0": {"Slope": 0.0, "Intercept": 0.0},
    "RealWorldValueSlope is nan": {"Slope": float("nan"), "Intercept": 0.0},
    "RealWorldValueIntercept is inf": {"Slope": 2.0, "Intercept": float("inf")},
    "from 4000 to 0": {"Slope": 2.0, "Intercept": 0.0, "first": 4000, "last": 0},
}  # fmt: skip


@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("told", BAD_MAPS)
def test_a_map_without_its_numbers_is_refused(told: str, layout: str, tmp_path: Path) -> None:
    found = refused_twice(
        made(tmp_path / "files", layout, lambda k, d: put_map(d, **BAD_MAPS[told]) and None), tmp_path / "safe"
    )
    assert found.reason == "bad_tag" and told in found.detail


@pytest.mark.parametrize("other", [{"Slope": 3.0}, {"Intercept": 1.0}, {"last": 3000}, {"unit": "10*-3.mm2/s"}])
def test_maps_to_diffusivities_that_differ_are_refused_and_equal_ones_are_one(
    other: dict[str, Any], tmp_path: Path
) -> None:
    def change(k: int, d: Dataset, other: dict[str, Any]) -> None:
        divided(d, 2)
        put_map(d, **{"Slope": 2.0, "Intercept": 0.0})
        put_map(d, **{"Slope": 2.0, "Intercept": 0.0} | other)

    found = refused_twice(made(tmp_path / "a", "classic", lambda k, d: change(k, d, other)), tmp_path / "a safe")
    assert found.reason == "bad_tag" and "2 maps" in found.detail
    study = read_twice(made(tmp_path / "b", "classic", lambda k, d: change(k, d, {})), tmp_path / "b safe")
    assert study.unit == "um2/s" and np.abs(study.image.values - TRUE).max() <= 1


@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("agree", [False, True])
@pytest.mark.parametrize("kind", ["line", "table"])
def test_a_fit_needs_maps_without_a_unit_that_agree_with_the_rescales(
    kind: str, agree: bool, layout: str, tmp_path: Path
) -> None:
    """As Philips writes them, a map repeats the rescale; otherwise nothing says which of both is the scale."""

    def change(b: int, d: Dataset) -> None:
        slope = 2.0 if b else 1.0
        divided(d, slope)
        if kind == "line":
            put_map(d, "1", last=60000, Slope=slope, Intercept=0.0)
            d.RescaleSlope, d.RescaleIntercept = (f"{slope:g}" if agree else "1"), "0"
        else:
            put_map(d, "1", last=2, LUTData=[0.0, 1.0 if agree else slope, 9.0])

    folder = weighted(tmp_path / "files", change)
    if layout == "enhanced":
        files = [pydicom.dcmread(path) for path in sorted(folder.rglob("*.dcm"))]
        folder = tmp_path / "one"
        folder.mkdir()
        enhanced(files).save_as(folder / "e.dcm", enforce_file_format=True)
    if agree:
        values = read_twice(folder, tmp_path / "safe", derive="adc").image.values
        assert kind == "table" or np.allclose(values, 1000, atol=2)
    else:
        found = refused_twice(folder, tmp_path / "safe", derive="adc")
        assert found.reason == "mixed_values" and "RealWorldValueMappingSequence" in found.detail


@pytest.mark.parametrize("intercept", [0.0, -1024.0, 7.3])
def test_scales_that_texts_round_are_alike_and_others_are_not(intercept: float) -> None:
    def image(slope: float, more: float = 0.0) -> tuple[tuple[Any, ...], tuple[float, float]]:
        line = (slope * 3, intercept * slope * 3 + more)
        return (line,), (float(f"{slope:.7g}"), float(f"{intercept * slope:.7g}"))

    alike = [image(1 / (3 + k)) for k in range(9)]
    check_scales(alike, 1e-4)
    for odd in (((alike[0][0][0][0] * 1.01, alike[0][0][0][1]),), ((alike[0][0][0][0], alike[0][0][0][1] + 50),)):
        with pytest.raises(Unusable, match="mixed_values"):
            check_scales([*alike, (odd, alike[0][1])], 1e-4)


# -- vendors' elements, wherever and however they are written ---------------------------------------------------------

SPELLINGS: tuple[Callable[[str], str], ...] = (str, str.upper, str.lower, lambda creator: f"{creator} ")


def put_private(dataset: Dataset, place: Private, value: Any, block: int, creator: str, vr: str = "FL") -> None:
    dataset.add_new((place.group, block), "LO", creator)
    dataset.add_new((place.group, block << 8 | place.element), vr, value)


@pytest.mark.repeats(8)
@pytest.mark.parametrize("block", [0x10, 0x11, 0x1F, 0x20, 0x40, 0xFF])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_vendors_scale_is_found_in_every_block_and_spelling(
    spelling: Callable[[str], str], block: int, tmp_path: Path
) -> None:
    def change(b: int, d: Dataset) -> None:
        slope = 1.3 if b else 1.0
        divided(d, 1 / slope)
        put_private(d, VENDOR_SLOPE, slope, block, spelling(VENDOR_SLOPE.creator))

    study = read_twice(weighted(tmp_path / "files", change), tmp_path / "safe", derive="adc")
    assert np.allclose(study.image.values, 1000, atol=2)


@pytest.mark.repeats(10)
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("place", [*B_VALUES, *SLICE_COUNTS, VENDOR_SLOPE])
def test_every_private_element_is_found_and_kept_in_every_block(place: Private, spelling: Callable[[str], str]) -> None:
    for block in range(0x10, 0x100):
        header = Series().dataset(0)
        put_private(header, place, 37, block, spelling(place.creator), "IS")
        for one in (header, *([deidentify_image(header, key=KEY)] if block in (0x10, 0x20, 0xFF) else [])):
            found = private_element(one, place)
            assert found is not None and float(found.value) == 37
    other = Series().dataset(0)
    put_private(other, place, 37, 0x10, f"{place.creator} X", "IS")
    assert private_element(other, place) is None and private_element(deidentify_image(other, key=KEY), place) is None


def test_the_header_in_a_vendors_header_is_found_too() -> None:
    inner, whole = Dataset(), Series().dataset(0)
    put_private(inner, VENDOR_SLOPE, 2.0, 0x33, VENDOR_SLOPE.creator.upper())
    put_private(whole, VENDOR_HEADER, [inner], 0x44, VENDOR_HEADER.creator.upper(), "SQ")
    assert vendor_slope(whole) == vendor_slope(deidentify_image(whole, key=KEY)) == 2.0


# -- padding and colours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("value", [None, 600])
def test_a_limit_of_padding_needs_a_value(value: int | None, layout: str, tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        d.add_new("PixelPaddingRangeLimit", "US", 610)
        if value is not None:
            d.add_new("PixelPaddingValue", "US", value)

    values = read_twice(made(tmp_path / "files", layout, change), tmp_path / "safe").image.values
    expected = TRUE if value is None else np.where(TRUE <= 610, 0, TRUE)
    assert np.array_equal(values, expected)


def test_every_kind_of_padding_needs_its_value() -> None:
    for (value, limit), dtype in zip(PADDING_ENDS, ("<u2", "<f4", "<f8"), strict=True):
        header = Series().dataset(0)
        setattr(header, limit, 3)
        stored = np.arange(6).astype(dtype)
        assert find_padding(stored, header) is None
        setattr(header, value, 2)
        found = find_padding(stored, header)
        assert found is not None and found.tolist() == [False, False, True, True, False, False]


def put_palette(dataset: Dataset) -> None:
    for keyword in PALETTE:
        dataset.add_new(keyword, "US", [256, 700, 8])
        dataset.add_new(keyword.replace("Descriptor", "Data"), "OW", bytes(range(256)))


COLOURED: dict[str, tuple[Callable[[Dataset], None], str]] = {
    "COLOR": (lambda d: setattr(d, "PixelPresentation", "COLOR"), "PixelPresentation COLOR"),
    "MIXED": (lambda d: setattr(d, "PixelPresentation", "MIXED"), "PixelPresentation MIXED"),
    "TRUE_COLOR": (lambda d: setattr(d, "PixelPresentation", "TRUE_COLOR"), "PixelPresentation TRUE_COLOR"),
    "a palette": (put_palette, PALETTE[0]),
}


@pytest.mark.parametrize("layout", ["classic", "enhanced"])
@pytest.mark.parametrize("name", COLOURED)
def test_grey_images_with_colours_among_their_values_are_refused(name: str, layout: str, tmp_path: Path) -> None:
    change, told = COLOURED[name]
    found = refused_twice(made(tmp_path / "files", layout, lambda k, d: change(d)), tmp_path / "safe")
    assert found.reason == "colour" and told in found.detail


def test_grey_images_that_say_so_are_read(tmp_path: Path) -> None:
    folder = made(tmp_path / "files", "classic", lambda k, d: setattr(d, "PixelPresentation", "MONOCHROME"))
    assert np.array_equal(read_twice(folder, tmp_path / "safe").image.values, TRUE)
