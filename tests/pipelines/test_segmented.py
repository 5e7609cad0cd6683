"""Segmentations as DICOM files: what is written is read again, by us and by others, where it was drawn."""

from __future__ import annotations

import copy
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import highdicom
import numpy as np
import pydicom
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from small_series import Series

from pipelines.data.dicom.concepts import SCHEME, class_concept
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.dicom.segmentation import read_segmentation
from pipelines.data.grids.geometry import resample_volume
from pipelines.data.index import Candidate
from pipelines.data.sources import DicomSource
from pipelines.data.study import Unusable, Volume
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import ResultMaker
from translating import SELECT, errors, phantom

MAKER = ResultMaker(bytes(range(32)), "fedavg", "0123456789abcdef", datetime(2026, 1, 2, 3, 4, 5))
NAMES = ("gland", "lesion")


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    folder = phantom(tmp_path_factory.mktemp("phantom"), "A")
    return index_dicom(DicomSource(folder=str(folder), select=SELECT)).candidates[0]


def blobs(shape: tuple[int, ...]) -> np.ndarray:
    """Two classes side by side; the first and the last slice are empty."""
    values = np.zeros(shape, np.uint8)
    values[8:21, 10:30, 1:-1] = 1
    values[21:25, 12:19, 1:3] = 2
    return values


def write(folder: Path, series: Candidate, values: np.ndarray, names: tuple[str, ...] = NAMES) -> Path:
    path = folder / "mask.dcm"
    assert series.stack is not None
    path.write_bytes(seg_bytes(Volume(values, series.affine), series.stack, names, MAKER))
    return path


def on(series: Candidate, found: Volume) -> np.ndarray:
    return resample_volume(found, series.affine, series.shape, 0)  # type: ignore[arg-type]


# -- round trips ------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]), classes=st.integers(1, 7))
@settings(max_examples=12)
def test_what_is_written_is_read_at_the_same_places_of_the_patient(series, tmp_path_factory, seed, share, classes):
    generator = np.random.default_rng(seed)
    values = generator.integers(1, classes + 1, series.shape) * (generator.random(series.shape) < share)
    path = write(tmp_path_factory.mktemp("x"), series, values.astype(np.uint8), tuple(f"c{n}" for n in range(classes)))
    found = read_segmentation(path)
    assert np.array_equal(on(series, found), values)
    inside = values.any(axis=(0, 1)).sum()
    assert found.values.shape[2] == (series.shape[2] if not inside else np.ptp(np.flatnonzero(values.any((0, 1)))) + 1)


def test_an_enhanced_series_gets_a_segmentation_of_its_one_file(series, tmp_path):
    classic = [pydicom.dcmread(frame.path) for frame in series.stack.volumes[0]]
    for file in classic:
        file.PatientName = "A^B"
    made = highdicom.legacy.LegacyConvertedEnhancedMRImage(
        classic, highdicom.UID(), 1, highdicom.UID(), 1, transfer_syntax_uid="1.2.840.10008.1.2.1"
    )
    (tmp_path / "in").mkdir()
    made.save_as(tmp_path / "in" / "enhanced.dcm")
    (found,) = index_dicom(DicomSource(folder=str(tmp_path / "in"))).candidates
    path = write(tmp_path, found, blobs(found.shape))
    assert np.array_equal(on(found, read_segmentation(path)), blobs(found.shape))
    (group,) = {item.ReferencedSOPInstanceUID for item in pydicom.dcmread(path).SourceImageSequence}
    assert group == made.SOPInstanceUID


def test_slices_whose_directions_differ_in_the_last_digit_get_a_segmentation(tmp_path):
    """As of a GE scanner, whose diffusion-weighted slices have 0.999999 and 1."""

    def change(index: int, dataset: Dataset) -> None:
        dataset.ImageOrientationPatient = [1 - 1e-6 * index, 1e-6 * index, 0, 0, 1, 0]
        dataset.PixelSpacing = [2 + 1e-5 * index, 1.5]
        dataset.FrameOfReferenceUID = "1.2.3.9"

    (found,) = index_dicom(DicomSource(folder=str(Series(change=change).write(tmp_path / "in")))).candidates
    values = np.zeros(found.shape, np.uint8)
    values[1:3, 2:5, 1:4] = 1
    assert np.array_equal(on(found, read_segmentation(write(tmp_path, found, values, ("lesion",)))), values)


