"""The command: a folder in, a folder out, a table of what was refused, and not a word about a patient."""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path

import pydicom
import pytest
from rich.console import Console

from pipelines.cohort.dicom import DicomSource, read_dicom
from pipelines.cohort.phantom import PhantomSource
from pipelines.cohort.phantom_files import write
from pipelines.cohort.pseudonym import pseudonym
from pipelines.deidentify import main, read_key
from pipelines.exits import Exit
from planted import HOMER, file_of, image

SECRETS = (*HOMER.secrets, "Homers_folder", "Aloysius.dcm", "broken-Zwetsch")


@pytest.fixture
def hospital(tmp_path) -> Path:
    """Two good images of one study, one with text in it, one damaged, and a letter."""
    folder = tmp_path / "Homers_folder" / HOMER.surname
    folder.mkdir(parents=True)
    for number in (1, 2):
        made = image(SOPInstanceUID=f"{HOMER.uid}.9.{number}", InstanceNumber=str(number))
        (folder / f"{number}-Aloysius.dcm").write_bytes(file_of(made))
    made = image(SOPInstanceUID=f"{HOMER.uid}.9.3", BurnedInAnnotation="YES", InstanceNumber="3")
    (folder / "3-Aloysius.dcm").write_bytes(file_of(made))
    (folder / "broken-Zwetsch.dcm").write_bytes(file_of(made)[:400])
    (folder / "letter.txt").write_text(f"Dear {HOMER.surname}")
    return tmp_path


def run(hospital: Path, *more: str) -> int:
    return main([str(hospital / "Homers_folder"), str(hospital / "out"), "--key", str(hospital / "site.key"), *more])


def written(hospital: Path) -> dict[str, bytes]:
    return {str(p.relative_to(hospital / "out")): p.read_bytes() for p in (hospital / "out").rglob("*") if p.is_file()}


def test_images_are_written_and_what_may_not_leave_is_in_a_table_beside_the_key(hospital, capfd):
    assert run(hospital) == Exit.DATA
    files = written(hospital)
    assert len(files) == 2 and all(name.count("/") == 3 and name.endswith(".dcm") for name in files)
    key = (hospital / "site.key").read_bytes()
    assert {name.split("/")[0] for name in files} == {pseudonym(key, HOMER.number)}
    rows = list(csv.reader((hospital / "site.key.quarantine.csv").open()))
    assert [(row[0].split("/")[1], row[1]) for row in rows[1:]] == [
        ("3-Aloysius.dcm", "burned_in"),
        ("broken-Zwetsch.dcm", "no_patient"),
    ]
    table = list(csv.DictReader((hospital / "site.key.accounted.csv").open()))
    assert Counter(row["class"] for row in table) == {"used": 2, "quarantined": 2, "not_imaging": 1}
    said = "".join(capfd.readouterr())
    assert "5 files: 2 used, 2 quarantined, 0 not selected, 1 not imaging" in said
    assert "2 files were refused" in said and "1 other" in said and "2 written" in said and "Back it up" in said
    everything = said + repr(files) + "".join(cell for row in rows[1:] for cell in row[1:])
    assert not [secret for secret in SECRETS if secret.lower() in everything.lower()]


