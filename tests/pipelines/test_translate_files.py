"""New files of a translator: whose they are, what they say of themselves, and of what kind they may be."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
from pydicom.dataset import Dataset
from pydicom.uid import EnhancedMRImageStorage, RLELossless

from harmonize.cyclegan import CycleGan
from harmonize.intensity import Identity, Percentile
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.nifti.reader import index_nifti
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.writing.dicom_series import candidate_stack
from pipelines.runs.exits import Exit
from pipelines.translate import main
from privacy.deidentify.keyed import make_pseudonym, new_uid
from translating import (
    KEY,
    NUMBERS,
    SELECT,
    by_position,
    content,
    errors,
    five,
    nifti,
    oblique,
    only,
    phantom,
    run,
    smooth,
    table,
    through,
    translator,
)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return five(tmp_path_factory.mktemp("hospital"))


# -- identity of files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(hospital, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    assert run(translator(folder, Percentile(), NUMBERS), hospital / "A" / "images", folder / "out") == Exit.OK
    return folder


def test_uids_are_new_unique_and_follow_from_key_images_and_translator(hospital, done, tmp_path):
    old, new = by_position(hospital / "A" / "images"), by_position(done / "out")
    uids = {file.SOPInstanceUID for file in new.values()}
    assert len(uids) == len(new) and not uids & {file.SOPInstanceUID for file in old.values()}
    for place, file in new.items():
        assert file.file_meta.MediaStorageSOPInstanceUID == file.SOPInstanceUID
        (source,) = file.SourceImageSequence
        original = new_uid(KEY, old[place].SOPInstanceUID)  # as pipelines.deidentify names it
        assert source.ReferencedSOPInstanceUID == original != file.SOPInstanceUID
        assert file.StudyInstanceUID == new_uid(KEY, old[place].StudyInstanceUID)
        assert file.FrameOfReferenceUID == new_uid(KEY, old[place].FrameOfReferenceUID)
        assert file.SeriesInstanceUID not in (old[place].SeriesInstanceUID, new_uid(KEY, old[place].SeriesInstanceUID))
    assert len({file.SeriesInstanceUID for file in new.values()}) == 1
    again, other = tmp_path / "again" / "out", tmp_path / "other" / "out"
    for out, numbers in ((again, NUMBERS), (other, {"numbers": torch.tensor([[-0.7, 0.2]])})):
        file = translator(out.parent, Percentile(), numbers)
        assert run(file, hospital / "A" / "images", out) == Exit.OK
    assert content(again) == content(done / "out")
    assert not {file.SOPInstanceUID for file in by_position(other).values()} & uids
    assert not {file.SeriesInstanceUID for file in by_position(other).values()} & {
        file.SeriesInstanceUID for file in new.values()
    }


def test_the_image_says_that_and_how_it_was_derived(done):
    for file in by_position(done / "out").values():
        assert list(file.ImageType) == ["DERIVED", "SECONDARY", "ADC"]
        assert "translated by percentile of site north" in file.DerivationDescription
        assert file.SeriesDescription == "ADC translated by percentile of site north"
        assert file.PatientIdentityRemoved == "YES" and file.PatientID == make_pseudonym(KEY, "PH0-0000")
        assert file.file_meta.TransferSyntaxUID == "1.2.840.10008.1.2.1"


def test_nothing_of_a_patient_is_in_the_output_or_in_its_names(hospital, done):
    secrets: set[bytes] = set()
    for file in by_position(hospital / "A" / "images").values():
        for keyword in ("PatientID", "AccessionNumber", "StudyDate", "InstitutionName", "StudyInstanceUID"):
            secrets.add(str(file[keyword].value).encode())
        secrets |= {part.encode() for part in str(file.PatientName).split("^") if len(part) > 4}
        secrets |= {file.SOPInstanceUID.encode(), file.SeriesInstanceUID.encode()}
    for name, data in content(done / "out").items():
        assert not [secret for secret in secrets if secret in data or secret in name.encode()]


def test_a_site_that_is_named_in_the_file_is_not_named_again(hospital, tmp_path):
    file = translator(tmp_path, Identity(), site="Hospital A")
    assert run(file, hospital / "A" / "images", tmp_path / "out") == Exit.OK
    assert all("Hospital" not in str(one.DerivationDescription) for one in by_position(tmp_path / "out").values())


@pytest.mark.parametrize("scanner", list("AP"))
def test_dciodvfy_finds_no_error_that_the_input_has_not(hospital, tmp_path, monkeypatch, scanner):
    through(monkeypatch, lambda x: x + 0.1)
    assert run(translator(tmp_path, CycleGan()), hospital / scanner / "images", tmp_path / "out") == Exit.OK
    assert errors(tmp_path / "out") <= errors(hospital / scanner / "images")


# -- other files ------------------------------------------------------------------------------------------------------


def test_compressed_files_are_written_uncompressed(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "P")
    plain = only(images)
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        file.compress(RLELossless, generate_instance_uid=False)
        file.save_as(path)
    assert run(translator(tmp_path, Identity()), images, tmp_path / "out") == Exit.OK
    assert np.array_equal(only(tmp_path / "out").image.values, plain.image.values)


def enhanced(images: Path, folder: Path) -> None:
    """One enhanced file of classic ones, with a slope of its own in each frame."""
    classic = [file for _, file in sorted(by_position(images).items(), key=lambda one: one[0][2])]
    result = copy.deepcopy(classic[0])
    result.SOPClassUID = result.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
    result.NumberOfFrames, groups, pixels = len(classic), [], []
    for number, file in enumerate(classic, 1):
        group = Dataset()
        for macro, keywords in (
            ("PlanePositionSequence", ["ImagePositionPatient"]),
            ("PlaneOrientationSequence", ["ImageOrientationPatient"]),
            ("PixelMeasuresSequence", ["PixelSpacing", "SliceThickness"]),
        ):
            item = Dataset()
            for keyword in keywords:
                setattr(item, keyword, file[keyword].value)
            setattr(group, macro, [item])
        values, kind, slope = Dataset(), Dataset(), Dataset()
        slope.RescaleSlope, slope.RescaleIntercept, slope.RescaleType = str(number), "0", "1e-6 mm2/s"
        kind.FrameType = ["ORIGINAL", "PRIMARY", "ADC", "NONE"]
        values.StackID, values.InStackPositionNumber, values.DimensionIndexValues = "1", number, [1, number]
        group.PixelValueTransformationSequence, group.MRImageFrameTypeSequence = [slope], [kind]
        group.FrameContentSequence = [values]
        groups.append(group)
        pixels.append((file.pixel_array // number).astype("<u2").tobytes())
    result.ImageType = ["ORIGINAL", "PRIMARY", "ADC", "NONE"]
    for keyword in (
        "ImagePositionPatient",
        "ImageOrientationPatient",
        "PixelSpacing",
        "SliceThickness",
        "SliceLocation",
    ):
        del result[keyword]
    result.SharedFunctionalGroupsSequence, result.PerFrameFunctionalGroupsSequence = [Dataset()], groups
    result.PixelData = b"".join(pixels)
    folder.mkdir()
    result.save_as(folder / "one.dcm", enforce_file_format=True)


@pytest.mark.parametrize("by", [0.0, 0.1])
def test_an_enhanced_file_stays_one_file_whose_frames_keep_their_places_and_slopes(hospital, tmp_path, monkeypatch, by):
    through(monkeypatch, lambda x: x + by)
    enhanced(hospital / "P" / "images", tmp_path / "in")
    assert run(translator(tmp_path, CycleGan()), tmp_path / "in", tmp_path / "out") == Exit.OK
    (path,) = (tmp_path / "out").rglob("*.dcm")
    file, before, after = pydicom.dcmread(path), only(tmp_path / "in"), only(tmp_path / "out")
    assert np.array_equal(before.image.affine, after.image.affine)
    allowed = np.arange(1, 5) / 2 + 0.01  # half of each frame's step
    expected = np.where(before.image.values == 0, 0, before.image.values + by * 1750)
    assert (np.abs(after.image.values - expected).max(axis=(0, 1)) <= allowed).all()
    assert list(file.ImageType) == ["DERIVED", "PRIMARY", "ADC", "NONE"]
    frames = file.PerFrameFunctionalGroupsSequence
    assert {tuple(group.MRImageFrameTypeSequence[0].FrameType) for group in frames} == {tuple(file.ImageType)}
    assert errors(tmp_path / "out") <= errors(tmp_path / "in")


def test_a_file_whose_other_frames_are_not_translated_is_refused(hospital, tmp_path):
    enhanced(hospital / "P" / "images", tmp_path / "in")
    path = tmp_path / "in" / "one.dcm"
    file = pydicom.dcmread(path)
    for group in file.PerFrameFunctionalGroupsSequence[2:]:
        group.MRImageFrameTypeSequence[0].FrameType = ["ORIGINAL", "PRIMARY", "OTHER", "NONE"]
    file.save_as(path)
    found = run(translator(tmp_path, Identity()), tmp_path / "in", tmp_path / "out")
    assert found == Exit.DATA
    assert table(tmp_path / "out", "quarantine")[0]["reason"] == "shared_file"


def test_a_candidate_of_dicom_files_hands_its_images_over_in_their_places_and_another_has_none(hospital, tmp_path):
    (found,) = index_dicom(DicomSource(folder=str(hospital / "A" / "images"), select=SELECT)).candidates
    frames = candidate_stack(found).volumes[0]
    places = [tuple(map(float, frame.values["ImagePositionPatient"])) for frame in frames]
    assert places == sorted(by_position(hospital / "A" / "images"), key=lambda place: place[2])
    nifti(tmp_path / "in" / "a.nii.gz", smooth(oblique((1.5, 1.5, 3.0)), (50, 50, 2)))
    (other,) = index_nifti(NiftiSource(folder=str(tmp_path / "in"))).candidates
    with pytest.raises(TypeError, match="a candidate of DICOM files is needed"):
        candidate_stack(other)


def test_names_of_nifti_files_stay_only_if_that_is_asked_for(tmp_path):
    nifti(tmp_path / "in" / "ward" / "Miller.nii.gz", smooth(oblique((1.5, 1.5, 3.0)), (50, 50, 2)))
    file = translator(tmp_path, Identity(), source=NiftiSource(folder="."))
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    assert all("Miller" not in name and "ward" not in name for name in content(tmp_path / "out"))
    kept = main([file, str(tmp_path / "in"), "--out", str(tmp_path / "kept"), "--keep-names"])
    assert kept == Exit.OK and list(content(tmp_path / "kept")) == ["ward/Miller.nii.gz"]
