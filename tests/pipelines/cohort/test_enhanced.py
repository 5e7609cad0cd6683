"""Enhanced multi-frame files: the same data as classic files are the same study; frames split as their headers say."""

from __future__ import annotations

import copy
import gzip
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from enhanced_file import enhanced, put
from pydicom.dataset import Dataset, FileDataset
from pydicom.uid import ExplicitVRBigEndian, JPEGLSLossless, RLELossless, generate_uid

from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.sources import DicomSource
from pipelines.data.study import Rejected, Study
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource

Change = Callable[[Dataset], None]
B_VALUES = (50.0, 400.0, 800.0)


def phantom(folder: Path, scanner: str) -> list[FileDataset]:
    """The slices of one phantom patient, in the order of their names, which is not that of their positions."""
    write(PhantomSource(scanner=scanner, patients=1, slices=5), folder)  # type: ignore[arg-type]
    return [pydicom.dcmread(path) for path in sorted((folder / "images").rglob("*.dcm"))]


def weighted(folder: Path, rescale: float = 1.0) -> list[FileDataset]:
    """A diffusion-weighted series made of a phantom's ADC map: signal = 30000 exp(-b ADC) in three b-values."""
    result = []
    for index, dataset in enumerate(phantom(folder, "P")):
        adc = dataset.pixel_array.astype(float)
        for b in B_VALUES:
            image = copy.deepcopy(dataset)
            image.PixelData = np.rint(30000 * np.exp(-b * adc * 1e-6)).astype("<u2").tobytes()
            image.ImageType = ["ORIGINAL", "PRIMARY", "DIFFUSION", "NONE"]
            image.BitsStored, image.HighBit = 16, 15
            image.DiffusionBValue, image.SOPInstanceUID = b, f"1.2.{index}.{b:g}"
            image.RescaleSlope, image.RescaleIntercept, image.RescaleType = str(rescale), "0", "US"
            for keyword in ("RealWorldValueMappingSequence", "ModalityLUTSequence"):
                if keyword in image:
                    del image[keyword]
            result.append(image)
    return result


def save(folder: Path, *datasets: FileDataset) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index, dataset in enumerate(datasets):
        dataset.save_as(folder / f"{index}.dcm", enforce_file_format=True)
    return folder


def read(folder: Path, **options: Any) -> tuple[list[Study], list[Rejected]]:
    return read_dicom(DicomSource(folder=str(folder), **options))


def only(folder: Path, **options: Any) -> Study:
    studies, rejected = read(folder, **options)
    assert not rejected
    (study,) = studies
    return study


def assert_same(one: Study, other: Study) -> None:
    assert np.array_equal(one.image.values, other.image.values)
    assert np.array_equal(one.image.affine, other.image.affine)
    assert (one.patient, one.unit, one.facts) == (other.patient, other.unit, other.facts)


SHARED = ("ImageOrientationPatient", "PixelSpacing", "RescaleSlope")


@pytest.mark.parametrize(
    ("scanner", "shared"),
    [
        *((scanner, ()) for scanner in "ABDPLE"),
        ("P", SHARED),
        *(pytest.param(scanner, SHARED, marks=pytest.mark.slow) for scanner in "ABDLE"),
    ],
)
def test_a_phantom_is_the_same_study_in_classic_and_enhanced_files(
    tmp_path: Path, scanner: str, shared: tuple[str, ...]
) -> None:
    classic = phantom(tmp_path / "phantom", scanner)
    reference = only(tmp_path / "phantom" / "images")
    assert_same(only(save(tmp_path / "enhanced", enhanced(classic, shared=shared))), reference)
    assert_same(only(save(tmp_path / "halves", *two_files(classic))), reference)


def two_files(classic: Sequence[FileDataset]) -> list[FileDataset]:
    parts = [enhanced(classic[:2]), enhanced(classic[2:])]
    parts[1].SOPInstanceUID = generate_uid(entropy_srcs=["second"])
    return parts


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, ExplicitVRBigEndian])
def test_compression_and_byte_order_change_nothing(tmp_path: Path, syntax: str) -> None:
    file = enhanced(phantom(tmp_path / "phantom", "P"))
    if syntax == ExplicitVRBigEndian:
        file.PixelData = np.frombuffer(file.PixelData, "<u2").astype(">u2").tobytes()
        file["PixelData"].VR = "OW"
        file.file_meta.TransferSyntaxUID = syntax
        path = tmp_path / "other" / "0.dcm"
        path.parent.mkdir()
        pydicom.dcmwrite(path, file, little_endian=False, implicit_vr=False, enforce_file_format=True)
    else:
        file.compress(syntax)
        save(tmp_path / "other", file)
    assert_same(only(tmp_path / "other"), only(tmp_path / "phantom" / "images"))


