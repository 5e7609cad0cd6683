"""Structured reports: in the patient's study, with complete references, the same bytes when they are made again."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import highdicom
import numpy as np
import pydicom
import pydicom.data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)
from small_series import Series, everywhere

from pipelines.batch.origin import find_frame
from pipelines.data.dicom.concepts import SCHEME
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.index import Candidate
from pipelines.data.sources import DicomSource
from pipelines.data.study import Unusable
from pipelines.data.writing.dicom_capture import capture_bytes
from pipelines.data.writing.dicom_rejection import rejection_bytes
from pipelines.data.writing.dicom_report import Finding, report_bytes
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import EMPTY_ALLOWED, NOTICE, Pseudonymous, ResultMaker
from privacy.deidentify.dicom_image import Profile, deidentify_image
from privacy.deidentify.leftovers import find_leftovers
from translating import SELECT, errors, phantom

KEY = bytes(range(32))
MAKER = ResultMaker(KEY, "fedavg", "0123456789abcdef", datetime(2026, 1, 2, 3, 4, 5))
HIDDEN = Pseudonymous(KEY, Profile())
TWO = Finding(
    *(),
    name="positive",
    positive=True,
    score=0.87312345,
    threshold=0.5,
    examples=19,
    unlike=True,
    distance=1.3,
    p_value=0.004,
)
THREE = Finding(name="benign_naevus_of_a_kind", classes={"benign_naevus_of_a_kind": 0.7, "melanoma": 0.2, "other": 0.1})


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    return only(phantom(tmp_path_factory.mktemp("phantom"), "A"))


def only(folder: Path, **select: str) -> Candidate:
    return index_dicom(DicomSource(folder=str(folder), select=select or SELECT)).candidates[0]


def made(series: Candidate, finding: Finding = TWO, place: int | None = 1, **more: object) -> bytes:
    assert series.stack is not None
    highest = None if place is None else series.stack.volumes[0][place]
    return report_bytes(finding, series.stack, highest, more.pop("maker", MAKER), **more)  # type: ignore[arg-type]


def read(data: bytes) -> Dataset:
    return pydicom.dcmread(io.BytesIO(data))


def group_of(data: bytes) -> highdicom.sr.MeasurementsAndQualitativeEvaluations:
    report = highdicom.sr.ComprehensiveSR.from_dataset(read(data))
    (group,) = report.content.get_image_measurement_groups()
    return group


def evidence(document: Dataset) -> set[str]:
    return {
        one.ReferencedSOPInstanceUID
        for study in document.CurrentRequestedProcedureEvidenceSequence
        for each in study.ReferencedSeriesSequence
        for one in each.ReferencedSOPSequence
    }


def references(document: Dataset) -> set[str]:
    """Every instance that is named anywhere in the content."""
    return {
        one.ReferencedSOPInstanceUID
        for item in document.ContentSequence
        for one in [*item.get("ReferencedSOPSequence", []), *_below(item)]
    }


def _below(item: Dataset) -> list[Dataset]:
    return [
        one
        for inner in item.get("ContentSequence", [])
        for one in [*inner.get("ReferencedSOPSequence", []), *_below(inner)]
    ]


# -- what it says -----------------------------------------------------------------------------------------------------


def test_a_report_says_what_was_found_where_and_by_whom(series):
    group, place = group_of(made(series)), series.stack.volumes[0][1].values["SOPInstanceUID"]
    numbers = {one.name.value: one.value for one in group.get_measurements()}
    probability = codes.DCM.Probability.value
    assert numbers == {probability: 0.873123, "threshold": 0.5, "distance": 1.3, "p_value": 0.004, "examples": 19.0}
    units = {one.name.value: one.unit.value for one in group.get_measurements()}
    assert units.pop("distance") == "{ratio}" and units.pop("examples") == "{images}"
    assert set(units.values()) == {"{0:1}"}
    (score,) = group.get_measurements(name=codes.DCM.Probability)
    assert [one.ReferencedSOPSequence[0].ReferencedSOPInstanceUID for one in score.referenced_images] == [place]
    assert [one.ReferencedSOPSequence[0].ReferencedSOPInstanceUID for one in group.source_images] == [place]
    told = evaluations(group)
    assert told == {"class": codes.SCT.Positive, "unlike_training": codes.SCT.Yes}
    said = made(series).decode("latin-1")
    assert said.count(NOTICE) == 2 and "fedavg" in said and MAKER.digest in said
    installed = f"Consilium {installed_package()}"
    assert installed in said and read(made(series)).SoftwareVersions == [MAKER.digest, installed]


def test_items_stand_on_lines_of_their_own(series):
    """Of a container that says CONTINUOUS viewers make a line of bare numbers."""
    document = read(made(series))
    every = [document, *_items(document)]
    assert {item.ContinuityOfContent for item in every if "ContinuityOfContent" in item} == {"SEPARATE"}


def _items(item: Dataset) -> list[Dataset]:
    return [one for inner in item.get("ContentSequence", []) for one in [inner, *_items(inner)]]


def evaluations(group: highdicom.sr.MeasurementsAndQualitativeEvaluations) -> dict[str, highdicom.sr.CodedConcept]:
    """By concept, the algorithm's family aside, which is a coded value too."""
    every = {one.name.value: one.value for one in group.get_qualitative_evaluations()}
    return {name: value for name, value in every.items() if name != codes.DCM.AlgorithmFamily.value}