def test_frames_refer_to_the_images_that_they_lie_on(series, tmp_path):
    file = pydicom.dcmread(write(tmp_path, series, blobs(series.shape)))
    places = {frame.values["SOPInstanceUID"]: frame.values["ImagePositionPatient"] for frame in series.stack.volumes[0]}
    assert {item.ReferencedSOPInstanceUID for item in file.SourceImageSequence} == set(places)
    for group in file.PerFrameFunctionalGroupsSequence:
        (image,) = group.DerivationImageSequence[0].SourceImageSequence
        own = group.PlanePositionSequence[0].ImagePositionPatient
        assert np.allclose(own, places[image.ReferencedSOPInstanceUID], atol=1e-6)


def test_the_file_is_the_patients_and_the_same_bytes_when_made_again(series, tmp_path):
    path = write(tmp_path, series, blobs(series.shape))
    file, source = pydicom.dcmread(path), pydicom.dcmread(series.stack.volumes[0][0].path)
    for keyword in ("PatientID", "PatientName", "PatientBirthDate", "AccessionNumber", "StudyInstanceUID", "StudyDate"):
        assert file[keyword].value == source[keyword].value
    assert file.SeriesInstanceUID != source.SeriesInstanceUID and file.SOPInstanceUID.startswith("2.25.")
    again = seg_bytes(Volume(blobs(series.shape), series.affine), series.stack, NAMES, MAKER)
    assert path.read_bytes() == again
    other = ResultMaker(b"another key of 16", *(MAKER.label, MAKER.digest, MAKER.when))
    made = seg_bytes(Volume(blobs(series.shape), series.affine), series.stack, NAMES, other)
    assert file.SOPInstanceUID.encode() not in made and file.SeriesInstanceUID.encode() not in made


def test_classes_have_public_codes_where_there_are_any(series, tmp_path):
    file = pydicom.dcmread(write(tmp_path, series, blobs(series.shape), ("gland", "optic_cup")))
    one, other = (item.SegmentedPropertyTypeCodeSequence[0] for item in file.SegmentSequence)
    assert (one.CodeValue, one.CodingSchemeDesignator) == ("41216001", "SCT")
    assert (other.CodeValue, other.CodingSchemeDesignator) == ("optic_cup", SCHEME)
    assert [item.CodingSchemeDesignator for item in file.CodingSchemeIdentificationSequence] == [SCHEME]
    assert class_concept("disc").kind == codes.SCT.OpticNerveHead and class_concept("LESION").kind == codes.SCT.Lesion
    assert len(class_concept("a" * 80).kind.value) == 16


@pytest.mark.parametrize("scanner", list("APE"))
@pytest.mark.parametrize("share", ["blobs", "nothing"])
def test_dciodvfy_finds_no_error(tmp_path, scanner, share):
    images = phantom(tmp_path / "phantom", scanner)
    found = index_dicom(DicomSource(folder=str(images), select=SELECT)).candidates[0]
    values = blobs(found.shape) * (share == "blobs")
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", found, values, ("gland", "a-name-of-our-own"))
    assert errors(tmp_path / "out") == set()


@pytest.mark.parametrize("select", [{"ImageType": "ADC"}, {"SeriesDescription": "t2"}])
def test_dciodvfy_finds_no_error_on_real_series(data, tmp_path, select):
    folder = data / "prostatex" / "dicom"
    if not folder.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    for found in index_dicom(DicomSource(folder=str(folder), select=select)).candidates:
        path = write(tmp_path, found, blobs(found.shape))
        assert np.array_equal(on(found, read_segmentation(path)), blobs(found.shape))
        assert errors(tmp_path) == set()


def test_a_mask_that_does_not_belong_to_the_images_is_refused(series):
    values = blobs(series.shape)
    for mask, said in (
        (Volume(values, series.affine + np.eye(4)), "not on the grid"),
        (Volume(values[1:], series.affine), "not on the grid"),
        (Volume(values * 4, series.affine), "0 to 2 are named"),
        (Volume(values.astype(np.float32), series.affine), "label map"),
    ):
        with pytest.raises(ValueError, match=said):
            seg_bytes(mask, series.stack, NAMES, MAKER)


# -- files of others --------------------------------------------------------------------------------------------------


def foreign(
    series: Candidate, planes: np.ndarray, labels: tuple[str, ...], kind: str = "BINARY", **more: Any
) -> Dataset:
    """A segmentation by highdicom itself. planes: (slices, rows, columns[, segments])."""
    sources = [pydicom.dcmread(frame.path) for frame in series.stack.volumes[0]]
    described = [
        highdicom.seg.SegmentDescription(
            number,
            label,
            codes.SCT.Organ,
            class_concept(label).kind,
            "MANUAL",
            tracking_id=label,
            tracking_uid=f"1.2.{number}",
        )
        for number, label in enumerate(labels, start=1)
    ]
    uids = [highdicom.UID() for _ in range(2)]
    return highdicom.seg.Segmentation(
        sources, planes, kind, described, uids[0], 1, uids[1], 1, "m", "n", "1", "2", **more
    )


