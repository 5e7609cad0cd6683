"""The command: a folder in, a folder out, a table of what was refused, and not a word about a patient."""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from rich.console import Console
from small_series import Series, everywhere

from dicom_with_identifiers import HOMER, KEY, confirmed, file_of, image
from pipelines.batch.contact_sheet import build_sheet_image
from pipelines.batch.key import read_key
from pipelines.batch.tables import add_refusals
from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.pseudonym import make_pseudonym
from pipelines.data.sources import DicomSource
from pipelines.deidentify import main
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import blank_image

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
    assert {name.split("/")[0] for name in files} == {make_pseudonym(key, HOMER.number)}
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


WRONG = """layouts:
  - {manufacturer: A, model: "", rows: 4, columns: 6, rectangles: [
      {top: 0, left: 0, bottom: 5, right: 7}, {top: 3, left: 0, bottom: 2, right: 1}]}
more: 1
"""
RECTANGLE = "{top: 0, left: 0, bottom: 4, right: 6}"


def layouts(hospital: Path, *rectangles: str) -> Path:
    """A file for the images of `dicom_with_identifiers`."""
    found = hospital / "layouts.yaml"
    boxes = ", ".join(rectangles or [RECTANGLE])
    entry = f'manufacturer: ACME, model: "", rows: 4, columns: 6, rectangles: [{boxes}]'
    found.write_text(f"layouts:\n  - {{{entry}}}\n")
    return found


def digest_of(hospital: Path) -> str:
    (digest,) = set(re.findall(r"--confirm ([0-9a-f]{16})", (hospital / "site.key.sheet.html").read_text()))
    return digest


def reasons(hospital: Path) -> dict[str, str]:
    rows = csv.DictReader((hospital / "site.key.quarantine.csv").open())
    return {Path(row["file"]).name: row["reason"] for row in rows}


def certified(hospital: Path) -> list[pydicom.Dataset]:
    read = [pydicom.dcmread(path) for path in sorted((hospital / "out").rglob("*.dcm"))]
    return [image for image in read if "BurnedInAnnotation" in image]


def test_an_image_is_certified_only_when_a_person_confirmed_it(hospital, capfd):
    blank = ("--blank", str(layouts(hospital)))
    assert run(hospital, *blank) == Exit.DATA
    assert certified(hospital) == [] and reasons(hospital)["3-Aloysius.dcm"] == "unconfirmed"
    sheet = hospital / "site.key.sheet.html"
    page, said = sheet.read_text(), capfd.readouterr().err
    assert sheet.stat().st_mode & 0o777 == 0o600 and "stays in the hospital" in page and f"rm {sheet}" in page
    assert not re.search(r"(src|href)=.(?!data:image/png)|url\(|@import", page) and page.count("<script") == 1
    line = next(line.strip() for line in said.splitlines() if "--confirm" in line)
    assert digest_of(hospital) in line and line.replace("'", "&#39;") in page
    assert not [secret for secret in SECRETS[:-3] if secret.lower() in said.lower()]
    assert main(shlex.split(line)[3:]) == Exit.DATA  # the damaged file is still refused
    (image,) = certified(hospital)
    assert image.BurnedInAnnotation == "NO" and not image.pixel_array.any()
    assert "113101" in [item.CodeValue for item in image.DeidentificationMethodCodeSequence]
    before = written(hospital)
    assert run(hospital, *blank) == Exit.DATA and written(hospital) == before
    assert main(shlex.split(line)[3:]) == Exit.DATA and written(hospital) == before
    assert (hospital / "site.key.confirmed.csv").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["file", "rectangle", "pixels", "digest"])
def test_what_changes_after_the_sheet_is_not_confirmed_by_it(hospital, capfd, how):
    blank = ("--blank", str(layouts(hospital)))
    run(hospital, *blank)
    digest = digest_of(hospital)
    folder = hospital / "Homers_folder" / HOMER.surname
    made = image(SOPInstanceUID=f"{HOMER.uid}.9.3", BurnedInAnnotation="YES", InstanceNumber="3")
    if how == "file":
        made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = f"{HOMER.uid}.9.4"
        (folder / "4-Aloysius.dcm").write_bytes(file_of(made))
    elif how == "pixels":
        made.PixelData = made.PixelData[:-2] + b"\7\0"
        (folder / "3-Aloysius.dcm").write_bytes(file_of(made))
    elif how == "rectangle":
        layouts(hospital, "{top: 0, left: 0, bottom: 4, right: 5}")
    else:
        digest = "0" * 16
    assert run(hospital, *blank, "--confirm", digest) == Exit.DATA
    assert "nothing was confirmed" in capfd.readouterr().err and certified(hospital) == []
    run(hospital, *blank, "--confirm", digest_of(hospital))
    assert len(certified(hospital)) == (2 if how == "file" else 1)