def installed_package() -> str:
    from importlib.metadata import version

    return version("consilium")


def test_classes_of_more_than_two_have_their_probabilities(series):
    group = group_of(made(series, THREE))
    numbers = {one.name.meaning: one.value for one in group.get_measurements()}
    assert numbers["Probability of melanoma"] == 0.2 and numbers["Probability of benign_naevus_of_a_kind"] == 0.7
    (told,) = evaluations(group).values()
    assert told.meaning == THREE.name and told.scheme_designator == SCHEME
    assert all(len(one.name.value) <= 16 and len(one.name.meaning) <= 64 for one in group.get_measurements())


def test_what_is_unknown_is_left_out(series):
    finding = Finding(name="negative", positive=False, score=0.1, threshold=0.5, unlike=True, distance=float("inf"))
    group = group_of(made(series, finding, None))
    assert {one.name.value for one in group.get_measurements()} == {
        codes.DCM.Probability.value,
        "threshold",
        "examples",
    }
    assert group.source_images == [] and references(read(made(series, finding, None))) == set()


# -- laws -------------------------------------------------------------------------------------------------------------


@given(place=st.none() | st.integers(0, 3), share=st.floats(0, 1), unlike=st.none() | st.booleans())
@settings(max_examples=15)
def test_every_reference_is_evidence_and_every_image_is_there(series, place, share, unlike):
    document = read(made(series, replace(TWO, score=share, unlike=unlike), place))
    images = {frame.values["SOPInstanceUID"] for frame in series.stack.volumes[0]}
    assert evidence(document) == images and references(document) <= images
    assert len(references(document)) == (place is not None)
    assert [one.StudyInstanceUID for one in document.CurrentRequestedProcedureEvidenceSequence] == [
        document.StudyInstanceUID
    ]


def test_the_same_input_gives_the_same_bytes_and_anything_else_other_uids(series):
    assert made(series) == made(series)
    earlier = read(made(series))
    others = [
        made(series),
        made(series, place=0),
        made(series, place=None),
        made(series, replace(TWO, score=0.1)),
        made(series, maker=replace(MAKER, digest="f" * 16)),
        made(series, maker=replace(MAKER, key=b"another key of 16")),
        made(series, maker=replace(MAKER, when=datetime(2026, 1, 2, 3, 4, 6))),
        made(series, predecessor=earlier),
        made(series, pseudonymous=HIDDEN),
    ]
    found = [read(data) for data in others]
    assert len({one.SOPInstanceUID for one in found}) == len({one.SeriesInstanceUID for one in found}) == len(others)
    assert {one.file_meta.MediaStorageSOPInstanceUID for one in found} == {one.SOPInstanceUID for one in found}