def save(folder: Path, file: Dataset) -> Path:
    file.save_as(folder / "foreign.dcm", enforce_file_format=True)
    return folder / "foreign.dcm"


def shares(shape: tuple[int, ...], segments: int) -> np.ndarray:
    values = np.random.default_rng(0).random((*shape[::-1], segments))
    return values / values.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP", "FRACTIONAL"])
def test_highdicom_reads_the_same_values_at_the_same_places(series, tmp_path, kind):
    planes = blobs(series.shape).T.copy()
    planes[1] = 0  # a slice in the middle that has no frame
    path = save(tmp_path, foreign(series, planes, NAMES, kind))
    found = read_segmentation(path)
    volume = highdicom.seg.segread(path).get_volume(combine_segments=True, relabel=False, allow_missing_positions=True)
    theirs = Volume(volume.array.transpose(2, 1, 0), np.diag([-1.0, -1, 1, 1]) @ volume.affine[:, [2, 1, 0, 3]])
    assert np.array_equal(on(series, found), on(series, theirs))
    assert np.array_equal(on(series, found), planes.T)


@pytest.mark.parametrize("size", [(5, 7), (3, 11), (2, 5), (13, 9)])
def test_frames_that_do_not_end_at_a_byte_are_read(series, tmp_path, size):
    cut = copy.copy(series.stack.volumes[0])
    sources = [pydicom.dcmread(frame.path, stop_before_pixels=True) for frame in cut]
    for source in sources:
        source.Rows, source.Columns = size
    planes = np.random.default_rng(1).integers(0, 2, (len(sources), *size)).astype(np.uint8)
    planes[0, 0, 0] = planes[-1, 0, 0] = 1
    described = highdicom.seg.SegmentDescription(1, "x", codes.SCT.Organ, codes.SCT.Lesion, "MANUAL")
    uid = highdicom.UID
    path = save(
        tmp_path,
        highdicom.seg.Segmentation(sources, planes, "BINARY", [described], uid(), 1, uid(), 1, "m", "n", "1", "2"),
    )
    assert np.array_equal(read_segmentation(path).values.T, planes)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_of_fractions_the_highest_that_reaches_the_threshold_counts(series, tmp_path, threshold):
    planes = shares(series.shape, 3)
    found = read_segmentation(
        save(tmp_path, foreign(series, planes, ("a", "b", "c"), "FRACTIONAL")), threshold=threshold
    )
    stored = np.round(planes * 255) / 255
    wanted = np.where(stored.max(-1) >= threshold, stored.argmax(-1) + 1, 0).T
    assert np.array_equal(on(series, found), wanted)


def test_segments_are_chosen_by_label_or_by_code_and_may_overlap_where_one_is_meant(series, tmp_path):
    planes = np.stack([blobs(series.shape).T > 0, blobs(series.shape).T == 2, blobs(series.shape).T == 1], -1)
    path = save(tmp_path, foreign(series, planes.astype(np.uint8), ("Prostate", "LESION", "other")))
    with pytest.raises(Unusable, match="of class 1 and of class 2"):
        read_segmentation(path)
    assert np.array_equal(on(series, read_segmentation(path, ("lesion",))) > 0, blobs(series.shape) == 2)
    assert np.array_equal(on(series, read_segmentation(path, ("gland",))) > 0, blobs(series.shape) > 0)  # SCT 41216001
    assert np.array_equal(on(series, read_segmentation(path, ("other", "lesion"))), blobs(series.shape))
    with pytest.raises(Unusable) as refused:
        read_segmentation(path, ("kidney",))
    assert refused.value.reason == "no_segment"


UNSAID = {
    "spacing": lambda measures: delattr(measures, "SpacingBetweenSlices"),
    "spacing, which is 0": lambda measures: setattr(measures, "SpacingBetweenSlices", 0),
    "spacing, which is no step": lambda measures: setattr(measures, "SpacingBetweenSlices", 100),
    "thickness": lambda measures: delattr(measures, "SliceThickness"),
}


@given(drawn=st.sets(st.integers(0, 3), min_size=2), unsaid=st.sampled_from(sorted(UNSAID)))
@example(drawn={0, 3}, unsaid="spacing")
@settings(max_examples=12)
def test_empty_slices_stay_empty_where_the_file_says_only_one_of_spacing_and_thickness(
    series, tmp_path_factory, drawn, unsaid
):
    """Empty frames are left out: two lesions must not become neighbours, or grow through what lies between them."""
    folder, values = tmp_path_factory.mktemp("x"), np.zeros(series.shape, np.uint8)
    values[8:12, 10:14, sorted(drawn)] = 1
    file = pydicom.dcmread(write(folder, series, values))
    assert file.NumberOfFrames == len(drawn)
    (measures,) = shared(file).PixelMeasuresSequence
    measures.SliceThickness = measures.SpacingBetweenSlices  # no gap between slices, as most are
    UNSAID[unsaid](measures)
    assert np.array_equal(on(series, read_segmentation(save(folder, file))), values)


