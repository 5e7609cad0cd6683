"""Objects that are no image are set aside alone, whatever kind they are of; and `select: {kind: ...}` chooses by the
reader's own evidence, whoever made the images.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import UID, UID_dictionary
from pydicom.uid import SecondaryCaptureImageStorage as ScreenshotStorage
from small_series import Series

from pipelines.data.accounts import list_accounts
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.index import load_all
from pipelines.data.sources import DicomSource
from pipelines.discovery.images import dicom_series
from pipelines.discovery.look import discover_folder
from privacy.settings_error import SettingsError

STORAGE = [
    uid
    for uid, (name, kind, *_) in UID_dictionary.items()
    if kind == "SOP Class" and name.endswith("Storage") and "Image Storage" not in name
    if not any(word in name for word in ("Directory", "Parametric Map", "Enhanced US Volume", "Media"))
]
PRIVATE_CLASSES = ["1.3.12.2.1107.5.9.1", "1.3.46.670589.11.0.0.12.1", "1.2.840.113619.4.27"]
PIXELS = ("Rows", "Columns", "PixelData", "SamplesPerPixel", "BitsAllocated", "BitsStored", "HighBit")


def planted(folder: Path, sop_class: str, *, pixels: bool = False, **elements: object) -> str:
    """A series of five slices, and one object of the class in the same series. Returns the object's file name."""
    series = Series()
    series.write(folder)
    other = series.dataset(0)
    other.SOPClassUID = other.file_meta.MediaStorageSOPClassUID = UID(sop_class)
    other.SOPInstanceUID = other.file_meta.MediaStorageSOPInstanceUID = "1.2.3.99"
    for keyword in () if pixels else (*PIXELS, "PixelRepresentation", "PhotometricInterpretation"):
        other.pop(keyword, None)
    for keyword, value in elements.items():
        setattr(other, keyword, value)
    other.save_as(folder / "other.dcm", enforce_file_format=True)
    return "other.dcm"


def test_each_kind_of_object_without_slices_is_set_aside_alone_and_by_name(tmp_path: Path, thorough: bool) -> None:
    assert len(STORAGE) > 80
    whole = Series().write(tmp_path / "whole")
    (wanted,), _ = load_all(index_dicom(DicomSource(folder=str(whole))))
    kinds = [*STORAGE, *PRIVATE_CLASSES]
    for number, sop_class in enumerate(kinds if thorough else [*kinds[::8], PRIVATE_CLASSES[-1]]):
        for select in ({}, {"ImageType": "ADC"}):
            folder = tmp_path / f"{number}{len(select)}"
            name = planted(folder, sop_class)
            index = index_dicom(DicomSource(folder=str(folder), select=select))
            studies, rejected = load_all(index)
            assert [(one.study, one.reason) for one in rejected] == [(name, "not_an_image")], UID(sop_class).name
            assert len(studies) == 1 and np.array_equal(studies[0].image.values, wanted.image.values)
            accounts = {one.file: one for one in list_accounts(index.items, rejected)}
            assert accounts[name].what == "quarantined" and accounts[name].patient == wanted.patient
            assert sum(one.what == "used" for one in accounts.values()) == 5


@pytest.mark.parametrize(
    ("sop_class", "elements", "words"),
    [
        (ScreenshotStorage, {}, "Secondary Capture"),
        (ScreenshotStorage, {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "Secondary Capture"),
        ("1.2.840.10008.5.1.4.1.1.7.4", {"NumberOfFrames": 3}, "Secondary Capture"),
        ("1.2.840.10008.5.1.4.1.1.4", {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "RGB"),
        ("1.2.840.10008.5.1.4.1.1.481.2", {"NumberOfFrames": 9}, "RT Dose"),
        ("1.2.840.10008.5.1.4.1.1.66.4", {"NumberOfFrames": 9, "BitsAllocated": 1}, "Segmentation"),
    ],
)
def test_an_object_with_pixels_that_is_no_slice_is_set_aside(
    tmp_path: Path, sop_class: str, elements: dict[str, object], words: str
) -> None:
    name = planted(tmp_path, sop_class, pixels=True, **elements)
    studies, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path))))
    assert [one.image.values.shape[2] for one in studies] == [5]
    assert [(one.study, one.reason) for one in rejected] == [(name, "not_an_image")] and words in rejected[0].detail


@pytest.mark.parametrize("sop_class", PRIVATE_CLASSES)
def test_images_of_a_private_class_are_read_as_images_of_the_standard_are(sop_class: str, tmp_path: Path) -> None:
    (wanted,), _ = load_all(index_dicom(DicomSource(folder=str(Series().write(tmp_path / "whole")))))
    folder = Series().write(tmp_path / "files")
    for path in folder.glob("*.dcm"):
        one = dcmread(path)
        one.SOPClassUID = one.file_meta.MediaStorageSOPClassUID = UID(sop_class)
        one.save_as(path, enforce_file_format=True)
    studies, rejected = load_all(index_dicom(DicomSource(folder=str(folder))))
    assert not rejected and np.array_equal(studies[0].image.values, wanted.image.values)


def test_a_series_of_screenshots_alone_is_read_and_one_of_objects_alone_refused(tmp_path: Path) -> None:
    def captures(_: int, dataset: Dataset) -> None:
        dataset.SOPClassUID = ScreenshotStorage

    Series(change=captures).write(tmp_path / "captures")
    studies, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path / "captures"))))
    assert (len(studies), rejected) == (1, [])

    def raw(_: int, dataset: Dataset) -> None:
        dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.66"

    Series(change=raw).write(tmp_path / "raw")
    studies, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path / "raw"))))
    assert [one.reason for one in rejected] == ["not_an_image"] and "Raw Data" in rejected[0].detail