@pytest.mark.parametrize("label", ["fedavg", "a-label-that-is-much-longer-than-there-is-room-for-in-it-at-all"])
def test_a_list_of_series_shows_what_not_to_rely_on(series, label):
    maker, frame = replace(MAKER, label=label), series.stack.volumes[0][0]
    picture = np.zeros((3, 3, 3), np.uint8)
    for unlike in (None, False, True):
        results = [
            made(series, replace(TWO, unlike=unlike), maker=maker),
            capture_bytes(picture, frame, series.stack, maker, derivation="x", unlike=unlike),
            seg_bytes(*mask_on(series, 1), ("lesion",), maker, unlike=unlike),
        ]
        for said in (read(data).SeriesDescription for data in results):
            assert said.startswith("UNLIKE TRAINING: ") is bool(unlike) and len(said) <= 64 and label[:10] in said
        assert all("research use only" in read(data).SeriesDescription for data in results[:2])


def test_a_report_is_in_the_patients_study_and_not_in_a_series_of_the_scanner(series):
    document, image = read(made(series)), pydicom.dcmread(series.stack.volumes[0][0].path)
    for keyword in (*EMPTY_ALLOWED, "StudyInstanceUID", "SpecificCharacterSet"):
        assert document.get(keyword, "") == image.get(keyword, ""), keyword
    assert document.SeriesInstanceUID != image.SeriesInstanceUID and document.Modality == "SR"
    flags = (document.CompletionFlag, document.VerificationFlag, document.PreliminaryFlag)
    assert flags == ("COMPLETE", "UNVERIFIED", "PRELIMINARY")


def test_a_newer_report_names_the_one_that_it_replaces(series):
    earlier = read(made(series))
    (study,) = read(made(series, replace(TWO, score=0.2), predecessor=earlier)).PredecessorDocumentsSequence
    (each,) = study.ReferencedSeriesSequence
    (one,) = each.ReferencedSOPSequence
    assert (
        one.ReferencedSOPInstanceUID == earlier.SOPInstanceUID and each.SeriesInstanceUID == earlier.SeriesInstanceUID
    )
    assert "PredecessorDocumentsSequence" not in earlier


def test_a_note_rejects_what_is_replaced(series):
    gone = [read(seg_bytes(*mask_on(series, fill), ("lesion",), MAKER)) for fill in (0, 1)] + [read(made(series))]
    data = rejection_bytes(gone, series.stack, MAKER)
    assert data == rejection_bytes(gone[::-1], series.stack, MAKER)
    note = highdicom.ko.KeyObjectSelectionDocument.from_dataset(read(data))
    title = read(data).ConceptNameCodeSequence[0]
    assert (title.CodeValue, title.CodingSchemeDesignator) == ("113001", "DCM")
    assert evidence(note) == references(note) == {one.SOPInstanceUID for one in gone}
    assert [item.ValueType for item in read(data).ContentSequence].count("COMPOSITE") == 1, "the report"
    assert note.StudyInstanceUID == gone[0].StudyInstanceUID and note.PatientID == gone[0].PatientID
    with pytest.raises(ValueError, match="at least one"):
        rejection_bytes([], series.stack, MAKER)


def mask_on(series: Candidate, fill: int) -> tuple[object, object]:
    from pipelines.data.study import Volume

    return Volume(np.full(series.shape, fill, np.uint8), series.affine), series.stack


# -- without identity -------------------------------------------------------------------------------------------------


def test_without_identity_a_result_fits_the_images_that_deidentification_writes(series):
    original = pydicom.dcmread(series.stack.volumes[0][0].path)
    clean = deidentify_image(original, key=KEY, profile=Profile())
    note = rejection_bytes([read(made(series, pseudonymous=HIDDEN))], series.stack, MAKER, pseudonymous=HIDDEN)
    mask = seg_bytes(*mask_on(series, 1), ("lesion",), MAKER, HIDDEN)
    for data in (made(series, pseudonymous=HIDDEN), mask, note):
        document = read(data)
        for keyword in ("PatientID", "PatientName", "StudyInstanceUID", "StudyDate", "PatientIdentityRemoved"):
            assert document[keyword].value == clean[keyword].value, keyword
        assert find_leftovers(original, data) == []
        assert document.get("ContentTime", "000000") == "000000"
    images = {frame.values["SOPInstanceUID"] for frame in series.stack.volumes[0]}
    document = read(made(series, pseudonymous=HIDDEN))
    assert not evidence(document) & images and clean.SOPInstanceUID in evidence(document)


