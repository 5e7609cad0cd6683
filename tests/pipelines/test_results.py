"""The results of new DICOM studies: `predict --reports`, its columns, and all that a nightly command stores."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import highdicom
import pydicom
import pytest

from pipelines.batch.results import ResultFile, ResultRequest, SeriesResults, write_results
from pipelines.data.writing.dicom_source import Pseudonymous
from pipelines.deidentify import main as deidentify
from pipelines.models.file import Ready, read_ready
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import Profile
from privacy.deidentify.keyed import make_pseudonym, new_uid
from translating import errors
from untaught import DICOM, NIFTI, SEGMENTER, SLICES, lines, model

FRONT = (  # as before there were reports; who reads the table by place still can
    *("patient", "study", "examples", "unlike_training", "distance", "p_value", "score", "highest_at", "positive"),
)
SINCE = ("accession_number", "study_date", "study_uid", "series_uid", "sop_instance_uid")
MODEL = ("model", "model_digest", "version")
WHEN = datetime(2026, 1, 2, 3, 4, 5)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hospital")
    write(PhantomSource(scanner="A", patients=2, slices=5, format="dicom"), root)
    for number, path in enumerate(sorted((root / "images").rglob("*.dcm"))):
        file = pydicom.dcmread(path)
        file.AccessionNumber = f"00{number // 100}17"
        file.save_as(path)
    return root / "images"


@pytest.fixture
def series(images: Path, tmp_path: Path) -> Path:
    """The files of one series, as a nightly command retrieves them."""
    (first, *_) = sorted(images.rglob("*.dcm"))
    uid = pydicom.dcmread(first).SeriesInstanceUID
    folder = tmp_path / "series"
    folder.mkdir()
    for path in images.rglob("*.dcm"):
        if pydicom.dcmread(path, stop_before_pixels=True).SeriesInstanceUID == uid:
            shutil.copy(path, folder)
    return folder


def ready(folder: Path, **more: object) -> Ready:
    return read_ready(model(folder / "model.safetensors", SLICES, DICOM, **more))  # type: ignore[arg-type]


# -- predict ----------------------------------------------------------------------------------------------------------


def test_a_row_says_where_it_comes_from_and_which_model_made_it(images, tmp_path):
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    assert predict([str(file), str(images), "--no-gland", "--out", str(out)]) == Exit.OK
    table = lines(out / "predictions.csv")
    assert tuple(table[0]) == (*FRONT, *SINCE, *MODEL)
    found = {one.SOPInstanceUID: one for one in map(pydicom.dcmread, images.rglob("*.dcm"))}
    for row in table:
        image = found[row["sop_instance_uid"]]
        assert (image.PatientID, image.AccessionNumber) == (row["patient"], row["accession_number"])
        assert (image.StudyInstanceUID, image.SeriesInstanceUID) == (row["study_uid"], row["series_uid"])
        below = [one for one in found.values() if one.SeriesInstanceUID == image.SeriesInstanceUID]
        below = [one for one in below if one.ImagePositionPatient[2] < image.ImagePositionPatient[2]]
        assert len(below) == int(row["highest_at"])
        assert row["study_date"] == str(image.StudyDate) and row["model"] == "fedavg"
        assert row["model_digest"] == read_ready(file).digest and row["version"]


def test_files_of_other_kinds_leave_the_columns_empty(tmp_path):
    write(PhantomSource(scanner="A", patients=1, slices=5, format="nifti"), tmp_path)
    file, out = model(tmp_path / "m", SLICES, NIFTI), tmp_path / "out"
    assert predict([str(file), str(tmp_path / "images"), "--no-gland", "--out", str(out)]) == Exit.OK
    (row,) = lines(out / "predictions.csv")
    assert {row[name] for name in SINCE} == {""} and all(row[name] for name in MODEL)


def test_reports_are_written_on_demand_and_named_in_the_table(images, tmp_path):
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    command = [str(file), str(images), "--no-gland", "--maps", "--out", str(out)]
    assert predict([*command, "--reports"]) == Exit.OK
    table = lines(out / "predictions.csv")
    assert tuple(table[0]) == (*FRONT, "map", *SINCE, *MODEL, "report")
    for row in table:
        report = pydicom.dcmread(out / row["report"])
        assert (report.StudyInstanceUID, report.PatientID) == (row["study_uid"], row["patient"])
        assert report.Modality == "SR" and row["sop_instance_uid"] in str(report) and (out / row["map"]).is_file()
    assert {path.name for path in (out / "reports").iterdir()} == {Path(row["report"]).name for row in table}
    assert predict(command) == Exit.OK and list((out / "reports").iterdir()) == []
    assert "report" not in lines(out / "predictions.csv")[0]


def test_reports_are_for_scores_of_dicom_and_lie_elsewhere(images, tmp_path, capsys):
    for network, source, out, said in (
        ({"network": SEGMENTER}, DICOM, tmp_path / "out", "--reports is for scores"),
        ({}, NIFTI, tmp_path / "out", "--reports is for DICOM series"),
        ({}, DICOM, images / "out", "--out must not lie in FOLDER"),
    ):
        file = model(tmp_path / "m", SLICES, source, **network)  # type: ignore[arg-type]
        command = [str(file), str(images), "--no-gland", "--reports", "--out", str(out)]
        assert predict(command) == Exit.CONFIG and not out.exists()
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("more", [{}, {"network": SEGMENTER}])
def test_with_the_key_of_deidentification_results_name_nobody_and_fit_its_images(images, tmp_path, capsys, more):
    file, out, key = model(tmp_path / "m", SLICES, DICOM, **more), tmp_path / "out", tmp_path / "key"
    command = [str(file), str(images), "--no-gland", "--out", str(out), "--key", str(key)]
    assert predict([*command, *([] if more else ["--reports", "--captures"])]) == Exit.OK
    assert deidentify([str(images), str(tmp_path / "clean"), "--key", str(key)]) == Exit.OK
    clean = {one.StudyInstanceUID: one.PatientID for one in map(pydicom.dcmread, (tmp_path / "clean").rglob("*.dcm"))}
    written = [*out.rglob("*.dcm")]
    assert len(written) == (2 if more else 4)
    known = {row[name] for row in lines(out / "predictions.csv") for name in ("patient", "series_uid", "study_uid")}
    for path in written:
        found = pydicom.dcmread(path)
        assert clean[found.StudyInstanceUID] == found.PatientID
        assert not any(name in path.name or name.encode() in path.read_bytes() for name in known)
    capsys.readouterr()
    if not more:
        assert predict(command) == Exit.CONFIG and "--key is for DICOM files" in capsys.readouterr().err


def test_nothing_hidden_stays_in_a_folder_that_goes_to_an_archive(images, tmp_path):
    """Nor what a call left that was killed while it wrote."""
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    (out / "reports").mkdir(parents=True)
    (out / "reports" / ".1.2.3.dcm.part").write_bytes(b"DICM")
    assert predict([str(file), str(images), "--no-gland", "--reports", "--out", str(out)]) == Exit.OK
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]


# -- results of one series --------------------------------------------------------------------------------------------


def contents(found: SeriesResults) -> dict[str, bytes]:
    return {one.sop_instance: one.path.read_bytes() for one in found.files}


def check(found: SeriesResults) -> None:
    """What a file says of itself is what the list says of it."""
    for one in found.files:
        file = pydicom.dcmread(one.path)
        told = (file.SOPClassUID, file.SOPInstanceUID, file.SeriesInstanceUID, file.StudyInstanceUID)
        assert told == one[3:]
    assert len({one.sop_instance for one in found.files}) == len({one.series_uid for one in found.files})


@pytest.mark.parametrize("network", ["scores", "classes", "masks"])
def test_a_series_gives_rows_and_files_and_the_same_when_asked_again(series, tmp_path, network):
    more = {"scores": {}, "classes": {"classes": ("a", "b", "c")}, "masks": {"network": SEGMENTER}}[network]
    chosen = ready(tmp_path, **more)
    found = write_results(chosen, series, tmp_path / "out", ResultRequest(), when=WHEN)
    (row,), (file,) = found.rows, found.files
    check(found)
    assert file.kind == ("segmentation" if network == "masks" else "report")
    assert file.study == row["study"] and file.study_uid == row["study_uid"]
    assert row["model_digest"] == chosen.digest and found.refused == ()
    assert {one.what for one in found.accounts} == {"used"} and len(found.accounts) == 5
    again = write_results(chosen, series, tmp_path / "again", ResultRequest(), when=WHEN)
    assert contents(again) == contents(found) and again.rows == found.rows
    assert errors(tmp_path / "out") == set()


def test_each_stack_of_a_series_has_its_own_row_and_files(series, tmp_path):
    """An enhanced file with two named stacks, the second turned by 20 degrees about the patient's axis."""
    files = [pydicom.dcmread(path) for path in sorted(series.iterdir())]
    files = files[: len({float(one.ImagePositionPatient[2]) for one in files})]
    turned = []
    for one in files:
        other = copy.deepcopy(one)
        other.ImageOrientationPatient = [0.93969262, 0.34202014, 0, -0.34202014, 0.93969262, 0]
        other.SOPInstanceUID = other.file_meta.MediaStorageSOPInstanceUID = f"{one.SOPInstanceUID[:60]}.7"
        turned.append(other)
    uids = (highdicom.UID(), 1, highdicom.UID(), 1)
    made = highdicom.legacy.LegacyConvertedEnhancedMRImage(
        [*files, *turned], *uids, transfer_syntax_uid="1.2.840.10008.1.2.1"
    )
    for group in made.PerFrameFunctionalGroupsSequence:
        straight = group.PlaneOrientationSequence[0].ImageOrientationPatient[0] == 1
        group.FrameContentSequence[0].StackID = "1" if straight else "2"
    (tmp_path / "in").mkdir()
    made.save_as(tmp_path / "in" / "one.dcm")
    found = write_results(ready(tmp_path), tmp_path / "in", tmp_path / "out", ResultRequest(captures=True), when=WHEN)
    assert found.refused == () and len(found.rows) == 2 and len(found.files) == 4
    check(found)
    assert {one.study for one in found.files} == {row["study"] for row in found.rows}
    assert len({one.path for one in found.files}) == 4 and len({row["study"] for row in found.rows}) == 2