VENDORS: dict[str, dict[str, object]] = {
    "Siemens": {"ImageType": ["DERIVED", "PRIMARY", "DIFFUSION", "ADC"], "SeriesDescription": "ep2d_diff_tra"},
    "GE": {"ImageType": ["DERIVED", "SECONDARY"], "SeriesDescription": "Apparent Diffusion Coefficient (mm2/s)"},
    "Philips": {"ImageType": ["ORIGINAL", "PRIMARY", "ADC_UNSPECIFIED", "ADC"], "SeriesDescription": "dreg"},
    "Philips, by its name": {"ImageType": ["DERIVED", "PRIMARY", "M", "SE"], "SeriesDescription": "dReg - dADC"},
    "UIH": {"ImageType": ["DERIVED", "SECONDARY", "OTHER"], "SeriesDescription": "epi_dwi_tra_ADC"},
    "by its unit": {"ImageType": ["DERIVED", "SECONDARY"], "SeriesDescription": "map", "RescaleType": "10^-6 mm^2/s"},
}


def folder_of_vendors(root: Path) -> Path:
    """ADC maps of every vendor; beside each a T2-weighted series, and a diffusion series with b 50 and 800."""
    for number, (vendor, elements) in enumerate(VENDORS.items()):
        known = {"patient": f"P{number}", "study": f"1.2.{number}"}
        Series(series=f"1.2.{number}.1", extra=elements, **known).write(root / vendor / "a")
        plain = {"ImageType": ["ORIGINAL", "PRIMARY", "M"], "SeriesDescription": "t2_tse_tra"}
        Series(series=f"1.2.{number}.2", extra=plain, **known).write(root / vendor / "b")
        for b in (50, 800):
            weighted = {"ImageType": ["ORIGINAL", "PRIMARY"], "SeriesDescription": "dwi", "DiffusionBValue": float(b)}

            def again(_: int, dataset: Dataset, b: int = b) -> None:
                dataset.SOPInstanceUID += f".{b}"

            Series(series=f"1.2.{number}.3", extra=weighted, change=again, **known).write(root / vendor / f"c{b}")
    return root


def test_a_kind_is_selected_by_evidence_of_every_vendor_in_one_folder(tmp_path: Path) -> None:
    folder = str(folder_of_vendors(tmp_path))
    adc, rejected = load_all(index_dicom(DicomSource(folder=folder, select={"kind": "adc"}), adc=True))
    assert rejected == []
    assert sorted(one.study.split("/")[-1] for one in adc) == [f"1.2.{number}.1" for number in range(len(VENDORS))]
    fitted, rejected = load_all(index_dicom(DicomSource(folder=folder, select={"kind": "dwi"}, derive="adc"), adc=True))
    assert rejected == []
    assert sorted(one.study.split("/")[-1] for one in fitted) == [f"1.2.{number}.3" for number in range(len(VENDORS))]


def test_what_init_sees_is_what_the_reader_selects(tmp_path: Path, data: Path, thorough: bool) -> None:
    roots = [folder_of_vendors(tmp_path), data / "dicom_zoo", *([data / "prostatex" / "dicom"] if thorough else [])]
    for root in roots:
        seen, _ = dicom_series(path for path in sorted(root.rglob("*")) if path.is_file())
        for kind in ("adc", "dwi"):
            wanted = {path.relative_to(root).as_posix() for one in seen if one.what == kind for path in one.paths}
            try:
                index = index_dicom(DicomSource(folder=str(root), select={"kind": kind}))
            except ValueError as error:
                assert "source.select" in str(error) and not wanted  # noqa: PT017
                continue
            assert wanted <= {item.name for item in index.items if item.state == "part"}  # and damaged files


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"select": {"kind": "t2w"}}, "must be adc or dwi, found 't2w'"),
        ({"select": {"kind": ""}}, "empty text"),
        ({"select": {"kind": "adc"}, "derive": "adc"}, "say kind: dwi"),
    ],
)
def test_a_kind_that_does_not_exist_or_contradicts_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        DicomSource(folder=".", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("maker", ["UIH", "Siemens"])
def test_tiled_images_are_refused_by_their_name_and_init_does_not_draft_a_fit(tmp_path: Path, maker: str) -> None:
    def tiled(_: int, dataset: Dataset) -> None:
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "DIFFUSION", *(["MOSAIC"] if maker == "Siemens" else [])]
        dataset.DiffusionBValue = 800.0 if dataset.ImagePositionPatient[2] else 0.0
        if maker == "UIH":
            dataset.private_block(0x0065, "Image Private Header", create=True).add_new(0x50, "DS", "24")

    Series(change=tiled).write(tmp_path / "P1")
    _, rejected = load_all(index_dicom(DicomSource(folder=str(tmp_path), derive="adc"), adc=True))
    named = "United Imaging GRID" if maker == "UIH" else "Siemens mosaic"
    assert [one.reason for one in rejected] == ["mosaic"] and named in rejected[0].detail
    sight = discover_folder(tmp_path)
    assert "derive" not in sight.sites[0].source and not sight.complete
    assert any(named in doubt and "dcm2niix" in doubt for doubt in sight.doubts)