def test_what_is_secret_is_readable_for_its_owner_alone(hospital):
    run(hospital)
    for path in [*hospital.glob("site.key*"), hospital / "site.key.quarantine.csv", *(hospital / "out").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_second_run_writes_nothing_new_and_a_new_file_fits_in(hospital, capfd):
    run(hospital)
    before = written(hospital)
    made = image(SOPInstanceUID=f"{HOMER.uid}.9.4", InstanceNumber="2")
    (hospital / "Homers_folder" / "another.dcm").write_bytes(file_of(made))
    run(hospital)
    after = written(hospital)
    assert before.items() <= after.items() and len(after) == 3
    assert "2 there" in capfd.readouterr().err
    assert len({Path(name).parent for name in after}) == 1


def test_another_file_of_the_same_name_is_never_overwritten(hospital):
    run(hospital)
    before = written(hospital)
    made = image(SOPInstanceUID=f"{HOMER.uid}.9.1", InstanceNumber="1", EchoTime="77")
    (hospital / "Homers_folder" / "zz.dcm").write_bytes(file_of(made))
    assert run(hospital) == Exit.DATA
    assert written(hospital) == before
    rows = list(csv.reader((hospital / "site.key.quarantine.csv").open()))
    assert [row[1] for row in rows if row[0] == "zz.dcm"] == ["duplicate"]


def test_blanked_images_may_leave_and_another_key_gives_other_names(hospital):
    run(hospital, "--blank", "0,0,4,6", "--quarantine", str(hospital / "table.csv"))
    files = written(hospital)
    assert len(files) == 3 and (hospital / "table.csv").exists()
    flagged = [p for p in (hospital / "out").rglob("*.dcm") if "BurnedInAnnotation" in pydicom.dcmread(p)]
    assert [pydicom.dcmread(p).pixel_array.any() for p in flagged] == [False]
    (hospital / "other.key").write_bytes(bytes(range(100, 132)))
    (hospital / "other.key").chmod(0o600)
    main([str(hospital / "Homers_folder"), str(hospital / "two"), "--key", str(hospital / "other.key")])
    assert not {p.name for p in (hospital / "two").rglob("*")} & {part for name in files for part in name.split("/")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "out", "--key", "k"], "does not exist"),
        (["Homers_folder", "Homers_folder/out", "--key", "k"], "OUT must not lie in FOLDER"),
        (["Homers_folder", ".", "--key", "k"], "OUT must not lie in FOLDER"),
        (["Homers_folder", "out", "--key", "out/k"], "--key must not lie in OUT"),
        (["Homers_folder", "out", "--key", "k", "--quarantine", "out/q.csv"], "--quarantine must not lie in OUT"),
        (["Homers_folder", "out", "--key", "k", "--blank", "1,2,3"], "TOP,LEFT,BOTTOM,RIGHT"),
        (["Homers_folder", "out", "--key", "k", "--blank", "3,0,2,1"], "top < bottom"),
        (["Homers_folder", "out", "--key", "short"], "must be 32 bytes"),
        (["Homers_folder", "out", "--key", "long"], "must be 32 bytes"),
        (["Homers_folder", "out", "--key", "dull"], "at least 16 different values, found 32 with 15"),
        (["Homers_folder", "out", "--key", "open"], "chmod 600"),
    ],
)
def test_a_wrong_command_line_changes_nothing(hospital, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(hospital)
    Path("short").write_bytes(b"abc")
    Path("long").write_bytes(bytes(range(33)))
    Path("dull").write_bytes(bytes(range(15)) + bytes(17))
    for name in ("short", "long", "dull"):
        Path(name).chmod(0o600)
    Path("open").write_bytes(bytes(range(32)))
    Path("open").chmod(0o644)
    assert main(arguments) == Exit.CONFIG
    assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists() and not Path("k").exists()


def test_a_phantom_hospital_reads_the_same_after_de_identification(tmp_path):
    write(PhantomSource(kind="phantom", scanner="P", patients=2, seed=3, slices=4), tmp_path / "in")
    assert main([str(tmp_path / "in" / "images"), str(tmp_path / "out"), "--key", str(tmp_path / "k")]) == Exit.OK
    key = (tmp_path / "k").read_bytes()
    before, after = (
        {study.patient: study for study in read_dicom(DicomSource(kind="dicom", folder=str(folder)))[0]}
        for folder in (tmp_path / "in" / "images", tmp_path / "out")
    )
    assert len(before) == 2 and {pseudonym(key, name) for name in before} == set(after)
    for name, study in before.items():
        found = after[pseudonym(key, name)]
        assert (found.image.values == study.image.values).all() and (found.image.affine == study.image.affine).all()


def test_a_link_and_a_folder_that_cannot_be_read_are_no_traceback(hospital, capfd):
    (hospital / "Homers_folder" / "gone.dcm").symlink_to("nowhere")
    assert run(hospital) == Exit.DATA
    assert "Traceback" not in "".join(capfd.readouterr())


def test_what_the_second_opinion_finds_is_not_written(hospital, monkeypatch):
    monkeypatch.setattr("pipelines.deidentify.leftovers", lambda *_, **__: ["(0008,0070) holds a part of (0010,0010)"])
    assert run(hospital) == Exit.DATA
    assert written(hospital) == {}
    rows = list(csv.reader((hospital / "site.key.quarantine.csv").open()))
    assert [row[1] for row in rows[1:3]] == ["leftover", "leftover"]


def test_a_file_that_calls_itself_dicom_is_not_lost(tmp_path):
    hospital = tmp_path / "in"
    hospital.mkdir()
    for name, data in (("zero.dcm", b""), ("cut.IMA", b"\x08\x00" * 50), ("notes.txt", b"no image")):
        (hospital / name).write_bytes(data)
    said = main([str(hospital), str(tmp_path / "out"), "--key", str(tmp_path / "key")])
    assert said == Exit.DATA
    with (tmp_path / "key.quarantine.csv").open() as file:
        assert sorted(line["reason"] for line in csv.DictReader(file)) == ["unparsable", "unparsable"]


def test_a_full_disk_leaves_no_half_key(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        read_key(tmp_path / "key", Console(quiet=True))
    assert not (tmp_path / "key").exists()
