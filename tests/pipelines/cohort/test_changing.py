"""A PACS writes while we read: what changes, grows or goes between index and load sets its own study aside, by name."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from injected import Points, injected
from PIL import Image
from small_series import SLICES, Series

from pipelines.batch import blanking
from pipelines.batch.deidentification import deidentify_file
from pipelines.data.accounts import count_outcomes, list_accounts
from pipelines.data.dicom import reader
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.examples import open_source
from pipelines.data.folder import Walk, explain_failure, walk_folder
from pipelines.data.images import AnyImages, Pictures, Slices
from pipelines.data.intake import read_study
from pipelines.data.nifti.reader import index_nifti
from pipelines.data.pictures.reader import open_loose_pictures
from pipelines.data.sources import DicomSource, Files, NiftiSource, PictureSource, TableLabels
from pipelines.data.study import Rejected
from pipelines.data.survey import survey
from pipelines.data.tables.csv_file import read_lines
from privacy.deidentify.dicom_image import Profile

PLAIN = Slices(slices="all", values="standardized", size=16)


def gone(path: Path) -> None:
    path.unlink()


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replaced(path: Path) -> None:
    data, times = path.read_bytes(), path.stat()
    (path.parent / ".new").write_bytes(data[:-1] + b"\1")
    os.utime(path.parent / ".new", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(path.parent / ".new", path)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder_gone(path: Path) -> None:
    shutil.rmtree(path.parent)


CHANGES: dict[Callable[[Path], None], str] = {
    gone: "vanished",
    grown: "still_written",
    shortened: "still_written",
    replaced: "still_written",
    pipe: "vanished",
    folder_gone: "vanished",
}


def hospital(folder: Path, kind: str) -> tuple[Files, AnyImages, Path]:
    """Two patients, each in a folder of his own; and a file of the first."""
    for number in range(2):
        home = folder / "in" / str(number)
        if kind == "dicom":
            Series(f"P{number}", f"1.2.{number}", f"1.2.{number}.1").write(home)
            continue
        home.mkdir(parents=True)
        values = np.random.default_rng(number).integers(1, 250, (8, 8, 4))
        if kind == "nifti":
            nibabel.save(nibabel.Nifti1Image(values.astype(np.int16), np.diag([2.0, 2, 3, 1])), home / f"{number}.nii")
        else:
            Image.fromarray(values[:, :, 0].astype(np.uint8)).save(home / f"{number}.png")
    if kind == "dicom":
        return DicomSource(folder=str(folder / "in")), PLAIN, folder / "in" / "0" / "002.dcm"
    if kind == "nifti":
        return NiftiSource(folder=str(folder / "in"), pattern="*.nii"), PLAIN, folder / "in" / "0" / "0.nii"
    (folder / "t.csv").write_text("image,patient,label\n0/0.png,P0,0\n1/1.png,P1,1\n")
    source = PictureSource(folder=str(folder / "in"), table=str(folder / "t.csv"))
    return source, Pictures(size=8), folder / "in" / "0" / "0.png"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["dicom", "nifti", "picture"])
def test_a_file_that_changes_after_the_index_sets_its_study_aside(
    tmp_path: Path, kind: str, change: Callable[[Path], None]
) -> None:
    source, images, path = hospital(tmp_path, kind)
    opened = open_source(source, None, images, None)
    change(path)
    results = [read_study(waiting) for waiting in opened.waiting]
    (refused,) = [result for result in results if isinstance(result, Rejected)]
    assert (refused.reason, len(results)) == (CHANGES[change], 2)
    assert "run again" in refused.detail
    counts = count_outcomes(list_accounts(opened.items, [refused]))
    assert counts["used"] == counts["quarantined"] == (SLICES if kind == "dicom" else 1)


@pytest.mark.parametrize(("operation", "fault"), [("open", "EMFILE"), ("read", "MemoryError")])
@pytest.mark.parametrize("kind", ["dicom", "nifti", "picture"])
def test_what_this_machine_lacks_at_any_opening_or_reading_is_no_fault_of_settings_or_patients(
    tmp_path: Path, kind: str, operation: str, fault: str
) -> None:
    source, images, _ = hospital(tmp_path, kind)
    (tmp_path / "labels.csv").write_text("patient,label\nP0,0\nP1,1\n0,0\n1,1\n")
    labels = None if kind == "picture" else TableLabels(file=str(tmp_path / "labels.csv"), patient="patient")

    def refused() -> list[Rejected]:
        opened = open_source(source, labels, images, None)
        results = [read_study(waiting) for waiting in opened.waiting]
        return [*opened.rejected, *(one for one in results if isinstance(one, Rejected))]

    assert not refused()
    met = at = 0
    while met == at:
        points = Points(tmp_path, operation, fault, at)
        with injected(points):
            try:
                assert not refused(), at
            except (OSError, MemoryError) as error:
                if isinstance(error, OSError) and error.errno != errno.EMFILE:
                    raise
        met, at = met + bool(points.met), at + 1
    assert met >= 3


@pytest.mark.parametrize("change", [gone, grown, shortened, replaced])
def test_a_file_that_changes_while_it_is_read_does_so_too(
    tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, images, path = hospital(tmp_path, "dicom")
    opened = open_source(source, None, images, None)
    read = reader.read_planes

    def reading(which: Path, *how: Any) -> object:
        found = read(which, *how)
        if which == path:
            change(path)
        return found

    monkeypatch.setattr(reader, "read_planes", reading)
    refused = [found for waiting in opened.waiting if isinstance(found := read_study(waiting), Rejected)]
    assert [found.reason for found in refused] == [CHANGES[change]]


def test_a_series_that_is_damaged_because_it_arrives_is_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Series().write(tmp_path / "a")
    Series("P2", "9.1", "9.2").write(tmp_path / "b")
    late = tmp_path / "a" / "004.dcm"
    whole = late.read_bytes()
    late.write_bytes(whole[:200])  # its header is cut short
    check = reader.check_unchanged

    def arriving(stamps: object) -> None:
        late.write_bytes(whole)
        check(stamps)  # type: ignore[arg-type]

    monkeypatch.setattr(reader, "check_unchanged", arriving)
    index = index_dicom(DicomSource(folder=str(tmp_path)))
    assert [found.patient for found in index.candidates] == ["P2"]
    assert "still_written" in {found.reason for found in index.rejected}


def test_a_survey_outlives_files_that_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, *_ = hospital(tmp_path, "dicom")
    before = survey(source, None)
    listed = [*walk_folder(tmp_path / "in").files, tmp_path / "in" / "gone.dcm"]
    monkeypatch.setattr("pipelines.data.survey.list_files", lambda root: listed)
    assert survey(source, None) == before
    shutil.rmtree(tmp_path / "in")
    assert survey(source, None)["files"] == 0


def test_a_table_that_changes_while_it_is_read_is_a_wrong_setting(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")

    class Growing(type(path)):  # type: ignore[misc]
        def read_bytes(self) -> bytes:
            data = super().read_bytes()
            grown(Path(self))
            return data

    with pytest.raises(ValueError, match="still_written"):
        read_lines(Growing(path))


def test_folders_that_may_not_be_read_or_went_away_are_in_the_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Series().write(tmp_path / "open")
    for name, kind in (("closed", PermissionError), ("gone", FileNotFoundError)):
        (tmp_path / name).mkdir()
        real = os.scandir

        def scan(path: str, name: str = name, kind: type[OSError] = kind, real: object = real) -> object:
            if os.path.basename(os.fspath(path)) == name:
                raise kind(2, "no", os.fspath(path))
            return real(path)  # type: ignore[operator]

        monkeypatch.setattr(os, "scandir", scan)
    found: Walk = walk_folder(tmp_path)
    assert {(one.study, one.reason) for one in found.rejected} == {("closed/", "no_permission"), ("gone/", "vanished")}
    index = index_dicom(DicomSource(folder=str(tmp_path)))
    counts = count_outcomes(list_accounts(index.items, index.rejected))
    assert counts == {"used": SLICES, "quarantined": 2, "not_selected": 0, "not_imaging": 0}
    assert explain_failure("x", OSError(5, "Input/output error")).reason == "disk_error"


def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(path: str) -> object:
        raise PermissionError(13, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "scandir", closed)
    for index in (index_dicom(DicomSource(folder=str(tmp_path))), index_nifti(NiftiSource(folder=str(tmp_path)))):
        assert not index.candidates
        assert [(one.study, one.reason) for one in index.rejected] == [("./", "no_permission")]
    pictures = open_loose_pictures(str(tmp_path), Pictures(size=8))
    assert not pictures.waiting
    assert [(one.study, one.reason) for one in pictures.rejected] == [("./", "no_permission")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_in_the_quarantine(tmp_path: Path) -> None:
    Series(slices=1).write(tmp_path)
    (tmp_path / "000.dcm").chmod(0)
    assert [found.reason for found in index_dicom(DicomSource(folder=str(tmp_path))).rejected] == ["no_permission"]


@pytest.mark.parametrize("change", [gone, grown])
def test_deidentification_sets_aside_what_changes_and_names_no_file(
    tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Series(slices=1).write(tmp_path / "in") / "000.dcm"
    read = blanking.read_dataset

    def reading(which: Path) -> object:
        found = read(which)
        change(which)
        return found

    monkeypatch.setattr(blanking, "read_dataset", reading)
    outcome = deidentify_file(path, tmp_path / "out", bytes(range(32)), Profile())
    assert (outcome.kind, "000" in outcome.detail) == (CHANGES[change], False)
    assert not (tmp_path / "out").exists()
