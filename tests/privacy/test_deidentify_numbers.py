"""Dates and numbers: no shift is told, no number of a patient is left, and no geometry is altered."""

from __future__ import annotations

import base64
import io
import struct
from datetime import datetime
from pathlib import Path

import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from dicom_with_identifiers import HOMER, KEY, confirmed, image, insert_raw
from pipelines.data.pseudonym import make_pseudonym
from privacy.deidentify.actions import ESSENTIAL, NOBODYS_TIMES
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes, deidentify_image
from privacy.deidentify.keyed import days_of_shift, new_uid
from privacy.deidentify.quiet import silence_warnings
from privacy.deidentify.shift import central_day
from real_files import PYDICOM, files_below

DUMMY = "19000101"
GEOMETRY = {
    "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
    "ImagePositionPatient": [1.5, -20.25, 7],
    "PixelSpacing": [1.25, 1.25],
    "SliceThickness": 3,
    "SpacingBetweenSlices": 3,
    "RescaleSlope": 1,
    "RescaleIntercept": 0,
    "DiffusionBValue": 800.0,
}


def cleaned(dataset: Dataset, **profile: object) -> Dataset:
    return pydicom.dcmread(io.BytesIO(as_bytes(deidentify_image(dataset, key=KEY, profile=Profile(**profile)))))


def spaced(**more: object) -> Dataset:
    return image(SliceThickness="3", SpacingBetweenSlices="3", RescaleSlope="1", RescaleIntercept="0", **more)


@pytest.mark.parametrize("keyword", ["ContentDate", "SeriesDate", "AcquisitionDate", "AcquisitionDateTime"])
@pytest.mark.parametrize("value", [DUMMY, "19000102", "18000101", "19700101", "99991231", "00010101", "20000101"])
def test_placeholders_are_not_moved(keyword, value) -> None:
    assert cleaned(image(**{keyword: value})).get(keyword) in (None, "", DUMMY)


@pytest.mark.parametrize("tag", sorted(NOBODYS_TIMES))
def test_dates_of_scanners_and_standards_are_not_moved(tag) -> None:
    vr = pydicom.datadict.dictionary_VR(tag)
    dataset = image()
    insert_raw(dataset, tag, vr, {"TM": "101010"}.get(vr, "20180304"))
    for found in (cleaned(dataset), cleaned(dataset, keep_times=True)):
        assert tag not in found or found[tag].value in (None, "", DUMMY, "000000")


def test_the_version_of_a_code_tells_no_shift() -> None:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "41216001", "SCT", "Prostate"
    code.MappingResource, code.ContextGroupVersion, code.ContextIdentifier = "DCMR", "20020904", "4031"
    code.ContextGroupLocalVersion = "20190101"
    (item,) = cleaned(image(AnatomicRegionSequence=[code])).AnatomicRegionSequence
    assert (item.ContextGroupVersion, item.ContextGroupLocalVersion) == (DUMMY, DUMMY)
    assert item.CodeMeaning == "Prostate"


@given(st.dates(datetime(1902, 1, 1).date(), datetime(2150, 1, 1).date()))
@settings(max_examples=60)
def test_only_dates_near_the_study_are_moved(day) -> None:
    found = cleaned(image(AcquisitionDate=f"{day:%Y%m%d}"))
    study, moved = (datetime.strptime(text, "%Y%m%d").date() for text in (HOMER.day, found.StudyDate))
    near = abs((day - study).days) <= 20 * 366 and day.strftime("%m%d") != "0101"
    if near:
        assert datetime.strptime(found.AcquisitionDate, "%Y%m%d").date() - day == moved - study
    elif day.strftime("%m%d") != "0101":
        assert not found.AcquisitionDate


def test_without_a_study_date_the_middle_of_the_dates_counts() -> None:
    dates = [datetime(year, 5, 7).date() for year in (1950, 2018, 2019, 2020, 1800)]
    assert (
        central_day([], dates) == dates[1]
        and central_day(dates[3:], dates) == dates[3]
        and central_day([], dates[4:]) is None
    )
    found = cleaned(image(StudyDate="", AcquisitionDateTime="", AcquisitionDate="20190508", SeriesDate="19500101"))
    assert found.ContentDate != HOMER.day and found.AcquisitionDate and found.SeriesDate == DUMMY


@pytest.mark.parametrize(
    "numbers",
    [
        {"AccessionNumber": "0000000"},
        {"AccessionNumber": "00000001"},
        {"StudyID": "000003"},
        {"RequestedProcedureID": "000800"},
        {"PatientID": "0000001"},
        {"PatientID": "0000800"},
        {"PatientID": "100010"},
    ],
)
def test_padded_numbers_leave_the_geometry_alone(numbers) -> None:
    found = cleaned(spaced(**numbers))
    assert {key: found[key].value for key in GEOMETRY} == GEOMETRY and found[0x0019, 0x100C].value == 800