def test_a_result_that_still_names_the_patient_is_refused(series):
    patient = str(series.stack.volumes[0][0].values["PatientID"])
    with pytest.raises(Unusable, match="leftover"):
        made(series, maker=replace(MAKER, label=f"model of {patient}"), pseudonymous=HIDDEN)


def test_the_night_of_a_result_does_not_tell_the_shift_of_the_dates(series):
    original = pydicom.dcmread(series.stack.volumes[0][0].path)
    clean = deidentify_image(original, key=KEY, profile=Profile())
    night = datetime.strptime(str(original.StudyDate), "%Y%m%d").replace(hour=3)
    document = read(made(series, maker=replace(MAKER, when=night), pseudonymous=HIDDEN))
    assert document.ContentDate == document.InstanceCreationDate == document.SeriesDate == clean.StudyDate
    assert str(original.StudyDate) not in str(document)


# -- odd headers ------------------------------------------------------------------------------------------------------

ODD: dict[str, Callable[[int, Dataset], None]] = {
    "nothing that may miss": lambda _, one: [
        one.pop(keyword, None) for keyword in EMPTY_ALLOWED if keyword != "PatientID"
    ],
    "a sex that is none": everywhere(PatientSex="unknown"),
    "a birth date that is none": everywhere(PatientBirthDate="about 1950"),
    "an old date": everywhere(StudyDate="1999.01.02", StudyTime="10:11:12"),
    "a long name": everywhere(PatientName="X" * 200 + "^" + "Y" * 100),
    "a number that is none": everywhere(SeriesNumber="", AccessionNumber="A" * 40),
    "Latin letters": everywhere(SpecificCharacterSet="ISO_IR 100", PatientName="Müller^Jörg"),
    "Cyrillic": everywhere(SpecificCharacterSet="ISO_IR 144", PatientName="Люкceмбypг"),
    "Unicode": everywhere(SpecificCharacterSet="ISO_IR 192", PatientName="王^小東"),
    "Japanese": everywhere(
        SpecificCharacterSet=["", "ISO 2022 IR 87"], PatientName="Yamada^Tarou=山田^太郎=やまだ^たろう"
    ),
    "Korean": everywhere(SpecificCharacterSet=["", "ISO 2022 IR 149"], PatientName="Hong^Gildong=洪^吉洞=홍^길동"),
}


@pytest.mark.repeats(6)
@pytest.mark.parametrize("case", sorted(ODD))
@pytest.mark.parametrize("identity", [None, HIDDEN])
def test_odd_headers_do_not_keep_a_report_from_being_written(tmp_path, case, identity):
    folder = Series(change=ODD[case], extra={"StudyDate": "20200102"}).write(tmp_path / "in")
    one = index_dicom(DicomSource(folder=str(folder))).candidates[0]
    data = made(one, pseudonymous=identity)
    document, image = read(data), pydicom.dcmread(folder / "001.dcm")
    assert made(one, pseudonymous=identity) == data
    if identity is None:
        assert str(document.PatientName) == str(image.get("PatientName", ""))
        assert document.get("SpecificCharacterSet") == image.get("SpecificCharacterSet")
    assert group_of(data).get_measurements(name=codes.DCM.Probability)[0].value == 0.873123


def test_names_are_kept_byte_by_byte_where_the_header_lies_about_its_letters(tmp_path):
    """Latin letters, and no character set or one that nobody knows: the archive must find the same bytes."""
    for number, character_set in enumerate((b"", b"ISO_IR 999")):
        folder = Series(extra={"SpecificCharacterSet": "ISO_IR 100", "PatientName": "Müller^Jörg"}).write(
            tmp_path / str(number)
        )
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes().replace(b"ISO_IR 100", character_set.ljust(10)))
        one = index_dicom(DicomSource(folder=str(folder))).candidates[0]
        assert "Müller^Jörg".encode("latin-1") in made(one)


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian])
def test_how_the_images_are_encoded_does_not_matter(tmp_path, syntax):
    study = Dataset()
    study.ReferencedSOPClassUID, study.ReferencedSOPInstanceUID = "1.2.840.10008.3.1.2.3.1", "1.2.3.4.5"
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "P1", "99LOCAL", "Prostate, multiparametric"
    more = {"ReferencedStudySequence": [study], "ProcedureCodeSequence": [code], "PregnancyStatus": 4}
    found = []
    for chosen in (ExplicitVRLittleEndian, syntax):
        folder = Series(extra={**more, "PatientName": "Müller^Ann", "SpecificCharacterSet": "ISO_IR 100"}).write(
            tmp_path / chosen
        )
        for path in folder.iterdir():
            file = pydicom.dcmread(path)
            file.file_meta.TransferSyntaxUID = chosen
            if not chosen.is_little_endian:
                file["PixelData"].VR = "OW"
            how = {"little_endian": chosen.is_little_endian, "implicit_vr": chosen.is_implicit_VR}
            pydicom.dcmwrite(path, file, **how, enforce_file_format=True)  # type: ignore[call-overload]
        found.append(made(index_dicom(DicomSource(folder=str(folder))).candidates[0]))
    assert read(found[0]) == read(found[1]) and read(found[1]).PregnancyStatus == 4
    assert read(found[1]).ProcedureCodeSequence[0].CodeMeaning == code.CodeMeaning


