"""A night over a real archive: what is there is done once, accounted for, and stands in the patient's study."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pydicom
import pytest
import yaml

from orthanc import USER, Orthanc, running_orthanc
from pipelines.night import main as night
from pipelines.nights import lookup, worklist
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE

STUDIES = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    os.chdir(folder)
    settings = {**BASE, "train": {**BASE["train"], "schedule": {"rounds": 1}}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert run(["tiny.yaml", "--until", "evaluate"]) == Exit.OK
    return folder / "runs" / "tiny" / "sites" / "a" / "ready" / "local.safetensors"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("phantom") / "files"
    write(PhantomSource(scanner="A", patients=STUDIES, seed=9, format="dicom"), folder)
    return sorted(path for path in (folder / "images").rglob("*") if path.is_file())


@pytest.fixture
def archive(tmp_path: Path, images: list[Path]) -> Iterator[Orthanc]:
    with running_orthanc(tmp_path) as one:
        one.load(images)
        yield one


def settings_of(one: Orthanc, model: Path, folder: Path, kind: str = "web", **more: Any) -> Path:
    if kind == "web":
        web = {"kind": "dicomweb", "url": one.web.url, "user": USER, "password": {"file": str(one.password)}}
        told: dict[str, Any] = {**web, "ca": str(one.ca)}
    else:
        tls = one.node.tls
        assert tls is not None
        told = {"kind": "dicom_node", "host": "127.0.0.1", "port": one.dicom, "called": one.node.called}
        told["tls"] = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    path = folder / "night.yaml"
    asked = {"modality": "MR", "days": 36_500}
    read = {"no_gland": True}
    path.write_text(
        yaml.safe_dump({"archive": told, "ask": asked, "model": str(model), "state": "state", "read": read, **more})
    )
    return path


def table(folder: Path, name: str) -> list[dict[str, str]]:
    newest = max((folder / "state" / "nights").iterdir())
    with (newest / name).open() as file:
        return list(csv.DictReader(file))


def answered(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found


def reports(one: Orthanc) -> list[str]:
    found: list[str] = one.ask("POST", "/tools/find", b'{"Level": "Instance", "Query": {"Modality": "SR"}}')
    return found


@pytest.mark.parametrize("kind", ["web", "node"])
def test_every_series_is_done_once_and_every_file_accounted_for(
    kind: str, archive: Orthanc, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(archive, model, tmp_path, kind)
    there = archive.ask("GET", "/statistics")["CountInstances"]
    assert night([str(settings), "--json"]) == Exit.OK
    first = answered(capsys)
    assert first["series"] == {"new": STUDIES}
    assert first["tasks"] == {"stored": STUDIES, "left": 0}
    files = first["files"]
    assert files["received"] == files["used"] + files["quarantined"] + files["not_selected"] + files["not_imaging"]
    assert files["received"] == there
    assert len(reports(archive)) == STUDIES
    assert {row["state"] for row in table(tmp_path, "series.csv")} == {"stored"}
    assert len(table(tmp_path, "found.csv")) == STUDIES
    assert not list((tmp_path / "state" / "images").iterdir())
    assert night([str(settings), "--json"]) == Exit.OK
    second = answered(capsys)
    assert second["series"] == {"known": STUDIES}
    assert second["files"]["received"] == 0
    assert len(reports(archive)) == STUDIES
    assert (tmp_path / "state" / "worklist.sqlite").stat().st_mode & 0o077 == 0


def test_reports_stand_in_the_patients_study_and_refer_to_its_images(
    archive: Orthanc, model: Path, tmp_path: Path, images: list[Path]
) -> None:
    assert night([str(settings_of(archive, model, tmp_path))]) == Exit.OK
    first = pydicom.dcmread(images[0], stop_before_pixels=True)
    for instance in reports(archive):
        tags = archive.ask("GET", f"/instances/{instance}/simplified-tags")
        if tags["StudyInstanceUID"] == first.StudyInstanceUID:
            assert tags["PatientID"] == first.PatientID
            referred = tags["CurrentRequestedProcedureEvidenceSequence"][0]["ReferencedSeriesSequence"]
            assert {one["SeriesInstanceUID"] for one in referred} == {first.SeriesInstanceUID}
            return
    raise AssertionError("no report in the first patient's study")


def test_results_without_the_patient_stand_in_a_study_of_their_own(
    archive: Orthanc, model: Path, tmp_path: Path, images: list[Path]
) -> None:
    settings = settings_of(archive, model, tmp_path, write={"identity": "deidentified", "key": "secret.key"})
    assert night([str(settings)]) == Exit.OK
    headers = [pydicom.dcmread(path, stop_before_pixels=True) for path in images]
    studies, patients = ({getattr(one, key) for one in headers} for key in ("StudyInstanceUID", "PatientID"))
    found = [archive.ask("GET", f"/instances/{instance}/simplified-tags") for instance in reports(archive)]
    assert len(found) == STUDIES
    assert not studies & {one["StudyInstanceUID"] for one in found}
    assert not patients & {one["PatientID"] for one in found}
    assert (tmp_path / "secret.key").stat().st_mode & 0o077 == 0


def test_results_with_and_without_the_patient_do_not_name_each_other(
    archive: Orthanc, model: Path, tmp_path: Path, images: list[Path]
) -> None:
    hidden = {"identity": "deidentified", "key": "secret.key"}
    for write_, more in (({}, []), (hidden, ["--redo", "all"]), ({}, ["--redo", "all"])):
        assert night([str(settings_of(archive, model, tmp_path, write=write_)), *more]) == Exit.OK
        time.sleep(1.1)  # results bear their time to the second, and their UIDs follow from it
    known = {str(pydicom.dcmread(path, stop_before_pixels=True).StudyInstanceUID) for path in images}
    found = reports(archive)
    assert len(found) == 3 * STUDIES
    for instance in found:
        tags = archive.ask("GET", f"/instances/{instance}/simplified-tags")
        named = json.dumps(tags)
        if tags["StudyInstanceUID"] in known:
            assert "2.25." not in json.dumps(tags.get("PredecessorDocumentsSequence", ""))
        else:
            assert not [uid for uid in known if uid in named]


def test_without_an_archive_nothing_is_lost_and_the_same_command_goes_on(
    archive: Orthanc, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(archive, model, tmp_path)
    text = yaml.safe_load(settings.read_text())
    text["archive"]["limits"] = {"retries": 0, "timeout_s": 5}
    settings.write_text(yaml.safe_dump(text))
    archive.end()
    assert night([str(settings), "--json"]) == Exit.SITE
    assert answered(capsys)["unreachable"] is True
    archive.begin()
    assert night([str(settings)]) == Exit.OK
    assert len(reports(archive)) == STUDIES


def test_check_and_dry_run_change_nothing(
    archive: Orthanc, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(archive, model, tmp_path)
    for flag in ("--check", "--dry-run"):
        assert night([str(settings), flag]) == Exit.OK
        assert f"{STUDIES} new" in capsys.readouterr().err
        assert not (tmp_path / "state").exists()


def test_a_dry_run_names_what_a_night_would_do_and_no_results_of_ours(
    archive: Orthanc, model: Path, tmp_path: Path, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(archive, model, tmp_path, ask={"modality": "", "days": 36_500})
    assert night([str(settings)]) == Exit.OK
    before = (tmp_path / "state" / "worklist.sqlite").read_bytes()
    assert night([str(settings), "--dry-run"]) == Exit.OK
    told = capsys.readouterr().err
    assert f"{STUDIES} known, {STUDIES} own; 0 are to be done" in told
    series = str(pydicom.dcmread(images[0], stop_before_pixels=True).SeriesInstanceUID)
    assert night([str(settings), "--dry-run", "--redo", series]) == Exit.OK
    assert f"1 are to be done.\n  waiting: {series}" in capsys.readouterr().err
    assert (tmp_path / "state" / "worklist.sqlite").read_bytes() == before


def test_a_series_that_grew_replaces_its_report_and_another_model_makes_its_own(
    archive: Orthanc, model: Path, tmp_path: Path, images: list[Path]
) -> None:
    settings = settings_of(archive, model, tmp_path)
    assert night([str(settings)]) == Exit.OK
    more = pydicom.dcmread(images[0])
    more.SOPInstanceUID = more.file_meta.MediaStorageSOPInstanceUID = f"{more.SOPInstanceUID}.9"
    more.save_as(tmp_path / "more.dcm")
    archive.load([tmp_path / "more.dcm"])
    night([str(settings)])
    with closing(worklist.open_worklist(tmp_path / "state" / "worklist.sqlite")) as db:
        tasks = lookup.all_tasks(db)
    assert [task.version for task in tasks] == [1] * STUDIES + [2]
    other = settings_of(archive, model.with_name("fedavg.safetensors"), tmp_path)
    assert night([str(other)]) == Exit.OK
    with closing(worklist.open_worklist(tmp_path / "state" / "worklist.sqlite")) as db:
        assert len({task.model for task in lookup.all_tasks(db)}) == 2


@pytest.mark.parametrize("kind", ["web", "node"])
def test_a_study_without_a_date_is_found_where_no_days_are_asked_for(
    kind: str, archive: Orthanc, model: Path, tmp_path: Path, images: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    known = str(pydicom.dcmread(images[0], stop_before_pixels=True).StudyInstanceUID)
    for path in images:
        file = pydicom.dcmread(path)
        if file.StudyInstanceUID == known:
            file.StudyDate = ""
            for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"):
                setattr(file, keyword, f"{file[keyword].value[:60]}.1")
            file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID
            file.save_as(tmp_path / "dateless.dcm")
            archive.load([tmp_path / "dateless.dcm"])
    for days, found in ((36_500, STUDIES), (None, STUDIES + 1)):
        asked = settings_of(archive, model, tmp_path, kind, ask={"modality": "MR", "days": days})
        assert night([str(asked), "--check"]) == Exit.OK
        assert f"{found} new" in capsys.readouterr().err


def test_neither_log_nor_numbers_tell_who_was_examined(archive: Orthanc, model: Path, tmp_path: Path) -> None:
    assert night([str(settings_of(archive, model, tmp_path))]) == Exit.OK
    state = tmp_path / "state"
    text = "".join(path.read_text() for path in [*state.glob("nights/*/log.jsonl"), state / "night.prom"])
    for study in archive.ask("GET", "/studies"):
        told = archive.ask("GET", f"/studies/{study}")
        for secret in (*told["MainDicomTags"].values(), *told["PatientMainDicomTags"].values(), *told["Series"]):
            assert len(secret) < 4 or secret not in text
    assert "consilium_night_exit_code 0" in text
    assert "unlike" in (state / "night.html").read_text()


def test_wrong_settings_are_told_all_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = {
        "archive": {"kind": "dicomweb", "url": "ftp://x", "password": "secret"},
        "ask": {"more": {"NoSuchKeyword": "x"}},
        "model": "m",
        "state": "s",
        "read": {"gland": "nowhere"},
    }
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(text))
    assert night([str(tmp_path / "night.yaml")]) == Exit.CONFIG
    told = capsys.readouterr().err
    assert all(word in told for word in ("archive.url", "archive.password", "NoSuchKeyword", "model: ", "read.gland: "))
    assert "secret" not in told.replace("a secret", "")


def test_a_folder_for_a_file_and_a_file_for_a_folder_are_wrong_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {"archive": {"kind": "dicomweb", "url": "https://x/y"}, "model": ".", "state": "night.yaml"}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump(text))
    assert night([str(tmp_path / "night.yaml")]) == Exit.CONFIG
    told = capsys.readouterr().err
    assert all(word in told for word in ("model: is a folder", "state: is a file"))


def test_an_archive_that_refuses_us_is_not_said_to_be_away(
    archive: Orthanc, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(archive, model, tmp_path)
    archive.password.write_text("wrong\n")
    assert night([str(settings), "--json"]) == Exit.CONFIG
    found = answered(capsys)
    assert (found["denied"], found["unreachable"]) == (True, False)
    assert night([str(settings)]) == Exit.CONFIG
    assert "refuses us" in capsys.readouterr().err


def test_a_folder_that_is_moved_goes_on(archive: Orthanc, model: Path, tmp_path: Path) -> None:
    assert night([str(settings_of(archive, model, tmp_path))]) == Exit.OK
    shutil.move(tmp_path / "state", tmp_path / "elsewhere")
    settings = settings_of(archive, model, tmp_path, state="elsewhere")
    assert night([str(settings)]) == Exit.OK
    assert len(reports(archive)) == STUDIES
