"""What modifies a stored value, as laws: the reader applies each row of the table, and what de-identification or a
translator writes is read as the original is. Sets that are compared agree in it, or are refused by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydicom
import pytest
from enhanced_file import enhanced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.uid import ParametricMapStorage
from small_series import COLUMNS, ROWS, SLICES, Series

from pipelines.data.dicom.reader import index_dicom
from pipelines.data.dicom.uncompressed import NEEDED
from pipelines.data.sources import DicomSource
from pipelines.data.studies import standardize_values
from pipelines.data.study import Rejected, Study
from pipelines.data.writing.dicom_header import Maker
from pipelines.data.writing.dicom_series import series_files
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS
from privacy.deidentify.actions import SAFE_PRIVATE
from privacy.deidentify.dicom_image import NotDeidentifiable, as_bytes, deidentify_image
from privacy.deidentify.profile import Profile
from privacy.deidentify.stored_values import (
    KEYWORDS,
    MODIFIERS,
    PALETTE,
    SLICE_COUNTS,
    VENDOR_HEADER,
    VENDOR_SLOPE,
    Private,
)

KEY = bytes(range(32))
MAKER = Maker(KEY, Profile(), "north", "zscore", "0" * 16)
Change = Callable[[int, Dataset], None]


def read(folder: Path, *, adc: bool = False, **options: Any) -> tuple[list[Study], list[Rejected]]:
    index = index_dicom(DicomSource(folder=str(folder), **options), adc=adc)
    loaded: list[Study] = []
    rejected = list(index.rejected)
    for candidate in index.candidates:
        try:
            loaded.append(candidate.load())
        except ValueError as error:
            rejected.append(Rejected(candidate.study, error.reason, error.detail))  # type: ignore[attr-defined]
    return loaded, rejected


def only(folder: Path, **options: Any) -> Study:
    studies, rejected = read(folder, **options)
    assert not rejected, rejected
    (study,) = studies
    return study


def refused(folder: Path, **options: Any) -> Rejected:
    studies, rejected = read(folder, **options)
    assert not studies
    (found,) = rejected
    assert found.detail.endswith(".")
    return found


def series(folder: Path, change: Change = lambda k, d: None, **extra: Any) -> Path:
    return Series(change=change, extra=extra).write(folder)


def scaled(dataset: Dataset, slope: float, creator: str = VENDOR_SLOPE.creator) -> None:
    dataset.private_block(VENDOR_SLOPE.group, creator, create=True).add_new(VENDOR_SLOPE.element, "FL", slope)


def table(dataset: Dataset, last: int = 1023) -> None:
    item = Dataset()
    item.LUTDescriptor, item.LUTExplanation, item.ModalityLUTType = [last + 1, 0, 16], "of the scanner", "US"
    item.add_new("LUTData", "OW", (40 + 3 * np.arange(last + 1)).astype("<u2").tobytes())
    dataset.ModalityLUTSequence = [item]


def real_world(dataset: Dataset, slope: float = 2.0, first: int = 0, last: int = 4000) -> None:
    unit, item = Dataset(), Dataset()
    unit.CodeValue, unit.CodingSchemeDesignator, unit.CodeMeaning = "um2/s", "UCUM", "um2/s"
    item.RealWorldValueFirstValueMapped, item.RealWorldValueLastValueMapped = first, last
    item.RealWorldValueIntercept, item.RealWorldValueSlope = 0.0, slope
    item.LUTExplanation, item.LUTLabel, item.MeasurementUnitsCodeSequence = "ADC", "ADC", [unit]
    dataset.RealWorldValueMappingSequence = [item]


# -- one table, read by all -------------------------------------------------------------------------------------------


def test_every_row_is_read_kept_and_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text()
    rows = page.partition("### What modifies a stored value")[2].partition("\n### ")[0].partition("\n## ")[0]
    assert set(KEYWORDS) <= set(NEEDED)
    for row in MODIFIERS:
        assert f"| {row.name} |" in rows
        assert all(keyword in rows for keyword in row.keywords if keyword != "MeasurementUnitsCodeSequence")
        assert set(row.private) <= SAFE_PRIVATE


def test_what_the_reader_needs_outlives_deidentification() -> None:
    made = Series().dataset(0)
    made.PixelRepresentation = 1
    values = {
        "PixelPaddingValue": -900, "PixelPaddingRangeLimit": -901, "FloatPixelPaddingValue": -9.5,
        "FloatPixelPaddingRangeLimit": -10.5, "DoubleFloatPixelPaddingValue": -9.25,
        "DoubleFloatPixelPaddingRangeLimit": -10.25, "RescaleSlope": "2.5", "RescaleIntercept": "-7",
        "RescaleType": "US", "PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "INVERSE",
    }  # fmt: skip
    for keyword, value in values.items():
        setattr(made, keyword, value)
    made.PixelPresentation = "COLOR"
    for keyword in PALETTE:
        made.add_new(keyword, "US", [256, 700, 8])
    table(made)
    real_world(made)
    item = made.RealWorldValueMappingSequence[0]
    item.DoubleFloatRealWorldValueFirstValueMapped, item.DoubleFloatRealWorldValueLastValueMapped = 0.5, 99.5
    header = Dataset()
    for private in SAFE_PRIVATE - {VENDOR_HEADER}:
        header.private_block(private[1], private[0], create=True).add_new(private[2], "FL", 2.5)
    made.update(header)
    made.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator, create=True).add_new(
        VENDOR_HEADER.element, "SQ", [header]
    )
    kept = deidentify_image(made, key=KEY)
    for keyword in KEYWORDS:
        assert keyword == "MeasurementUnitsCodeSequence" or kept[keyword].value == made[keyword].value, keyword
    inner = kept.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator)[VENDOR_HEADER.element].value[0]
    for creator, group, element in SAFE_PRIVATE - {VENDOR_HEADER}:
        for holder in (kept, inner):
            assert holder.private_block(group, creator)[element].value == 2.5


# -- padding ----------------------------------------------------------------------------------------------------------

PADDINGS: dict[str, dict[str, Any]] = {
    "negative": {"bits": (16, 1), "value": -900},
    "lowest of 12 signed bits": {"bits": (12, 1), "value": -2000},
    "highest of 12 bits": {"bits": (12, 0), "value": 4095},
    "signed number of unsigned pixels": {"bits": (16, 0), "value": -2000},
    "zero beside an intercept": {"bits": (16, 0), "value": 0, "intercept": "500"},
    "range": {"bits": (16, 1), "value": -900, "limit": -1000},
    "range the other way": {"bits": (16, 1), "value": -1000, "limit": -900},
    "range beyond the bits": {"bits": (12, 0), "value": 4090, "limit": 5000},
}


def pad(dataset: Dataset, bits: tuple[int, int], value: int, limit: int | None = None, intercept: str = "") -> None:
    """A band of two rows that the file declares empty; the others hold 600 to 1300."""
    stored, representation = bits
    dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = stored, stored - 1, representation
    pixels = 600 + np.frombuffer(dataset.PixelData, "<u2").astype(np.int64).reshape(ROWS, COLUMNS)
    pixels[:2] = value
    pixels[0, :2] = value if limit is None else np.clip(limit, -2000, 4095)
    dataset.PixelData = (pixels & 0xFFFF).astype("<u2").tobytes()
    vr = "SS" if value < 0 else "US"
    dataset.add_new("PixelPaddingValue", vr, value)
    if limit is not None:
        dataset.add_new("PixelPaddingRangeLimit", vr, limit)
    if intercept:
        dataset.RescaleSlope, dataset.RescaleIntercept = "1", intercept


@pytest.mark.parametrize("many", [False, True], ids=["classic", "enhanced"])
@pytest.mark.parametrize("name", PADDINGS)
def test_declared_padding_is_background_and_in_no_statistic(name: str, many: bool, tmp_path: Path) -> None:
    made = PADDINGS[name]
    if many:
        files = [Series(change=lambda k, d: pad(d, **made)).dataset(k) for k in range(SLICES)]
        tmp_path.mkdir(exist_ok=True)
        enhanced(files).save_as(tmp_path / "e.dcm", enforce_file_format=True)
    else:
        series(tmp_path, lambda k, d: pad(d, **made))
    values = only(tmp_path).image.values
    assert (values[:, :2] == 0).all() and (values[:, 2:] >= 600).all()
    inside = 600 + np.stack([Series().stored(k) for k in range(SLICES)]).astype(float).transpose(2, 1, 0)[:, 2:]
    spread = (inside - inside.mean()) / inside.std()
    assert np.allclose(standardize_values(np.asarray(values))[:, 2:], spread, atol=1e-4)


def test_padding_that_the_bits_cannot_hold_is_no_guess(tmp_path: Path) -> None:
    def wrong(k: int, d: Dataset) -> None:
        pad(d, (12, 0), 2096)
        d.add_new("PixelPaddingValue", "SS", -2000)  # 0xF830, of which 12 bits hold 0x830 = 2096

    found = refused(series(tmp_path / "a", wrong))
    assert found.reason == "bad_padding" and "2096" in found.detail
    outside = series(
        tmp_path / "b", lambda k, d: d.add_new("PixelPaddingValue", "US", 40000), BitsStored=12, HighBit=11
    )
    assert np.array_equal(only(outside).image.values, only(series(tmp_path / "c")).image.values)


def test_values_that_are_not_in_the_lowest_bits_are_no_guess(tmp_path: Path) -> None:
    def high(k: int, d: Dataset) -> None:
        d.PixelData = (np.frombuffer(d.PixelData, "<u2") << 4).astype("<u2").tobytes()
        d.BitsStored, d.HighBit = 12, 15

    found = refused(series(tmp_path, high))
    assert found.reason == "bad_tag" and "11 is needed" in found.detail


@pytest.mark.parametrize("padding", [-1.0, float("nan")])
def test_float_padding_is_background_too(padding: float, tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        plane = np.frombuffer(d.PixelData, "<u2").reshape(ROWS, COLUMNS).astype("<f4") + 0.5
        plane[0] = padding
        del d.PixelData
        d.SOPClassUID = d.file_meta.MediaStorageSOPClassUID = ParametricMapStorage
        d.BitsAllocated, d.FloatPixelData, d.FloatPixelPaddingValue = 32, plane.tobytes(), padding
        del d.BitsStored, d.HighBit, d.PixelRepresentation

    values = only(series(tmp_path, change)).image.values
    assert (values[:, 0] == 0).all() and (values[:, 1:] > 0).all()


def test_a_real_world_map_covers_the_values_that_are_no_padding(tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        pad(d, (16, 1), -900)
        real_world(d, 2.0, first=0, last=2000)

    study = only(series(tmp_path, change))
    assert study.unit == "um2/s" and study.image.values.max() == 2 * (600 + 453)


# -- sets that are compared -------------------------------------------------------------------------------------------

ROWS_OF_ONE: dict[str, Callable[[Dataset], None]] = {
    "rescale": lambda d: setattr(d, "RescaleSlope", "2"),
    "modality LUT": table,
    "real-world value map": real_world,
    "vendor scale": lambda d: scaled(d, 2.0),
    "brightness": lambda d: setattr(d, "PhotometricInterpretation", "MONOCHROME1"),
}


def test_every_row_that_must_agree_has_its_case() -> None:
    assert set(ROWS_OF_ONE) == {row.name for row in MODIFIERS if row.within != "each"} - {"unit"}


@pytest.mark.parametrize("adc", [False, True])
@pytest.mark.parametrize("odd", [{3}, {0, 1, 2, 4}], ids=["one has it", "one lacks it"])
@pytest.mark.parametrize("name", ROWS_OF_ONE)
def test_a_series_whose_images_differ_is_refused_by_name(name: str, odd: set[int], adc: bool, tmp_path: Path) -> None:
    found = refused(series(tmp_path, lambda k, d: ROWS_OF_ONE[name](d) if k in odd else None), adc=adc)
    assert found.reason == "mixed_values"
    assert "MONOCHROME1" in found.detail if name == "brightness" else name in found.detail and "003.dcm" in found.detail


@pytest.mark.parametrize("name", ["rescale", "real-world value map", "vendor scale"])
def test_frames_that_differ_are_refused_by_name(name: str, tmp_path: Path) -> None:
    files = [Series().dataset(k) for k in range(SLICES)]
    if name != "vendor scale":
        ROWS_OF_ONE[name](files[3])
    made = enhanced(files)
    if name == "vendor scale":
        put_vendor_header(made.PerFrameFunctionalGroupsSequence[3], 2.0)
    made.save_as(tmp_path / "e.dcm", enforce_file_format=True)
    found = refused(tmp_path)
    assert found.reason == "mixed_values" and "frame 4" in found.detail


def put_vendor_header(group: Dataset, slope: float) -> None:
    item = Dataset()
    scaled(item, slope)
    block = group.private_block(VENDOR_HEADER.group, VENDOR_HEADER.creator, create=True)
    block.add_new(VENDOR_HEADER.element, "SQ", [item])


def test_a_rescale_that_changes_nothing_may_be_missing(tmp_path: Path) -> None:
    made = series(tmp_path, lambda k, d: setattr(d, "RescaleSlope", "1") if k == 2 else None)
    assert only(made).image.values.max() == 453


def weighted(folder: Path, b_values: tuple[float, ...], change: Callable[[float, Dataset], None]) -> Path:
    """A diffusion series of ADC 1000 x 1e-6 mm²/s; the change may scale the pixels."""
    for number, b in enumerate(b_values):

        def each(k: int, d: Dataset, b: float = b, number: int = number) -> None:
            d.ImageType, d.DiffusionBValue = ["ORIGINAL", "PRIMARY", "M"], b
            d.SOPInstanceUID = d.file_meta.MediaStorageSOPInstanceUID = f"1.2.3.4.{number}.{k + 1}"
            d.PixelData = np.full((ROWS, COLUMNS), round(20000 * np.exp(-b * 1e-3)), "<u2").tobytes()
            change(b, d)

        series(folder / f"b{number}", each)
    return folder


def vendor_scaled(dataset: Dataset, slope: float, rescale: str | None = None) -> None:
    pixels = np.frombuffer(dataset.PixelData, "<u2") * slope
    dataset.PixelData = np.rint(pixels).astype("<u2").tobytes()
    scaled(dataset, slope)
    if rescale is not None:
        dataset.RescaleSlope, dataset.RescaleIntercept = rescale, "0"


@pytest.mark.parametrize("rescales", [("1", "1"), ("2", "2"), ("1", "3"), (None, None)])
def test_a_fit_uses_the_vendors_scale(rescales: tuple[str | None, str | None], tmp_path: Path) -> None:
    made = weighted(tmp_path, (0, 800), lambda b, d: vendor_scaled(d, 1.3 if b else 1.0, rescales[int(b > 0)]))
    values = only(made, derive="adc").image.values
    assert np.allclose(values, 1000, atol=2)


def test_a_fit_uses_the_vendors_scale_of_frames_and_a_scale_must_be_everywhere(tmp_path: Path) -> None:
    files = []
    for b in (0, 800):
        weighted(tmp_path / str(b), (b,), lambda b, d: vendor_scaled(d, 1.3 if b else 1.0, "1"))
        files += [pydicom.dcmread(path) for path in sorted((tmp_path / str(b)).rglob("*.dcm"))]
    made = enhanced(files)
    for group, slope in zip(made.PerFrameFunctionalGroupsSequence, [1.0] * SLICES + [1.3] * SLICES, strict=True):
        put_vendor_header(group, slope)
    (tmp_path / "e").mkdir()
    made.save_as(tmp_path / "e" / "e.dcm", enforce_file_format=True)
    assert np.allclose(only(tmp_path / "e", derive="adc").image.values, 1000, atol=2)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "f.dcm").write_bytes(as_bytes(deidentify_image(made, key=KEY)))
    assert np.allclose(only(tmp_path / "f", derive="adc").image.values, 1000, atol=2)
    lacking = weighted(tmp_path / "g", (0, 800), lambda b, d: vendor_scaled(d, 1.3, "1") if b else None)
    assert refused(lacking, derive="adc").reason == "mixed_values"


def test_a_map_keeps_its_unit_and_signals_get_one_scale(tmp_path: Path) -> None:
    plain = only(series(tmp_path / "plain")).image.values
    one = series(tmp_path / "one", lambda k, d: vendor_scaled(d, 2.0, "0.5"))
    assert np.array_equal(only(one).image.values, plain)  # one scale for all: the displayed value
    several = series(tmp_path / "several", lambda k, d: vendor_scaled(d, float(1 + k), "1"))
    assert np.allclose(only(several).image.values, plain, rtol=1e-6)
    assert refused(several, adc=True).reason == "mixed_values"


def test_a_fit_names_the_b_values_that_take_part(tmp_path: Path) -> None:
    made = weighted(tmp_path, (50, 800, 1400), lambda b, d: None)
    assert only(made, derive="adc").evidence == "fitted here to b-values 50, 800 s/mm2"
    unused = [item for item in index_dicom(DicomSource(folder=str(made), derive="adc")).items if not item.studies]
    assert len(unused) == SLICES and {item.reason for item in unused} == {"not_needed"}
    (tmp_path / "b2" / "002.dcm").unlink()
    assert only(made, derive="adc").evidence == "fitted here to b-values 50, 800 s/mm2"


# -- brightness -------------------------------------------------------------------------------------------------------


def inverted(k: int, d: Dataset) -> None:
    pixels = np.frombuffer(d.PixelData, "<u2").reshape(ROWS, COLUMNS).copy()
    pixels[0] = 0  # air
    d.PixelData = (4000 - pixels).astype("<u2").tobytes()
    d.PhotometricInterpretation = "MONOCHROME1"


def upright(k: int, d: Dataset) -> None:
    pixels = np.frombuffer(d.PixelData, "<u2").reshape(ROWS, COLUMNS).copy()
    pixels[0] = 0
    d.PixelData = pixels.tobytes()


@pytest.mark.parametrize("shape", [None, "INVERSE"])
def test_signals_of_monochrome1_are_those_of_monochrome2(shape: str | None, tmp_path: Path) -> None:
    more = {} if shape is None else {"PresentationLUTShape": shape}
    turned, plain = only(series(tmp_path / "a", inverted, **more)), only(series(tmp_path / "b", upright))
    assert np.array_equal(turned.image.values, plain.image.values)
    values = [standardize_values(np.asarray(one.image.values)) for one in (turned, plain)]
    assert np.array_equal(*values)


def test_a_quantity_of_monochrome1_is_the_stored_one(tmp_path: Path) -> None:
    unit = {"RescaleSlope": "1", "RescaleIntercept": "0", "RescaleType": "10^-6 mm2/s"}
    made = series(tmp_path, inverted, **unit)
    for adc in (False, True):
        assert only(made, adc=adc).image.values.max() == 4000


def test_a_brightness_that_is_open_is_refused_where_it_matters(tmp_path: Path) -> None:
    open_ = series(tmp_path / "a", PresentationLUTShape="INVERSE")
    other = series(tmp_path / "b", inverted, PresentationLUTShape="IDENTITY")
    assert refused(open_).reason == refused(other).reason == "inverted"
    assert only(open_, adc=True).image.values.max() == 453
    made = weighted(tmp_path / "c", (0, 800), lambda b, d: setattr(d, "PhotometricInterpretation", "MONOCHROME1"))
    assert refused(made, derive="adc").reason == "inverted"


# -- the same after de-identification, and after writing --------------------


class Case(NamedTuple):
    """A change of a series by rows of the table. padded: two of its rows are empty. table: by a modality LUT."""

    change: Change
    padded: bool
    table: bool


@st.composite
def rows(draw: st.DrawFn) -> Case:
    """Changes of a series by any rows of the table at once, each valid."""
    padding = draw(st.none() | st.sampled_from(sorted(PADDINGS)))
    rescale = draw(st.none() | st.tuples(st.sampled_from(["0.5", "1", "3"]), st.sampled_from(["-40", "0", "7"])))
    slopes = draw(st.none() | st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=SLICES, max_size=SLICES))
    dark, mapped = draw(st.booleans()), draw(st.sampled_from(["", "table", "map"]))

    def change(k: int, d: Dataset) -> None:
        if padding is not None:
            pad(d, **PADDINGS[padding])
        if rescale is not None and not (padding and "intercept" in PADDINGS[padding]):
            d.RescaleSlope, d.RescaleIntercept = rescale
        if slopes is not None:
            scaled(d, slopes[k])
        if dark:
            d.PhotometricInterpretation, d.PresentationLUTShape = "MONOCHROME1", "INVERSE"
        if mapped == "table":
            d.pop("RescaleSlope", None), d.pop("RescaleIntercept", None)
            table(d, last=4095)
        if mapped == "map":
            real_world(d)

    return Case(change, padding is not None, mapped == "table")


def deidentified(folder: Path, out: Path) -> Path:
    out.mkdir()
    for number, path in enumerate(sorted(folder.rglob("*.dcm"))):
        (out / f"{number:04d}.dcm").write_bytes(as_bytes(deidentify_image(pydicom.dcmread(path), key=KEY)))
    return out


def written(folder: Path, out: Path, by: float, **options: Any) -> tuple[Path, np.ndarray]:
    """The folder's only study, its foreground changed by a number, as a translator writes it; and what is expected."""
    (candidate,) = index_dicom(DicomSource(folder=str(folder), **options)).candidates
    study = candidate.load()
    values = np.asarray(study.image.values, np.float32)
    change = np.where(values == 0, 0, np.maximum(by, -np.abs(values) / 2)).astype(np.float32)
    out.mkdir()
    for name, data in series_files(candidate, study, change, MAKER):
        (out / name).write_bytes(data)
    return out, values + change


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=rows(), by=st.sampled_from([0.0, 30.0, -20.0, 3000.0, 80000.0]))
def test_what_is_written_is_read_as_what_was_read(case: Case, by: float, tmp_path: Path) -> None:
    here = tmp_path / str(next(COUNT))
    folder = series(here / "files", case.change)
    study, safe = only(folder), only(deidentified(folder, here / "safe"))
    assert np.array_equal(safe.image.values, study.image.values) and safe.unit == study.unit
    out, expected = written(folder, here / "out", by)
    after = only(out)
    if by == 0 and not case.table:
        assert np.array_equal(after.image.values, study.image.values)
    assert np.abs(after.image.values - expected).max() <= max(2.0, np.ptp(expected) / 15000)
    assert not case.padded or (after.image.values[:, :2] == 0).all()