SLICES = {
    "as they lie": [1, 0, 0, 0, 1, 0],
    "upside down": [1, 0, 0, 0, -1, 0],
    "mirrored": [-1, 0, 0, 0, 1, 0],
    "oblique": [0.98, 0.1, 0.17, -0.1, 0.995, -0.01],
    "coronal": [1, 0, 0, 0, 0, -1],
    "sagittal": [0, 1, 0, 0, 0, -1],
}


@pytest.mark.parametrize("case", sorted(SLICES))
def test_the_image_of_a_slice_is_the_one_that_lies_there(tmp_path, case):
    """Where a study's slices are axial, its n-th one from below is the image whose place is that of the n-th."""
    across, down = (np.array(SLICES[case][at : at + 3], float) for at in (0, 3))
    across /= np.linalg.norm(across)
    down -= across * (across @ down)
    down /= np.linalg.norm(down)
    normal = np.cross(across, down)

    def change(index: int, dataset: Dataset) -> None:
        dataset.ImageOrientationPatient = [round(float(x), 9) for x in (*across, *down)]
        dataset.ImagePositionPatient = [float(x) for x in np.round(3 * index * normal, 6)]

    folder = Series(change=change).write(tmp_path / "in")
    (one,) = index_dicom(DicomSource(folder=str(folder))).candidates
    found = [find_frame(one, position) for position in range(-1, 6)]
    if case in ("coronal", "sagittal"):
        assert found == [None] * 7
        return
    assert found[0] is None and found[6] is None
    heights = [float(frame.values["ImagePositionPatient"][2]) for frame in found[1:6]]
    assert heights == sorted(heights) and len(set(heights)) == 5


def test_in_a_file_of_several_frames_the_frame_is_named(tmp_path):
    folder = phantom(tmp_path / "in", "A")
    files = [pydicom.dcmread(path) for path in sorted(folder.rglob("*.dcm"))]
    files = [file for file in files if "ADC" in file.ImageType]
    (tmp_path / "out").mkdir()
    one = highdicom.legacy.LegacyConvertedEnhancedMRImage(
        files, highdicom.UID(), 1, highdicom.UID(), 1, transfer_syntax_uid="1.2.840.10008.1.2.1"
    )
    one.save_as(tmp_path / "out" / "enhanced.dcm")
    (found,) = index_dicom(DicomSource(folder=str(tmp_path / "out"))).candidates
    (place,) = group_of(made(found, place=2)).source_images
    assert place.referenced_frame_numbers == [found.stack.volumes[0][2].index + 1]
    assert evidence(read(made(found))) == {one.SOPInstanceUID}
    file = read(
        capture_bytes(np.zeros((3, 3, 3), np.uint8), found.stack.volumes[0][2], found.stack, MAKER, derivation="")
    )
    assert file.SourceImageSequence[0].ReferencedFrameNumber == found.stack.volumes[0][2].index + 1


def test_an_image_that_is_not_among_the_evidence_is_refused(series, tmp_path):
    other = index_dicom(DicomSource(folder=str(Series().write(tmp_path / "other")))).candidates[0]
    with pytest.raises(Unusable, match="not among the images"):
        report_bytes(TWO, series.stack, other.stack.volumes[0][0], MAKER)


