"""Reading classic DICOM series: what is read is right, and whatever is wrong has its own reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.uid import (
    MPEG4HP41,
    EnhancedMRImageStorage,
    MediaStorageDirectoryStorage,
    RLELossless,
    generate_uid,
)
from small_series import COLUMNS, ROWS, SLICES, Change, Series, everywhere

from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.headers import Pixels
from pipelines.data.sources import DicomSource
from pipelines.data.study import Item, Rejected, Study


def read(folder: Path, **options: Any) -> tuple[list[Study], list[Rejected]]:
    return read_dicom(DicomSource(folder=str(folder), **options))


def states(items: Sequence[Item]) -> Counter[str]:
    return Counter(item.state for item in items)


def only(folder: Path, **options: Any) -> Study:
    studies, rejected = read(folder, **options)
    assert not rejected
    (study,) = studies
    return study


def test_values_and_places_of_a_series(tmp_path: Path) -> None:
    Series().write(tmp_path / "a")
    study = only(tmp_path)
    assert study.patient == "Miller 7"
    assert study.study.startswith("a/1.2.3/")
    assert study.unit is None
    assert study.image.values.shape == (COLUMNS, ROWS, SLICES)
    assert study.image.values.dtype == np.float32
    column, row, k = 2, 3, 4
    assert study.image.values[column, row, k] == 100 * k + 10 * row + column
    assert np.allclose(study.image.affine @ [column, row, k, 1], [10 - 1.5 * column, 20 - 2 * row, 3 * k, 1])


def test_nothing_that_identifies_a_patient_is_kept_in_the_facts(tmp_path: Path) -> None:
    facts = only(Series().write(tmp_path)).facts
    assert facts == {
        "Modality": "MR",
        "Manufacturer": "Maker",
        "ManufacturerModelName": "Model 3",
        "SliceThickness": 3.0,
    }


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(SLICES)), st.booleans())
def test_file_names_and_storage_order_do_not_matter(tmp_path: Path, order: list[int], reverse: bool) -> None:
    reference = only(Series().write(tmp_path / "reference"))
    names = [f"IM{number}" for number in order]
    folder = tmp_path / f"{reverse}{'-'.join(map(str, order))}"

    def number(index: int, dataset: Dataset) -> None:
        dataset.InstanceNumber = SLICES - index if reverse else index

    study = only(Series(change=number).write(folder, names))
    assert np.array_equal(study.image.values, reference.image.values)
    assert np.array_equal(study.image.affine, reference.image.affine)


def test_rescale_is_applied_slice_by_slice(tmp_path: Path) -> None:
    def rescale(index: int, dataset: Dataset) -> None:
        dataset.RescaleSlope, dataset.RescaleIntercept = str(index + 1), "-5"

    values = only(Series(change=rescale).write(tmp_path)).image.values
    assert values[1, 2, 3] == (321 * 4) - 5


def unit_item(code: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code, "UCUM", code
    return item


def real_world(code: str, slope: float, last: int = 65535) -> Dataset:
    item = Dataset()
    item.RealWorldValueSlope, item.RealWorldValueIntercept = slope, 1.0
    item.add_new("RealWorldValueFirstValueMapped", "US", 0)
    item.add_new("RealWorldValueLastValueMapped", "US", last)
    item.MeasurementUnitsCodeSequence = [unit_item(code)]
    return item


def test_a_real_world_diffusivity_goes_before_the_rescale(tmp_path: Path) -> None:
    maps = [real_world("ms", 7.0), real_world("um2/s", 2.0)]
    extra = {"RescaleSlope": "9", "RescaleIntercept": "0", "RealWorldValueMappingSequence": maps}
    study = only(Series(extra=extra).write(tmp_path))
    assert study.unit == "um2/s"
    assert study.image.values[1, 2, 3] == 321 * 2 + 1


@pytest.mark.parametrize("last", [30, 200])
def test_a_real_world_map_that_covers_some_values_leaves_the_unit_of_the_others_open(last: int, tmp_path: Path) -> None:
    extra = {"RealWorldValueMappingSequence": [real_world("um2/s", 2.0, last=last)]}
    studies, rejected = read(Series(extra=extra).write(tmp_path))
    assert not studies
    assert [found.reason for found in rejected] == ["mixed_unit"]


def test_a_foreign_real_world_unit_is_told(tmp_path: Path) -> None:
    study = only(Series(extra={"RealWorldValueMappingSequence": [real_world("ms", 2.0)]}).write(tmp_path))
    assert study.unit == "ms"
    assert study.image.values[1, 2, 3] == 321


def test_a_modality_lut_is_applied_and_its_unit_read(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [600, 0, 16])
    table.LUTExplanation, table.ModalityLUTType = "ADC 1e-6 mm2/s", "US"
    table.add_new("LUTData", "OW", (3 * np.arange(600)).astype("<u2").tobytes())
    study = only(Series(extra={"ModalityLUTSequence": [table]}).write(tmp_path))
    assert study.image.values[1, 2, 3] == 3 * 321
    assert study.unit == "ADC 1e-6 mm2/s"


def test_run_length_encoded_pixels_are_read(tmp_path: Path) -> None:
    def compress(index: int, dataset: Dataset) -> None:
        dataset.compress(RLELossless)

    plain, packed = Series().write(tmp_path / "plain"), Series(change=compress).write(tmp_path / "packed")
    assert np.array_equal(only(plain).image.values, only(packed).image.values)


def at(index: int, **values: Any) -> Change:
    def change(position: int, dataset: Dataset) -> None:
        if position == index:
            for keyword, value in values.items():
                setattr(dataset, keyword, value)

    return change


def without(index: int, keyword: str) -> Change:
    def change(position: int, dataset: Dataset) -> None:
        if position == index:
            delattr(dataset, keyword)

    return change


def syntax(position: int, dataset: Dataset) -> None:
    dataset.file_meta.TransferSyntaxUID = MPEG4HP41
    dataset["PixelData"].is_undefined_length = True
    dataset.PixelData = b"\xfe\xff\x00\xe0\0\0\0\0\xfe\xff\xdd\xe0\0\0\0\0"


def enhanced(position: int, dataset: Dataset) -> None:
    dataset.SOPClassUID = EnhancedMRImageStorage
    dataset.SharedFunctionalGroupsSequence = [Dataset()]


def far(position: int, dataset: Dataset) -> None:
    dataset.ImagePositionPatient = [0, 0, 6 * position]
    dataset.SpacingBetweenSlices = 3


def same_instance(position: int, dataset: Dataset) -> None:
    dataset.SOPInstanceUID = "1.2.3.4.1" if position == 4 else dataset.SOPInstanceUID


def repeated(position: int, dataset: Dataset) -> None:
    dataset.ImagePositionPatient = [0, 0, 3 * (position // 2)]


def half_units(position: int, dataset: Dataset) -> None:
    if position == 2:
        dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = "1", "0", "10^-6 mm2/s"


def small(position: int, dataset: Dataset) -> None:
    if position == 2:
        dataset.Rows = ROWS - 1
        dataset.PixelData = dataset.PixelData[: (ROWS - 1) * COLUMNS * 2]


def short_pixels(position: int, dataset: Dataset) -> None:
    if position == 2:
        dataset.PixelData = dataset.PixelData[: ROWS * COLUMNS]


REASONS: list[tuple[str, Series]] = [
    ("gap", Series(change=at(2, ImagePositionPatient=[-10, -20, 6.5]))),
    ("gap", Series(change=at(4, ImagePositionPatient=[-10, -20, 40]))),
    ("gap", Series(change=far)),
    ("not_collinear", Series(change=at(2, ImagePositionPatient=[-5, -20, 6]))),
    ("duplicate_slice", Series(change=at(4, ImagePositionPatient=[-10, -20, 3]))),
    ("duplicate_slice", Series(change=same_instance)),
    ("several_volumes", Series(change=repeated, slices=6)),
    ("single_slice", Series(slices=1)),
    ("mixed_orientation", Series(change=at(1, ImageOrientationPatient=[1, 0, 0, 0, 0, -1]))),
    ("mixed_size", Series(change=small)),
    ("mixed_spacing", Series(change=at(1, PixelSpacing=[2, 1.6]))),
    ("mixed_patient", Series(change=at(1, PatientID="Someone else"))),
    ("mixed_unit", Series(change=half_units)),
    ("non_orthogonal", Series(change=everywhere(ImageOrientationPatient=[1, 0, 0, 0.2, 0.98, 0]))),
    ("missing_tag", Series(change=without(3, "ImagePositionPatient"))),
    ("missing_tag", Series(change=without(3, "PixelSpacing"))),
    ("missing_tag", Series(change=everywhere(PatientID=" "))),
    ("missing_tag", Series(change=without(0, "SOPInstanceUID"))),
    ("bad_tag", Series(change=everywhere(PixelSpacing=[2, 0]))),
    ("bad_tag", Series(change=at(0, ImagePositionPatient=[1, 2]))),
    ("multi_frame", Series(change=everywhere(NumberOfFrames=2))),
    ("multi_frame", Series(change=enhanced)),
    ("mosaic", Series(change=everywhere(ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"]))),
    ("colour", Series(change=everywhere(SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0))),
    ("colour", Series(change=everywhere(PhotometricInterpretation="PALETTE COLOR"))),
    ("not_an_image", Series(change=without(0, "Rows"))),
    ("transfer_syntax", Series(change=syntax)),
    ("unreadable", Series(change=short_pixels)),
    ("unreadable", Series(change=without(2, "PixelData"))),
]


@pytest.mark.parametrize(("reason", "series"), REASONS, ids=[f"{i}-{r}" for i, (r, _) in enumerate(REASONS)])
def test_each_defect_has_its_reason_and_harms_no_other_series(tmp_path: Path, reason: str, series: Series) -> None:
    series.write(tmp_path / "bad")
    Series(patient="Other", study="9.1", series="9.2").write(tmp_path / "good")
    studies, rejected = read(tmp_path)
    assert [study.patient for study in studies] == ["Other"]
    (found,) = rejected
    assert found.reason == reason
    assert found.study.startswith("bad")
    assert found.detail.endswith(".")
    assert len(found.detail) > 40


@pytest.mark.parametrize("share", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99])
def test_a_file_cut_short_quarantines_its_series(tmp_path: Path, share: float) -> None:
    Series(patient="Other", study="9.1", series="9.2").write(tmp_path / "good")
    folder = Series().write(tmp_path / "bad")
    last = folder / "004.dcm"  # the volume without its last slice would look whole
    last.write_bytes(last.read_bytes()[: int(share * last.stat().st_size)])
    studies, rejected = read(tmp_path, select={"BitsStored": "16"})
    assert [study.patient for study in studies] == ["Other"]
    assert {found.reason for found in rejected} <= {"unreadable", "missing_tag", "not_an_image", "transfer_syntax"}
    assert any(found.study.endswith("1.2.3.4") for found in rejected)
    assert all(found.study.startswith("bad") for found in rejected)


def test_a_damaged_file_among_several_series_is_told_and_ends_none(tmp_path: Path) -> None:
    Series().write(tmp_path / "flat")
    Series(patient="Other", study="9.1", series="9.2").write(tmp_path / "flat", [f"x{i}" for i in range(SLICES)])
    (tmp_path / "flat" / "broken.dcm").write_bytes(b"")
    studies, rejected = read(tmp_path)
    assert len(studies) == 2
    assert [(found.study, found.reason) for found in rejected] == [("flat/broken.dcm", "unreadable")]


def test_two_exports_of_one_acquisition_are_ambiguous(tmp_path: Path) -> None:
    Series().write(tmp_path / "a")
    Series(series="1.2.3.5").write(tmp_path / "b")
    studies, rejected = read(tmp_path)
    assert not studies
    assert [found.reason for found in rejected] == ["ambiguous", "ambiguous"]


@pytest.mark.parametrize(
    "other",
    [
        Series(series="1.2.3.5", change=everywhere(PixelSpacing=[1, 1])),
        Series(study="1.2.9", series="1.2.9.1"),
    ],
    ids=["another grid", "another visit"],
)
def test_other_grids_and_other_visits_are_other_studies(tmp_path: Path, other: Series) -> None:
    Series().write(tmp_path / "a")
    other.write(tmp_path / "b")
    studies, rejected = read(tmp_path)
    assert len(studies) == 2
    assert not rejected


def test_select_keeps_what_contains_the_text_in_any_case(tmp_path: Path) -> None:
    Series().write(tmp_path / "adc")
    Series(series="1.2.3.5", change=everywhere(ImageType=["DERIVED", "PRIMARY", "TRACEW"])).write(tmp_path / "trace")
    source = DicomSource(folder=str(tmp_path), select={"ImageType": "adc", "Modality": "MR"})
    index = index_dicom(source)
    assert [found.study.split("/")[0] for found in index.candidates] == ["adc"]
    assert index.unselected == 1
    assert len(index.items) == 2 * SLICES


def test_a_value_has_the_type_that_its_own_file_gives_it(tmp_path: Path) -> None:
    """An echo time of 80 as a number is not "8", but an archive that writes it as text is asked for a part of it."""
    Series(extra={"EchoTime": "80"}).write(tmp_path / "a")

    def as_text(index: int, dataset: Dataset) -> None:
        dataset.add(DataElement("EchoTime", "LO", "80"))

    Series(patient="Other", study="9.1", series="9.2", change=as_text).write(tmp_path / "b")
    both, alone = (read(folder, select={"EchoTime": "8"})[0] for folder in (tmp_path, tmp_path / "b"))
    assert [found.patient for found in both] == [found.patient for found in alone] == ["Other"]


def test_other_files_are_counted_and_left_alone(tmp_path: Path) -> None:
    Series().write(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("x")
    directory = Series(slices=1).dataset(0)
    directory.file_meta.MediaStorageSOPClassUID = directory.SOPClassUID = MediaStorageDirectoryStorage
    directory.save_as(tmp_path / "DICOMDIR", enforce_file_format=True)
    index = index_dicom(DicomSource(folder=str(tmp_path)))
    assert (len(index.items), states(index.items)["not_imaging"], len(index.candidates), index.rejected) == (
        SLICES + 2,
        2,
        1,
        (),
    )


def test_links_lead_nowhere_outside_and_count_once_inside(tmp_path: Path) -> None:
    outside = Series(patient="Outside", study="9.1", series="9.2").write(tmp_path / "outside")
    inside = Series().write(tmp_path / "inside")
    os.symlink(outside, inside / "folder")
    os.symlink(outside / "000.dcm", inside / "file.dcm")
    os.symlink(inside / "000.dcm", inside / "again.dcm")
    os.symlink(inside / "nothing", inside / "dangling.dcm")
    os.mkfifo(inside / "pipe.dcm")
    assert only(inside).patient == "Miller 7"


def test_headers_are_parsed_once_and_pixels_read_once_and_only_when_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pydicom

    from pipelines.data.dicom import reader

    calls: list[bool] = []
    loaded: list[Path] = []
    original, pixels = pydicom.dcmread, reader.read_pixels

    def counting(path: Path, **options: Any) -> Any:
        calls.append(bool(options.get("stop_before_pixels")))
        return original(path, **options)

    def reading(path: Path, where: Pixels) -> bytes:
        loaded.append(path)
        return pixels(path, where)

    monkeypatch.setattr(pydicom, "dcmread", counting)
    monkeypatch.setattr(reader, "read_pixels", reading)
    index = index_dicom(DicomSource(folder=str(Series().write(tmp_path))))
    assert (calls, loaded) == ([True] * SLICES, [])
    index.candidates[0].load()
    assert (calls, sorted(loaded)) == ([True] * SLICES, sorted(tmp_path.glob("*.dcm")))


def test_wrong_settings_are_told_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ImageTypo: no such DICOM keyword.*; select\.Modality: empty"):
        DicomSource(folder=".", select={"ImageTypo": "ADC", "Modality": " "})
    with pytest.raises(ValueError, match="does not exist"):
        read(tmp_path / "gone")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="no DICOM file"):
        read(tmp_path)
    Series().write(tmp_path / "a")
    with pytest.raises(ValueError, match="none of 5 DICOM images matches"):
        read(tmp_path, select={"ImageType": "T2"})


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, SLICES - 1), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=12), st.floats(0, 1)
)
def test_no_damage_to_the_bytes_escapes(
    tmp_path: Path, index: int, edits: list[tuple[float, int]], keep: float
) -> None:
    folder = Series().write(tmp_path / generate_uid())
    path = folder / f"{index:03d}.dcm"
    data = bytearray(path.read_bytes())
    for where, value in edits:
        data[min(len(data) - 1, int(where * len(data)))] = value
    path.write_bytes(bytes(data[: int(keep * len(data))] if keep < 0.7 else data))
    studies, rejected = read(folder)
    assert len(studies) + len(rejected) >= 1
    assert all(np.isfinite(study.image.values).all() for study in studies)