@pytest.mark.parametrize("value", ["70417762", "-70417762", "70417762.5", "7.0417762E7", "00070417762", "7041\\7762"])
@pytest.mark.parametrize(("tag", "needed"), [(0x00281052, True), (0x00281050, False), (0x0019100C, True)])
def test_a_number_of_the_patient_is_removed_and_where_the_image_needs_it_the_file_refused(value, tag, needed) -> None:
    dataset = image()
    insert_raw(dataset, tag, "DS", value)
    if needed:
        with pytest.raises(NotDeidentifiable, match="identifier") as refusal:
            deidentify_image(dataset, key=KEY)
        assert HOMER.number not in str(refusal.value)
    else:
        assert tag not in cleaned(dataset)


@pytest.mark.parametrize("value", [70417762.5, -70417762.0, 20190507.171923])
@pytest.mark.parametrize(("tag", "needed"), [(0x00189073, False), (0x00189087, True)])
def test_numbers_in_binary_are_looked_at_without_sign_and_fraction(value, tag, needed) -> None:
    dataset = image()
    insert_raw(dataset, tag, "FD", struct.pack("<d", value))
    if needed:
        with pytest.raises(NotDeidentifiable, match="identifier"):
            deidentify_image(dataset, key=KEY)
    else:
        assert tag not in cleaned(dataset)


@pytest.mark.parametrize(
    ("patient", "core"), [("MRN-00123456", "00123456"), ("MRN-00123456", "123456"), ("70417762^^^EVG", "70417762"),
                          ("70417762-5", "70417762")],
)  # fmt: skip
def test_the_digits_of_a_longer_number_are_found(patient, core) -> None:
    dataset = image(PatientID=patient, FrameLabel=f"seg {core}", ImageType=["ORIGINAL", "PRIMARY", core])
    insert_raw(dataset, 0x00201002, "IS", core)
    found = cleaned(dataset)
    assert found.FrameLabel == "REMOVED" and 0x00201002 not in found and found.ImageType[2] == "REMOVED"


@pytest.mark.parametrize(
    "text",
    [
        *("07MAY2019", "07-May-2019", "May_7,_2019", "7.5.2019", "5/7/2019", "7/5/19", "190507", "070519", "2019/5/7"),
        *("2019:05:07", "20190507T17", "b._07.03.1929", "7_mar_1929", "2019-May-07"),
    ],
)
def test_dates_are_found_in_usual_spellings(text) -> None:
    assert cleaned(image(FrameLabel="v " + text.replace("_", " "))).FrameLabel == "REMOVED"


@pytest.mark.parametrize("text", ["7.5.2018", "1905071", "17MAY2018", "x190507y", "8.5.2019", "syngo MR E11", "1.5.0"])
def test_other_numbers_are_no_dates(text) -> None:
    assert cleaned(image(FrameLabel=text)).FrameLabel == text


def test_a_malformed_birth_date_is_found_too() -> None:
    dataset = image(FrameLabel="7.3.1929")
    insert_raw(dataset, 0x00100030, "DA", "7.3.1929")
    assert cleaned(dataset).FrameLabel == "REMOVED"


@pytest.mark.parametrize("folder", ["phi", "dicom_zoo", "prostatex", PYDICOM])
def test_real_files_keep_orientation_position_spacing_rescale_and_b_values(
    data: Path, folder: str, thorough: bool
) -> None:
    seen = 0
    for path in files_below(data, folder, thorough)[:: 1 if thorough else 2]:
        try:
            with silence_warnings():
                original = pydicom.dcmread(path)
                profile = confirmed(original, (0, 0, 1, 1)) if original.get("Rows") else Profile()
                found = pydicom.dcmread(io.BytesIO(as_bytes(deidentify_image(original, key=KEY, profile=profile))))
        except (NotDeidentifiable, pydicom.errors.InvalidDicomError):
            continue
        seen += 1
        before, after = essential(original), essential(found)
        assert before == after, path.name
    assert seen or folder == "phi"


def essential(dataset: Dataset, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], str]]:
    """What an image needs, at any depth; but not of icons and other images that are removed, nor of colours."""
    found = []
    with silence_warnings():
        for element in dataset:
            here = (*path, int(element.tag))
            if element.VR == "SQ" and element.keyword not in {"IconImageSequence", ""}:
                found += [entry for item in element.value or () for entry in essential(item, here)]
            elif int(element.tag) in ESSENTIAL - {0x00280006} and str(element.value or "") != "":
                found.append((here, str(element.value)))
    return found


def test_no_pseudonym_tells_a_shift_or_a_uid() -> None:
    for most in (3650, 36500):
        told = [make_pseudonym(KEY, f"{word}\0{HOMER.number}") for word in ("days", "dates", "uid", "uids")]
        found = days_of_shift(KEY, HOMER.number, 365, most)
        drawn = [365 + int.from_bytes(base64.b32decode(name.upper())[:8], "big") % (most - 364) for name in told]
        assert found not in drawn
    assert days_of_shift(KEY, HOMER.number, 1, 1 << 60) == days_of_shift(KEY, f" {HOMER.number} ", 1, 1 << 60)
    assert new_uid(KEY, HOMER.number) != new_uid(KEY, HOMER.number + "1")