def test_several_b_values_are_several_volumes_until_one_is_selected(tmp_path: Path) -> None:
    series = weighted(tmp_path / "phantom")
    folder = save(tmp_path / "enhanced", enhanced(series))
    studies, rejected = read(folder)
    assert not studies
    assert [found.reason for found in rejected] == ["several_volumes"]
    chosen = only(folder, select={"DiffusionBValue": "400"})
    classic = save(tmp_path / "classic", *(image for image in series if image.DiffusionBValue == 400))
    assert_same(chosen, only(classic))
    with pytest.raises(ValueError, match="none of 15"):
        read(folder, select={"DiffusionBValue": "0"})


@pytest.mark.parametrize("rescale", [1.0, 0.25])
def test_the_fitted_adc_is_that_of_the_phantom_in_classic_and_enhanced_files(tmp_path: Path, rescale: float) -> None:
    series = weighted(tmp_path / "phantom", rescale)
    classic = only(save(tmp_path / "classic", *series), derive="adc")
    assert classic.unit == "1e-6 mm2/s"
    assert_same(only(save(tmp_path / "enhanced", enhanced(series)), derive="adc"), classic)
    truth = stored(tmp_path / "phantom" / "images")
    assert np.allclose(classic.image.values, truth, atol=1.0)
    assert np.ptp(truth) > 500


def stored(folder: Path) -> np.ndarray:
    """Stored values (columns, rows, slices) by a computation of our own: sorted by the slices' places."""
    datasets = [pydicom.dcmread(path) for path in folder.rglob("*.dcm")]
    datasets.sort(key=lambda dataset: float(dataset.SliceLocation))
    return np.stack([dataset.pixel_array.T for dataset in datasets], axis=-1).astype(float)


def test_directions_of_one_b_value_are_averaged_as_logarithms(tmp_path: Path) -> None:
    series = weighted(tmp_path / "phantom")
    doubled = []
    for image in series:
        for number, factor in enumerate((1.0, 1.0) if image.DiffusionBValue < 800 else (0.8, 1.25)):
            again = copy.deepcopy(image)
            again.PixelData = np.rint(image.pixel_array * factor).astype("<u2").tobytes()
            again.SOPInstanceUID = f"{image.SOPInstanceUID}.{number}"
            doubled.append(again)
    once = only(save(tmp_path / "once", *series), derive="adc")
    twice = only(save(tmp_path / "twice", enhanced(doubled)), derive="adc")
    assert np.allclose(twice.image.values, once.image.values, atol=2.0)


def test_maps_within_a_diffusion_series_are_left_out(tmp_path: Path) -> None:
    series = weighted(tmp_path / "phantom")
    reference = only(save(tmp_path / "plain", enhanced(series)), derive="adc")
    maps = [copy.deepcopy(image) for image in series if image.DiffusionBValue == 800]
    for image in maps:
        image.ImageType = ["DERIVED", "PRIMARY", "DIFFUSION", "ADC"]
    assert_same(only(save(tmp_path / "with", enhanced([*series, *maps])), derive="adc"), reference)


def lacking(series: list[FileDataset]) -> list[FileDataset]:
    return series[1:]


def no_b(series: list[FileDataset]) -> list[FileDataset]:
    for image in series:
        del image.DiffusionBValue
    return series


def one_b(series: list[FileDataset]) -> list[FileDataset]:
    return [image for image in series if image.DiffusionBValue == 50]


def shifted(series: list[FileDataset]) -> list[FileDataset]:
    for image in series:
        if image.DiffusionBValue == 800:
            image.ImagePositionPatient = [float(image.ImagePositionPatient[0]) + 5, *image.ImagePositionPatient[1:]]
    return series


@pytest.mark.parametrize("defect", [lacking, no_b, one_b, shifted])
def test_a_diffusion_series_that_cannot_be_fitted_is_refused(tmp_path: Path, defect: Any) -> None:
    folder = save(tmp_path / "bad", *defect(weighted(tmp_path / "phantom")))
    studies, rejected = read(folder, derive="adc")
    assert not studies
    assert [found.reason for found in rejected] == ["b_values"]
    assert rejected[0].detail.endswith(".")


