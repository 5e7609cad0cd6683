"""Whatever VR an archive gave an element of the patient, every result that copies it has the dictionary's."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom import config
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from small_series import Series

from pipelines.data.dicom.reader import index_dicom
from pipelines.data.sources import DicomSource
from pipelines.data.study import Volume
from pipelines.data.writing.dicom_capture import capture_bytes
from pipelines.data.writing.dicom_rejection import rejection_bytes
from pipelines.data.writing.dicom_report import Finding, report_bytes
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import PATIENT_AND_STUDY, Pseudonymous, ResultMaker, copy_uids
from pipelines.data.writing.representations import with_dictionary_vrs
from privacy.deidentify.dicom_image import Profile

KEY = bytes(range(32))
MAKER = ResultMaker(KEY, "fedavg", "0123456789abcdef", datetime(2026, 1, 2, 3, 4, 5))
TEXTS = {"DA": "20200101", "TM": "101500", "AS": "045Y", "DS": "1.75", "IS": "2", "CS": "F", "UI": "1.2.3"}
WRONG = ("LO", "LT", "SH", "UT", "CS")
NEEDED = ("StudyInstanceUID", "SpecificCharacterSet")


def wrong(header: Dataset, keyword: str, vr: str) -> None:
    tag = tag_for_keyword(keyword)
    assert tag is not None
    right = dictionary_VR(tag)
    if right == "SQ":
        item = Dataset()
        item.add(DataElement("PatientID", vr, "12", validation_mode=config.IGNORE))
        header.add(DataElement(tag, "SQ", Sequence([item])))
    elif keyword not in NEEDED:
        text = TEXTS.get(right, str(header.get(keyword) or "Qzvk"))
        header.pop(keyword, None)
        header.add(DataElement(tag, vr, text, validation_mode=config.IGNORE))


def misfits(dataset: Dataset) -> Iterator[str]:
    for element in dataset:
        if element.tag.is_private:
            continue
        if element.VR not in dictionary_VR(element.tag).split(" or "):
            yield f"{element.keyword} is {element.VR}"
        for item in element.value if element.VR == "SQ" else ():
            yield from misfits(item)


@pytest.mark.repeats(4)
@pytest.mark.parametrize("hidden", [None, Pseudonymous(KEY, Profile())], ids=["named", "deidentified"])
@pytest.mark.parametrize("vr", WRONG)
@pytest.mark.filterwarnings("ignore")
def test_every_result_has_the_dictionarys_vr_of_what_it_copies(tmp_path: Path, vr: str, hidden: object) -> None:
    def odd(_: int, dataset: Dataset) -> None:
        dataset.FrameOfReferenceUID, dataset.SeriesNumber, dataset.InstanceNumber = "1.2.3.9", 5, 1
        for keyword in (*PATIENT_AND_STUDY, "BodyPartExamined", "Laterality"):
            wrong(dataset, keyword, vr)

    index = index_dicom(DicomSource(folder=str(Series(patient="12", change=odd).write(tmp_path))))
    assert not index.rejected
    stack = index.candidates[0].stack
    assert stack is not None
    rows, columns = stack.shape[1], stack.shape[0]
    more = {"pseudonymous": hidden}
    report = report_bytes(Finding(name="positive", positive=True, score=0.8, threshold=0.5), stack, None, MAKER, **more)
    mask = Volume(np.ones(stack.shape, np.uint8), stack.affine)
    picture = np.zeros((rows, columns, 3), np.uint8)
    files = {
        "report": report,
        "mask": seg_bytes(mask, stack, ("gland",), MAKER, **more),
        "capture": capture_bytes(picture, stack.volumes[0][0], stack, MAKER, derivation="A map.", **more),
        "note": rejection_bytes([copy_uids(pydicom.dcmread(io.BytesIO(report)))], stack, MAKER, **more),
    }
    for name, data in files.items():
        found = pydicom.dcmread(io.BytesIO(data))
        assert list(misfits(found)) == [], name
        if hidden is None:
            assert (found.PatientID, found.PatientSex, found.StudyDate) == ("12", "F", "20200101"), name


@pytest.mark.parametrize(
    ("keyword", "vr", "value", "right"),
    [
        ("PatientID", "US", 5, "5"),
        ("PatientID", "OB", b"17 ", "17"),
        ("PatientID", "UT", "x" * 90, "x" * 90),
        ("PatientSize", "FD", 1.8123456789012345, 1.81234567890123),
        ("PatientBirthDate", "LO", "unknown", None),
        ("PatientAge", "LO", "45 years", None),
        ("Rows", "IS", "12", 12),
        ("OtherPatientIDsSequence", "LO", "17", None),
    ],
)
def test_a_value_is_kept_where_the_right_vr_can_hold_it(keyword: str, vr: str, value: object, right: object) -> None:
    header = Dataset()
    tag = tag_for_keyword(keyword)
    assert tag is not None
    header.add(DataElement(tag, vr, value, validation_mode=config.IGNORE))
    found = with_dictionary_vrs(header).get(keyword)
    assert found == right and list(misfits(header)) == []