def test_a_series_that_grew_has_results_that_replace_the_earlier_ones(series, tmp_path):
    last = max(series.iterdir(), key=lambda path: float(pydicom.dcmread(path).ImagePositionPatient[2]))
    whole = last.read_bytes()
    for network in ({}, {"network": SEGMENTER}):
        chosen = ready(tmp_path, **network)
        last.unlink(missing_ok=True)
        earlier = write_results(chosen, series, tmp_path / "earlier", ResultRequest(), when=WHEN)
        same = write_results(chosen, series, tmp_path / "same", ResultRequest(), when=WHEN, replaced=earlier.files)
        last.write_bytes(whole)
        later = write_results(
            *(chosen, series, tmp_path / "later", ResultRequest()), when=WHEN.replace(day=3), replaced=earlier.files
        )
        check(later)
        (old,), new = earlier.files, later.files
        assert new[0].sop_instance != old.sop_instance and new[0].study == old.study
        text = str(pydicom.dcmread(new[-1].path))
        assert old.sop_instance in text
        if network:
            assert [one.kind for one in new] == ["segmentation", "rejection"]
            assert [one.sop_instance for one in same.files] == [old.sop_instance], "what stays is not rejected"
        else:
            assert [one.kind for one in new] == ["report"]
            assert pydicom.dcmread(new[0].path).PredecessorDocumentsSequence