def test_an_adc_map_is_not_fitted_again(tmp_path: Path) -> None:
    phantom(tmp_path / "phantom", "P")
    _, rejected = read(tmp_path / "phantom" / "images", derive="adc")
    assert [found.reason for found in rejected] == ["b_values"]


def test_stacks_of_different_orientations_are_different_studies(tmp_path: Path) -> None:
    classic = phantom(tmp_path / "phantom", "P")
    turned = [copy.deepcopy(image) for image in classic]
    for image in turned:
        image.ImageOrientationPatient = [1, 0, 0, 0, 0, -1]
        image.ImagePositionPatient = [0, float(image.SliceLocation), 0]
    file = enhanced([*classic, *turned])
    for index, group in enumerate(file.PerFrameFunctionalGroupsSequence):
        put(group, "FrameContentSequence", "StackID", str(1 + index // len(classic)))
    studies, rejected = read(save(tmp_path / "enhanced", file))
    assert not rejected
    assert [study.study.rsplit("/", 1)[1] for study in studies] == ["1", "2"]
    assert np.array_equal(studies[0].image.values, only(tmp_path / "phantom" / "images").image.values)
    for group in file.PerFrameFunctionalGroupsSequence:
        del group.FrameContentSequence
    _, rejected = read(save(tmp_path / "unnamed", file))
    assert [found.reason for found in rejected] == ["mixed_orientation"]


def fewer_groups(file: Dataset) -> None:
    file.PerFrameFunctionalGroupsSequence = list(file.PerFrameFunctionalGroupsSequence)[:-1]


def more_groups(file: Dataset) -> None:
    groups = list(file.PerFrameFunctionalGroupsSequence)
    file.PerFrameFunctionalGroupsSequence = [*groups, copy.deepcopy(groups[-1])]


def no_position(file: Dataset) -> None:
    del file.PerFrameFunctionalGroupsSequence[1].PlanePositionSequence


def last_missing(file: Dataset) -> None:
    for index, group in enumerate(file.PerFrameFunctionalGroupsSequence):
        put(group, "FrameContentSequence", "InStackPositionNumber", 2 + index)


def counted(file: Dataset) -> None:
    for group in file.PerFrameFunctionalGroupsSequence:
        group.MRImageFrameTypeSequence[0].FrameType = ["ORIGINAL", "PRIMARY", "ADC", "NONE"]
    file.NumberOfSlices = 6


def more_frames_than_pixels(file: Dataset) -> None:
    file.PixelData = file.PixelData[: len(file.PixelData) // 2]


def huge(file: Dataset) -> None:
    file.Rows = file.Columns = 60000


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("multi_frame", fewer_groups),
        ("multi_frame", more_groups),
        ("missing_tag", no_position),
        ("gap", last_missing),
        ("gap", counted),
        ("unreadable", more_frames_than_pixels),
        ("unreadable", huge),
    ],
)
def test_each_defect_of_an_enhanced_file_has_its_reason(tmp_path: Path, reason: str, change: Change) -> None:
    file = enhanced(phantom(tmp_path / "phantom", "P"))
    change(file)
    studies, rejected = read(save(tmp_path / "bad", file))
    assert not studies
    assert [found.reason for found in rejected] == [reason]
    assert rejected[0].detail.endswith(".")


def test_compressed_frames_of_an_impossible_size_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    file = enhanced(phantom(tmp_path / "phantom", "P"))
    file.compress(RLELossless)
    huge(file)
    index = index_dicom(DicomSource(folder=str(save(tmp_path / "bad", file))))
    assert [found.reason for found in index.rejected] == ["too_large"]


def test_positions_in_private_macros_are_not_read(tmp_path: Path) -> None:
    file = enhanced(phantom(tmp_path / "phantom", "P"))
    for group in file.PerFrameFunctionalGroupsSequence:
        other = Dataset()
        other.ImagePositionPatient, other.ImageType = [1, 2, 3], ["OTHER"]
        group.private_block(0x2005, "Philips MR Imaging DD 005", create=True).add_new(0x0F, "SQ", [other])
    assert_same(only(save(tmp_path / "other", file)), only(tmp_path / "phantom" / "images"))


def test_a_conversion_may_leave_attributes_unassigned(tmp_path: Path) -> None:
    series = weighted(tmp_path / "phantom")
    reference = only(save(tmp_path / "classic", *series), derive="adc")
    file = enhanced(series)
    for image, group in zip(series, file.PerFrameFunctionalGroupsSequence, strict=True):
        del group.MRDiffusionSequence
        item = Dataset()
        item.private_block(0x0019, "SIEMENS MR HEADER", create=True).add_new(
            0x0C, "IS", str(int(image.DiffusionBValue))
        )
        group.UnassignedPerFrameConvertedAttributesSequence = [item]
    assert_same(only(save(tmp_path / "legacy", file), derive="adc"), reference)


def same_corners(study: Study, path: Path) -> None:
    """Hold an affine against nibabel's own reading, whose slices may run the other way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nibabel calls its reader experimental
        from nibabel.nicom.dicomwrappers import wrapper_from_file
    wrapper = wrapper_from_file(str(path))
    theirs = np.diag([-1.0, -1.0, 1.0, 1.0]) @ wrapper.affine
    columns, rows, slices = study.image.values.shape
    turned = theirs[:, [1, 0, 2, 3]]  # nibabel counts rows first
    ends = [study.image.affine @ [0, 0, k, 1] for k in (0, slices - 1)]
    expected = [turned @ [0, 0, k, 1] for k in (0, slices - 1)]
    assert np.allclose(ends, expected, atol=1e-3) or np.allclose(ends, expected[::-1], atol=1e-3)
    assert np.allclose(study.image.affine[:3, :2], turned[:3, :2], atol=1e-4)
    assert (columns, rows, slices) == tuple(np.array(wrapper.image_shape)[[1, 0, 2]])


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_siemens_xa_lies_where_nibabel_says(data: Path, tmp_path: Path, number: int) -> None:
    path = data / "dicom_zoo" / "siemens_enhanced_xa10" / f"6_{number}.dcm"
    (tmp_path / path.name).write_bytes(path.read_bytes())
    study = only(tmp_path)
    same_corners(study, path)
    raw = pydicom.dcmread(path).pixel_array  # rescale slopes are 1, slices are stored upwards
    assert np.array_equal(study.image.values, raw.transpose(2, 1, 0))


def test_philips_in_nibabels_test_data_lies_where_nibabel_says(tmp_path: Path) -> None:
    packed = Path(nibabel.__file__).parent / "nicom" / "tests" / "data" / "philips_mprage.dcm.gz"
    path = tmp_path / "mprage.dcm"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    study = only(tmp_path)
    assert study.image.values.shape == (256, 256, 176)
    same_corners(study, path)


def test_philips_frames_have_their_own_rescale(data: Path) -> None:
    folder = data / "dicom_zoo" / "philips_enhanced"
    studies, rejected = read(folder)
    assert not studies
    assert [found.reason for found in rejected] == ["several_volumes"]
    file = pydicom.dcmread(folder / "IM_0027_fMAP.dcm")
    for kind in ("M", "FIELD_MAP"):
        study = only(folder, select={"ImageType": f"T1\\{kind}"})
        planes = []
        for stored_plane, group in zip(file.pixel_array, file.PerFrameFunctionalGroupsSequence, strict=True):
            rescale = group.PixelValueTransformationSequence[0]
            if group.MRImageFrameTypeSequence[0].FrameType[3] == kind:
                z = float(group.PlanePositionSequence[0].ImagePositionPatient[2])
                planes.append((z, stored_plane * float(rescale.RescaleSlope) + float(rescale.RescaleIntercept)))
        expected = np.stack([plane.T for _, plane in sorted(planes, key=lambda pair: pair[0])], axis=-1)
        assert np.allclose(study.image.values, expected, rtol=1e-5)


def test_prostatex_fitted_adc_agrees_with_the_scanners_map(data: Path) -> None:
    folder = data / "prostatex" / "dicom"
    fitted, rejected = read(folder, derive="adc", select={"ImageType": "DIFFUSION", "SeriesDescription": "ep2d"})
    assert {found.reason for found in rejected} <= {"b_values"}
    maps, _ = read(folder, select={"ImageType": "ADC"})
    assert len(fitted) == len(maps) == 2
    for study in fitted:
        (scanner,) = [found for found in maps if found.patient == study.patient]
        assert np.array_equal(study.image.affine, scanner.image.affine)
        both = (study.image.values > 500) & (scanner.image.values > 500)
        assert abs(np.median(study.image.values[both] / scanner.image.values[both]) - 1) < 0.05