def test_a_file_that_came_after_the_confirmation_waits_and_the_others_stay(hospital):
    blank = ("--blank", str(layouts(hospital)))
    run(hospital, *blank)
    run(hospital, *blank, "--confirm", digest_of(hospital))
    later = image(SOPInstanceUID=f"{HOMER.uid}.9.4", BurnedInAnnotation="YES", InstanceNumber="4")
    (hospital / "Homers_folder" / "later.dcm").write_bytes(file_of(later))
    run(hospital, *blank)
    assert len(certified(hospital)) == 1 and reasons(hospital)["later.dcm"] == "unconfirmed"
    page = (hospital / "site.key.sheet.html").read_text()
    assert "later.dcm" in page and "3-Aloysius.dcm" not in page
    run(hospital, *blank, "--confirm", digest_of(hospital))
    assert len(certified(hospital)) == 2


def test_more_images_than_a_sheet_holds_come_on_the_next(hospital, monkeypatch, capfd):
    monkeypatch.setattr("pipelines.batch.blanking.LARGEST", 1)
    folder = hospital / "Homers_folder"
    for number in (4, 5):
        made = image(SOPInstanceUID=f"{HOMER.uid}.9.{number}", BurnedInAnnotation="YES", InstanceNumber=str(number))
        (folder / f"{number}.dcm").write_bytes(file_of(made))
    blank = ("--blank", str(layouts(hospital)))
    run(hospital, *blank)
    assert "2 more images come on the next sheet" in capfd.readouterr().err
    for done in (1, 2, 3):
        run(hospital, *blank, "--confirm", digest_of(hospital))
        assert len(certified(hospital)) == done


def test_without_a_file_of_layouts_a_draft_is_made_that_is_read_again(hospital, capfd):
    blank = ("--blank", str(hospital / "draft.yaml"))
    run(hospital, *blank)
    assert "did not exist and was made" in capfd.readouterr().err
    draft = hospital / "draft.yaml"
    assert draft.stat().st_mode & 0o077 == 0 and "ACME" in draft.read_text()
    assert "No rectangles yet" in (hospital / "site.key.sheet.html").read_text()
    assert reasons(hospital)["3-Aloysius.dcm"] == "burned_in"
    draft.write_text(draft.read_text().replace("rectangles: []", f"rectangles: [{RECTANGLE}]"))
    run(hospital, *blank)
    run(hospital, *blank, "--confirm", digest_of(hospital))
    assert len(certified(hospital)) == 1


def test_a_damaged_record_of_confirmations_is_told(hospital, capsys):
    (hospital / "site.key.confirmed.csv").write_text("image,sheet,confirmed\nx,y,z\n")
    assert run(hospital) == Exit.CONFIG
    assert "site.key.confirmed.csv is damaged" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2", "RGB", "PALETTE COLOR"])
def test_a_name_in_any_frame_is_seen_on_the_sheet(kind, frames):
    """What differs from its ground by one stored value, in the last frame alone."""
    made = image(BurnedInAnnotation="YES", PhotometricInterpretation=kind, NumberOfFrames=frames, Rows=8, Columns=9)
    made.BitsAllocated, made.BitsStored, made.HighBit, made.SamplesPerPixel = 8, 8, 7, 3 if kind == "RGB" else 1
    made.PlanarConfiguration = 0
    for colour in ("Red", "Green", "Blue") if kind == "PALETTE COLOR" else ():
        setattr(made, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(made, f"{colour}PaletteColorLookupTableData", np.arange(0, 65536, 256, dtype="<u2").tobytes())
    values = np.full((frames, 8, 9, made.SamplesPerPixel), 100, np.uint8)
    values[:, 0, 0], values[-1, 4, 2:6] = 200, 101
    made.PixelData = values.tobytes() + b"\0" * (values.size % 2)
    profile = confirmed(made, (0, 0, 1, 9))
    found = build_sheet_image("x", made, blank_image(made, KEY, profile))
    assert len(found.views) == (1 if frames == 1 else 3)
    seen = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(view.stretched.partition(",")[2])))) for view in found.views
    ]
    assert any(abs(int(view[4, 3]) - int(view[5, 3])) > 20 for view in seen)
    assert all(len(np.unique(view[0])) == 1 for view in seen)


def test_no_call_loses_what_an_earlier_one_refused(hospital):
    run(hospital)
    table = hospital / "site.key.quarantine.csv"
    first = list(csv.DictReader(table.open()))
    broken = hospital / "Homers_folder" / HOMER.surname / "broken-Zwetsch.dcm"
    broken.unlink()
    (hospital / "Homers_folder" / "=cmd.dcm").write_bytes(b"")
    run(hospital)
    second = list(csv.DictReader(table.open()))
    assert {(row["file"], row["reason"], row["first"]) for row in first} < {
        (row["file"], row["reason"], row["first"]) for row in second
    }
    assert len(second) == len(first) + 1 and second[0]["file"] == "'=cmd.dcm"
    run(hospital)
    assert len(list(csv.DictReader(table.open()))) == len(second)