@pytest.mark.parametrize("network", ["scores", "masks"])
def test_without_identity_no_result_names_the_patient(series, tmp_path, network):
    chosen = ready(tmp_path, **({"network": SEGMENTER} if network == "masks" else {}))
    wanted = ResultRequest(pseudonymous=Pseudonymous(KEY, Profile()))
    found = write_results(chosen, series, tmp_path / "out", wanted, when=WHEN)
    image = pydicom.dcmread(next(series.iterdir()))
    check(found)
    (file,), (row,) = found.files, found.rows
    assert file.study_uid == new_uid(KEY, image.StudyInstanceUID)
    assert pydicom.dcmread(file.path).PatientID == make_pseudonym(KEY, image.PatientID)
    assert image.PatientID.encode() not in file.path.read_bytes()
    assert image.SeriesInstanceUID not in file.path.name and image.PatientID not in file.path.name
    assert row["study_uid"] == image.StudyInstanceUID, "the table stays in the hospital"


def test_what_the_model_is_not_for_is_not_selected_and_what_is_damaged_is_refused(series, tmp_path):
    chosen = ready(tmp_path)
    for path in series.iterdir():
        file = pydicom.dcmread(path)
        file.ImageType, file.SeriesDescription = ["ORIGINAL", "PRIMARY", "M"], "t2_tse_tra"
        file.save_as(path)
    found = write_results(chosen, series, tmp_path / "out", ResultRequest(), when=WHEN)
    assert (found.rows, found.files, found.refused) == ((), (), ())
    assert {one.what for one in found.accounts} == {"not_selected"} and len(found.accounts) == 5
    first = sorted(series.iterdir())[0]
    first.write_bytes(first.read_bytes()[:3000])
    found = write_results(
        chosen, series, tmp_path / "out", ResultRequest(select={"Modality": "MR"}, unit="1e-6 mm2/s"), when=WHEN
    )
    assert found.rows == () and found.refused
    assert {one.what for one in found.accounts} <= {"quarantined", "not_selected"}


def test_settings_that_fit_nothing_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)folder.*does not exist.*gland.*threshold must be in \[0, 1\]"):
        write_results(
            ready(tmp_path), tmp_path / "no", tmp_path, ResultRequest(threshold=2, gland=str(tmp_path / "x")), when=WHEN
        )


def test_a_result_file_goes_through_json(series, tmp_path):
    (file,) = write_results(ready(tmp_path), series, tmp_path / "out", ResultRequest(), when=WHEN).files
    kept = json.loads(json.dumps({**file._asdict(), "path": str(file.path)}))
    assert ResultFile(**{**kept, "path": Path(kept["path"])}) == file
    assert replace(ResultRequest(), threshold=0.2).threshold == 0.2