COUNT = itertools.count()


def test_a_changed_value_does_not_become_padding(tmp_path: Path) -> None:
    """The files say that 520 is padding; the change brings tissue there."""
    folder = series(tmp_path / "files", lambda k, d: pad(d, (16, 0), 520))
    out, expected = written(folder, tmp_path / "out", -100.0)
    assert (expected == 520).any()
    assert np.abs(only(out).image.values - expected).max() < 0.1


@pytest.mark.parametrize("rescale", [None, "2"])
def test_a_new_coding_keeps_the_vendors_scale(rescale: str | None, tmp_path: Path) -> None:
    folder = series(tmp_path / "files", lambda k, d: vendor_scaled(d, float(1 + k), rescale))
    out, expected = written(folder, tmp_path / "out", 80000.0)
    assert np.abs(only(out).image.values - expected).max() <= 3.2  # half a step of five times 80,000 in 16 bits
    header = pydicom.dcmread(next(out.iterdir()), stop_before_pixels=True)
    assert float(header.RescaleSlope) != float(rescale or 1)


def test_padding_widens_no_real_world_map(tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        pad(d, (16, 1), -900)
        real_world(d, first=0, last=2000)

    out, expected = written(series(tmp_path / "files", change), tmp_path / "out", 20.0)
    header = pydicom.dcmread(next(out.iterdir()), stop_before_pixels=True)
    assert header.RealWorldValueMappingSequence[0].RealWorldValueFirstValueMapped == 0
    after = only(out)
    assert after.unit == "um2/s" and np.abs(after.image.values - expected).max() <= 1


@pytest.mark.parametrize("padding", [None, "negative", "range"])
def test_a_new_coding_keeps_a_map_where_there_was_no_rescale(padding: str | None, tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        if padding is not None:
            pad(d, **PADDINGS[padding])
        real_world(d)

    out, expected = written(series(tmp_path / "files", change), tmp_path / "out", 160000.0)
    after = only(out)
    assert after.unit == "um2/s" and np.abs(after.image.values - expected).max() <= 1.3
    header = pydicom.dcmread(next(out.iterdir()), stop_before_pixels=True)
    assert header.RealWorldValueMappingSequence[0].RealWorldValueSlope != 2.0


@pytest.mark.parametrize("place", SLICE_COUNTS)
def test_a_series_without_its_last_slice_is_refused_without_identity_too(place: Private, tmp_path: Path) -> None:
    def change(k: int, d: Dataset) -> None:
        d.ImageType = ["ORIGINAL", "PRIMARY", "M"]
        d.private_block(place.group, place.creator, create=True).add_new(place.element, "SL", SLICES + 1)

    folder = series(tmp_path / "files", change)
    assert refused(folder).reason == refused(deidentified(folder, tmp_path / "safe")).reason == "gap"


@pytest.mark.repeats(8)
@pytest.mark.parametrize("by", [0.0, 40.0])
@pytest.mark.parametrize("contrast", ["adc", "t2w"])
@pytest.mark.parametrize("scanner", sorted(SCANNERS))
def test_what_a_scanner_writes_is_read_the_same_without_identity_and_translated(
    scanner: Any, contrast: Any, by: float, tmp_path: Path
) -> None:
    write(PhantomSource(scanner=scanner, patients=1, slices=4, format="dicom", contrast=contrast), tmp_path / "files")
    folder = tmp_path / "files" / "images"
    study, safe = only(folder), only(deidentified(folder, tmp_path / "safe"))
    assert np.array_equal(safe.image.values, study.image.values) and safe.unit == study.unit
    change = by * float(np.median(study.image.values[study.image.values > 0])) / 1000
    out, expected = written(folder, tmp_path / "out", change)
    assert np.abs(only(out).image.values - expected).max() <= 2e-3 * expected.max()


# -- real files -------------------------------------------------------------------------------------------------------

SERIES = (
    pytest.param("prostatex/dicom", marks=pytest.mark.slow),
    *("dicom_zoo/ge_dwi", "dicom_zoo/philips_enhanced", "dicom_zoo/siemens_enhanced_xa10"),
    *("dicom_zoo/siemens_series", "dicom_zoo/siemens_mosaic", "dicom_zoo/transfer_syntaxes", "dicom_zoo/odd"),
)


def told(folder: Path, **options: Any) -> tuple[list[Any], list[str]]:
    """What was read of a folder, and the reasons of what was not, in an order that names do not change."""
    try:
        studies, rejected = read(folder, **options)
    except ValueError:
        return [], []
    values = [np.asarray(one.image.values) for one in studies]
    known = [
        (plane.shape, one.unit, one.image.affine.round(4).tolist()) for plane, one in zip(values, studies, strict=True)
    ]
    order = sorted(range(len(values)), key=lambda k: (str(known[k]), float(values[k].sum(dtype=np.float64))))
    return [(known[k], values[k].tobytes()) for k in order], sorted(one.reason for one in rejected)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("name", SERIES)
def test_real_files_are_read_the_same_after_deidentification(name: str, data: Path, tmp_path: Path) -> None:
    here = [folder for folder in sorted((data / name).rglob("*")) if folder.is_dir()] or [data / name]
    compared = 0
    for number, folder in enumerate(here):
        before, after = tmp_path / f"{number}a", tmp_path / f"{number}b"
        before.mkdir()
        after.mkdir()
        for path in (path for path in sorted(folder.iterdir()) if path.is_file()):
            try:
                made = as_bytes(deidentify_image(pydicom.dcmread(path, force=True), key=KEY))
            except NotDeidentifiable:
                continue
            (after / f"{path.name}.dcm").write_bytes(made)
            (before / f"{path.name}.dcm").write_bytes(path.read_bytes())
        for how in ({"adc": adc, "derive": derive} for adc in (False, True) for derive in ("none", "adc")):
            assert told(before, **how, lossy="allow") == told(after, **how, lossy="allow"), how
        compared += len(list(after.iterdir()))
    assert compared


@pytest.mark.parametrize("by", [pytest.param(0.0, marks=pytest.mark.slow), 100.0])
def test_a_real_map_is_read_as_it_was_written(by: float, data: Path, tmp_path: Path) -> None:
    folders = sorted({path.parent for path in (data / "prostatex" / "dicom").rglob("*ADC*/*.dcm")})
    for number, folder in enumerate(folders):
        out, expected = written(folder, tmp_path / str(number), by)
        assert np.abs(only(out).image.values - expected).max() <= (0.5 if by else 0)
    assert folders