# -- malformed files --------------------------------------------------------------------------------------------------


def own(file: Dataset, index: int = 0) -> Dataset:
    return file.PerFrameFunctionalGroupsSequence[index]


def shared(file: Dataset) -> Dataset:
    return file.SharedFunctionalGroupsSequence[0]


def moved(file: Dataset, axis: int, by: float, index: int = 0) -> None:
    position = own(file, index).PlanePositionSequence[0].ImagePositionPatient
    position[axis] = float(position[axis]) + by


def far(file: Dataset) -> None:
    """The first frame a million slices below."""
    one, other = (np.array(own(file, index).PlanePositionSequence[0].ImagePositionPatient, float) for index in (0, 1))
    own(file).PlanePositionSequence[0].ImagePositionPatient = [float(f"{x:.9g}") for x in one - 1e6 * (other - one)]


DEFECTS: dict[str, tuple[str, Any]] = {
    "another kind of object": ("not_a_segmentation", lambda f: setattr(f, "SOPClassUID", "1.2.840.10008.5.1.4.1.1.4")),
    "no type": ("segmentation_type", lambda f: delattr(f, "SegmentationType")),
    "no segments": ("missing_tag", lambda f: delattr(f, "SegmentSequence")),
    "no pixels": ("missing_tag", lambda f: delattr(f, "PixelData")),
    "a segment that is not described": (
        "bad_segment",
        lambda f: setattr(own(f).SegmentIdentificationSequence[0], "ReferencedSegmentNumber", 9),
    ),
    "a frame of no segment": ("missing_tag", lambda f: delattr(own(f), "SegmentIdentificationSequence")),
    "a segment number too high": ("bad_segment", lambda f: setattr(f.SegmentSequence[0], "SegmentNumber", 300)),
    "a frame without a position": ("missing_tag", lambda f: delattr(own(f), "PlanePositionSequence")),
    "a position of two numbers": (
        "bad_tag",
        lambda f: setattr(own(f).PlanePositionSequence[0], "ImagePositionPatient", [1, 2]),
    ),
    "no orientation": ("missing_tag", lambda f: delattr(shared(f), "PlaneOrientationSequence")),
    "an orientation that is none": (
        "non_orthogonal",
        lambda f: setattr(shared(f).PlaneOrientationSequence[0], "ImageOrientationPatient", [1, 0, 0, 1, 0, 0]),
    ),
    "a frame between two slices": ("gap", lambda f: moved(f, 2, 1.3)),
    "a frame beside the others": ("not_collinear", lambda f: moved(f, 0, 5.0, index=1)),
    "a frame a mile away": ("too_large", far),
    "two frames at one place": (
        "duplicate_slice",
        lambda f: setattr(own(f), "PlanePositionSequence", own(f, 1).PlanePositionSequence),
    ),
    "fewer groups than frames": ("multi_frame", lambda f: f.PerFrameFunctionalGroupsSequence.pop()),
    "more columns than pixels": ("unreadable", lambda f: setattr(f, "Columns", f.Columns * 4)),
    "more than fits": ("too_large", lambda f: (setattr(f, "Columns", 65535), setattr(f, "Rows", 65535))),
    "pixels cut short": ("unreadable", lambda f: setattr(f, "PixelData", f.PixelData[: len(f.PixelData) // 2])),
    "a spacing of zero": ("bad_tag", lambda f: setattr(shared(f).PixelMeasuresSequence[0], "PixelSpacing", [0, 1])),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_has_its_reason(series, tmp_path, defect):
    reason, change = DEFECTS[defect]
    values = blobs(series.shape)
    values[8:12, 10:12, :] = 1
    file = pydicom.dcmread(write(tmp_path, series, values))
    change(file)
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID
    with pytest.raises(Unusable) as refused:
        read_segmentation(save(tmp_path, file))
    assert refused.value.reason == reason, refused.value


@given(data=st.data())
@settings(max_examples=20)
def test_damage_ends_as_a_reason_or_as_a_label_map(series, tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("x"), series, blobs(series.shape))
    good = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(132, len(good) - 1), min_size=1, max_size=4)):
        good[place] = data.draw(st.integers(0, 255))
    path.write_bytes(good[: data.draw(st.sampled_from([len(good), len(good) // 2, 200, 0]))])
    with suppress(Unusable):
        assert read_segmentation(path).values.dtype == np.uint8