# -- as others see it -------------------------------------------------------------------------------------------------


OF_THE_PROGRAM = ("does not support this Specific Character Set: ISO_IR 192", "constraints not yet supported")


def write(folder: Path, series: Candidate) -> Path:
    """A report of each kind, a replaced one and a note."""
    folder.mkdir(exist_ok=True)
    earlier = made(series)
    for name, data in {
        "two": earlier,
        "three": made(series, THREE, predecessor=read(earlier)),
        "plain": made(series, Finding(name="negative", positive=False), None),
        "hidden": made(series, pseudonymous=HIDDEN),
        "note": rejection_bytes([read(earlier)], series.stack, MAKER),
    }.items():
        (folder / f"{name}.dcm").write_bytes(data)
    return folder


def test_dcmtk_shows_each_number_with_its_name(series, tmp_path):
    """A container that says CONTINUOUS becomes a line of bare numbers."""
    program = shutil.which("dsr2html")
    if program is None:
        pytest.skip("dsr2html (dcmtk) is not installed")
    (tmp_path / "in.dcm").write_bytes(made(series))
    subprocess.run([program, tmp_path / "in.dcm", tmp_path / "out.html"], check=True, capture_output=True)
    shown = " ".join(re.sub(r"<[^>]*>", " ", (tmp_path / "out.html").read_text("latin-1")).split())
    for name, value in {"Probability": "0.873123", "Class by the model": "Positive", "Comment": NOTICE}.items():
        assert re.search(rf"{name}:? {value}", shown), name
    assert "Number of images that were scored: 19.0 {images}" in shown


@pytest.mark.parametrize("scanner", list("APE"))
def test_dciodvfy_finds_no_error(tmp_path, scanner):
    assert errors(write(tmp_path / "out", only(phantom(tmp_path / "phantom", scanner)))) == set()


@pytest.mark.parametrize("select", [{"ImageType": "ADC"}, {"SeriesDescription": "t2"}])
def test_dciodvfy_finds_no_error_on_real_series(data, tmp_path, select):
    folder = data / "prostatex" / "dicom"
    if not folder.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    assert errors(write(tmp_path, only(folder, **select))) == set()


SLOW = [pytest.param("prostatex/dicom", derive, marks=pytest.mark.slow) for derive in ("none", "adc")]


@pytest.mark.parametrize(("place", "derive"), [("dicom_zoo", "adc"), ("pydicom", "none"), *SLOW])
def test_dciodvfy_finds_no_error_in_any_result_of_others_files(data, tmp_path, place, derive):
    folder = Path(pydicom.data.__file__).parent / "test_files" if place == "pydicom" else data / place
    if not folder.is_dir():
        pytest.skip(f"no {place} below {data}")
    source = DicomSource(folder=str(folder), lossy="allow", derive=derive)  # type: ignore[arg-type]
    for number, one in enumerate(index_dicom(source).candidates):
        out = write(tmp_path / str(number), one)
        first, picture = one.stack.volumes[0][0], np.zeros((20, 30, 3), np.uint8)
        for name, identity in (("", None), ("-hidden", HIDDEN)):
            data = capture_bytes(picture, first, one.stack, MAKER, derivation="x", pseudonymous=identity)
            (out / f"capture{name}.dcm").write_bytes(data)
            data = rejection_bytes([read(made(one))], one.stack, MAKER, pseudonymous=identity)
            (out / f"note{name}.dcm").write_bytes(data)
            (out / f"mask{name}.dcm").write_bytes(seg_bytes(*mask_on(one, 1), ("lesion",), MAKER, identity))
        assert len(list(out.iterdir())) == 10
        assert errors(out) == set()
    assert number >= 0


def test_dcmtk_reads_it_without_a_warning(series, tmp_path):
    program = shutil.which("dsrdump")
    if program is None:
        pytest.skip("dsrdump (dcmtk) is not installed")
    for path in sorted(write(tmp_path, series).iterdir()):
        told = subprocess.run([program, "-Ec", "-Ee", str(path)], capture_output=True, text=True, check=False)
        said = {line for line in told.stderr.splitlines() if not line.endswith(OF_THE_PROGRAM)}
        assert told.returncode == 0 and not said, path.name
        assert path.stem == "note" or "For research use only, not ..." in told.stdout