@pytest.mark.parametrize("old", ["file,reason,detail\n=old.dcm,burned_in,told\n", "a letter\nto,someone\n", '"', ""])
def test_a_table_of_an_earlier_version_is_read_and_another_file_is_put_aside(tmp_path, old):
    path = tmp_path / "table.csv"
    path.write_text(old)
    add_refusals(path, "file", [("new.dcm", "no_patient", "Fill it in.")])
    rows = [(row["file"], row["reason"]) for row in csv.DictReader(path.open())]
    assert rows[-1] == ("new.dcm", "no_patient") and len(rows) == (2 if "old.dcm" in old else 1)
    aside = [other.read_text() for other in tmp_path.iterdir() if other != path]
    assert aside == ([old] if "old.dcm" not in old and old else [])


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
    arguments = ("--blank", str(layouts(hospital)), "--quarantine", str(hospital / "table.csv"))
    run(hospital, *arguments)
    assert len(written(hospital)) == 2 and (hospital / "table.csv").exists()
    run(hospital, *arguments, "--confirm", digest_of(hospital))
    files = written(hospital)
    assert len(files) == 3
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
        (["Homers_folder", "out", "--key", "k", "--blank", "0,0,4,6"], "one rectangle does not fit all images"),
        (
            ["Homers_folder", "out", "--key", "k", "--blank", "wrong.yaml"],
            "wrong.yaml:3: layouts[0].rectangles[1].bott",
        ),
        (
            ["Homers_folder", "out", "--key", "k", "--blank", "wrong.yaml"],
            "at most 6, the columns of the image",
        ),
        (["Homers_folder", "out", "--key", "k", "--blank", "wrong.yaml"], "unknown key; allowed: layouts"),
        (["Homers_folder", "out", "--key", "k", "--blank", "out/none.yaml"], "--blank must not lie in OUT"),
        (["Homers_folder", "out", "--key", "k", "--confirm", "0" * 16], "--confirm needs the --blank FILE"),
        (["Homers_folder", "out", "--key", "short"], "must be 32 bytes"),
        (["Homers_folder", "out", "--key", "long"], "must be 32 bytes"),
        (["Homers_folder", "out", "--key", "dull"], "at least 16 different values, found 32 with 15"),
        (["Homers_folder", "out", "--key", "open"], "chmod 600"),
    ],
)
def test_a_wrong_command_line_changes_nothing(hospital, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(hospital)
    Path("wrong.yaml").write_text(WRONG)
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
    assert len(before) == 2 and {make_pseudonym(key, name) for name in before} == set(after)
    for name, study in before.items():
        found = after[make_pseudonym(key, name)]
        assert (found.image.values == study.image.values).all() and (found.image.affine == study.image.affine).all()


def test_a_link_and_a_folder_that_cannot_be_read_are_no_traceback(hospital, capfd):
    (hospital / "Homers_folder" / "gone.dcm").symlink_to("nowhere")
    assert run(hospital) == Exit.DATA
    assert "Traceback" not in "".join(capfd.readouterr())


def test_what_the_second_opinion_finds_is_not_written(hospital, monkeypatch):
    monkeypatch.setattr(
        "pipelines.data.writing.dicom_header.find_leftovers",
        lambda *_, **__: ["(0008,0070) holds a part of (0010,0010)"],
    )
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


SAID = {  # description -> whether an image of it is an ADC map
    "Apparent Diffusion Coefficient (mm2/s)": True,
    "ADC of Homer": True,
    "Exponential Apparent Diffusion Coefficient": None,
    "b1000 of Homer": None,
    "": None,
}


@pytest.mark.parametrize("description", SAID)
def test_a_map_that_only_its_description_named_is_known_without_it(description, tmp_path):
    folder = tmp_path / "files"
    change = everywhere(SeriesDescription=description, ImageType=["DERIVED", "SECONDARY", "COMBINED"])
    Series(change=change).write(folder)
    assert main([str(folder), str(tmp_path / "out"), "--key", str(tmp_path / "site.key")]) == Exit.OK
    before, after = (index_dicom(DicomSource(folder=str(tmp_path / name)), adc=True) for name in ("files", "out"))
    assert len(after.candidates) == len(before.candidates) == (1 if SAID[description] else 0)
    assert {one.reason for one in after.rejected} == {one.reason for one in before.rejected}
    headers = [pydicom.dcmread(path, stop_before_pixels=True) for path in (tmp_path / "out").rglob("*.dcm")]
    assert headers and not any("SeriesDescription" in header or "Homer" in str(header) for header in headers)
