"""Identifiers are planted in every corner of two hospitals' files, and then looked for in every byte that a run leaves.

`pseudonym.key`, `linkage.json` and `accounted.csv` are the hospital's secrets: they may, and must, tell who is who.
Nothing else may: no
artifact, no ledger, no log, no page, no message on the screen, at the hospital or at the coordinator.
"""

from __future__ import annotations

import base64
import csv
import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import yaml
from embedded import texts_of
from PIL import Image
from pydicom.dataset import Dataset

from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main
from pipelines.runs.exits import Exit

ROOT = Path(__file__).parents[2]
EXEMPT = {"pseudonym.key", "linkage.json", "accounted.csv"}  # the hospital's own secrets
PATIENTS = 10

# One word each, found nowhere else; with a number behind it where a patient, a study or a file has one of its own.
EVERYWHERE = {
    "PatientName": "Zwetschke^Aloisplant",
    "PatientID": "Pidplant",
    "PatientBirthDate": "19310711",
    "PatientComments": "Commentplant",
    "AccessionNumber": "Accplant",
    "StudyDescription": "Studyplant",
    "SeriesDescription": "Seriesplant",
    "ProtocolName": "Protoplant",
    "ReferringPhysicianName": "Refplant^Doctor",
    "OperatorsName": "Operplant",
    "InstitutionName": "Instiplant",
    "InstitutionAddress": "Streetplant",
    "StationName": "Stationplant",
    "DeviceSerialNumber": "Serialplant",
    "Manufacturer": "Manuplant",
    "ManufacturerModelName": "Modelplant",
    "SoftwareVersions": "Softplant",
    "ImageComments": "Imageplant",
    "StudyID": "Stidplant",
    "SequenceName": "Sequplant",
    "StudyDate": "20170823",
    "StudyTime": "131719.53",
    "SOPInstanceUID": "1.2.826.77341.1",
    "SeriesInstanceUID": "1.2.826.77341.2",
    "StudyInstanceUID": "1.2.826.77341.3",
    "FrameOfReferenceUID": "1.2.826.77341.4",
}
PLANTS = (
    "Zwetschke", "Aloisplant", "Pidplant", "19310711", "Commentplant", "Accplant", "Studyplant", "Seriesplant",
    "Protoplant", "Refplant", "Operplant", "Instiplant", "Streetplant", "Stationplant", "Serialplant", "Manuplant",
    "Modelplant",
    "Softplant", "Imageplant", "Stidplant", "Sequplant", "20170823", "131719.53", "13:17:19",
    "1.2.826.77341", "Nestplant",
    "Privplant", "Fileplant", "Folderplant", "Brokenplant", "Niftiplant", "Descriplant", "Unknownplant",
)  # fmt: skip
OWN = {"PatientName", "PatientID", "AccessionNumber", "StudyDescription", "StudyID"}


def plant(path: Path, patient: int, number: int) -> None:
    """Put the identifiers into one DICOM file."""
    dataset = pydicom.dcmread(path)
    for keyword, text in EVERYWHERE.items():
        if keyword.endswith("UID"):
            file = f".{number}" if keyword == "SOPInstanceUID" else ""
            setattr(dataset, keyword, f"{text}.{patient + 1}{file}")
        else:
            setattr(dataset, keyword, f"{text}{patient}" if keyword in OWN else text)
    nested = Dataset()
    nested.CodeValue, nested.CodingSchemeDesignator, nested.CodeMeaning = "1", "99NESTPLANT", "Nestplant"
    nested.TextValue, nested.PersonName = "Nestplant", "Nestplant"
    dataset.RequestAttributesSequence = [nested]
    dataset.private_block(0x0029, "Privplant", create=True).add_new(0x01, "LO", "Privplant")
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.SourceApplicationEntityTitle = "STATIONPLANT"
    dataset.save_as(path)


def dicom_hospital(folder: Path) -> None:
    """Patients in folders of their own, some of them damaged in ways of which a run will have to speak."""
    source = PhantomSource(kind="phantom", scanner="P", patients=PATIENTS, seed=1, slices=4, damaged=3)
    write(source, folder)
    names = {}
    for patient, place in enumerate(sorted((folder / "images").iterdir())):
        names[place.name] = f"Pidplant{patient}"
        for number, path in enumerate(sorted(place.iterdir())):
            try:
                plant(path, patient, number)
            except Exception:  # noqa: S112 - a damaged one stays as it is
                continue
            path.rename(path.with_name(f"Fileplant{patient}-{number}.dcm"))
        place.rename(place.with_name(f"Folderplant {patient}"))
    with (folder / "labels.csv").open() as stream:
        rows = [[names.get(row[0], row[0]), *row[1:]] for row in csv.reader(stream)]
    missing = f"Pidplant{PATIENTS - 1}"  # a patient without a label
    with (folder / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([row for row in rows if row[0] != missing] + [["Unknownplant", "0", "1"]])
    good = next((folder / "images" / "Folderplant 0").iterdir()).read_bytes()
    broken = folder / "images" / "Brokenplant"
    broken.mkdir()
    (broken / "Brokenplant-cut.dcm").write_bytes(good[: len(good) // 3])
    (broken / "Brokenplant-empty.dcm").write_bytes(b"")
    (broken / "Brokenplant-text.dcm").write_text("Dear Zwetschke")
    (broken / "Brokenplant-header.dcm").write_bytes(good[:132] + b"Zwetschke" * 40)
    (broken / "Brokenplant-noise.dcm").write_bytes(good[:700] + bytes(range(256)) * 8)
    mixed = pydicom.dcmread(sorted((folder / "images" / "Folderplant 1").iterdir())[0])
    mixed.PatientID, mixed.SOPInstanceUID = "Pidplant777", "1.2.826.77341.1.2.777"
    mixed.save_as(folder / "images" / "Folderplant 1" / "Fileplant-mixed.dcm")
    wrong = pydicom.dcmread(sorted((folder / "images" / "Folderplant 2").iterdir())[0])
    wrong.add_new(0x00180050, "LO", "Zwetschke")  # no slice thickness
    wrong.add_new(0x00281053, "LO", "Zwetschke")  # no slope
    wrong.save_as(sorted((folder / "images" / "Folderplant 2").iterdir())[0])


def nifti_hospital(folder: Path) -> None:
    """File names that are patients' identifiers, and headers with a description."""
    write(PhantomSource(kind="phantom", scanner="L", patients=PATIENTS, seed=2, slices=4, format="nifti"), folder)
    for place in (folder / "images", folder / "masks" / "lesion", folder / "masks" / "gland"):
        for patient, path in enumerate(sorted(place.iterdir())):
            if place.name == "images":
                image = nibabel.Nifti1Image.from_bytes(gzip.decompress(path.read_bytes()))
                image.header["descrip"] = bytes(image.header["descrip"]) + b" Descriplant"
                image.header["db_name"] = b"Descriplant"
                path.write_bytes(gzip.compress(image.to_bytes()))
            path.rename(path.with_name(f"Niftiplant{patient}.nii.gz"))
    (folder / "images" / "Niftiplant-broken.nii.gz").write_bytes(b"\x1f\x8bNiftiplant")


SETTINGS = {
    "name": "planted",
    "privacy": "none",
    "pooling": "allowed",
    "threads": 1,
    "sites": {
        "a": {
            "source": {"kind": "dicom", "folder": "one/images", "select": {"ImageType": "ADC"}},
            "labels": {"kind": "table", "file": "one/labels.csv", "slice": "slice"},
            "policy": {"pooling": True},
            "max_rejected": 0.9,
        },
        "b": {
            "source": {"kind": "nifti", "folder": "two/images"},
            "labels": {"kind": "mask", "folder": "two/masks/lesion"},
            "policy": {"pooling": True},
            "max_rejected": 0.9,
        },
    },
    "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
    "split": {"train": 0.5, "validation": 0.2, "test": 0.3},
    "model": {"name": "cnn", "widths": [8, 8], "norm": "group"},
    "train": {
        "schedule": {"rounds": 2},
        "work": {"lr": 0.01, "batch": 16},
        "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}, "pooled": {"name": "central"}},
    },
    "evaluate": {"copies": 20, "reference": "local"},
}
STRICT = {**SETTINGS, "name": "strict"}
STRICT["sites"] = {name: {**site, "max_rejected": 0.05} for name, site in SETTINGS["sites"].items()}
LABELLESS = {**SETTINGS, "name": "labelless"}
LABELLESS["sites"] = {
    **SETTINGS["sites"],
    "a": {**SETTINGS["sites"]["a"], "labels": {"kind": "mask", "folder": "two/masks/lesion"}},
}


TABLES = {  # each is wrong in another way, and holds names
    "header": "Pidplant1,Commentplant\nPidplant2,1\n",
    "label": "patient,slice,label\nPidplant1,0,Commentplant\nPidplant2,Commentplant,1\n",
    "twice": "patient,label\nPidplant1,1\nPidplant1,0\nPidplant2,1\nPidplant3,0\n",
}
PICTURES = {
    **SETTINGS,
    "name": "pictures",
    "pooling": "refused",
    "sites": {
        name: {
            "source": {
                "kind": "picture",
                "folder": "three",
                "table": "three/labels.csv",
                "where": {"patient": [f"Pidplant{number}" for number in numbers]},
            },
            "exclude": [f"Pidplant{numbers[0]}"],
            "test": [f"Pidplant{number}" for number in numbers[1:5]],
        }
        for name, numbers in {"a": range(20), "b": range(20, 40)}.items()
    },
    "images": {"kind": "pictures", "size": 16},
    "train": {"schedule": {"rounds": 1}, "methods": {"local": {"name": "local"}}},
}
WRONG = {  # a name where a list is asked for: messages stay in journals
    **PICTURES,
    "name": "wrong",
    "sites": {
        "a": {**PICTURES["sites"]["a"], "exclude": "Pidplant1"},
        "b": {**PICTURES["sites"]["b"], "test": [{"Pidplant2": 1}]},
    },
}
NOBODY = {
    **PICTURES,
    "name": "nobody",
    "sites": {
        name: {"source": {**site["source"], "where": {"patient": [f"Pidplant999{name}"]}}}
        for name, site in PICTURES["sites"].items()
    },
}


def tabled(name: str) -> dict[str, object]:
    site = {**SETTINGS["sites"]["a"], "labels": {"kind": "table", "file": f"{name}.csv", "slice": "slice"}}
    return {**SETTINGS, "name": name, "sites": {**SETTINGS["sites"], "a": site}}


BAD = {name: tabled(name) for name in TABLES} | {"wrong": WRONG, "nobody": NOBODY, "labelless": LABELLESS}
ALL = {"planted": SETTINGS, "strict": STRICT, "pictures": PICTURES, **BAD}
COMMANDS = (
    "planted.yaml --check",
    *(f"{name}.yaml" for name in ALL),
    "planted.yaml --explain --json",
    "wrong.yaml --json",
)
STARTED = "wrong.yaml"  # in a process of its own too: what Python itself may say at its end


def picture_hospitals(folder: Path) -> None:
    """Pictures whose files, metadata and table name patients."""
    folder.mkdir()
    lines = ["image,patient,label"]
    for number in range(40):
        exif = Image.Exif()
        exif[0x010E] = "Descriplant"
        values = np.full((20, 20, 3), 60 + 100 * (number % 2) + number, np.uint8)
        Image.fromarray(values).save(folder / f"Fileplant{number}.jpg", exif=exif, comment=b"Commentplant")
        lines.append(f"Fileplant{number}.jpg,Pidplant{number},{number % 2}")
    (folder / "labels.csv").write_text("\n".join(lines))


@dataclass(frozen=True)
class Ran:
    """folder: where. said: everything on the screen, by command. codes: exit codes, by command."""

    folder: Path
    said: dict[str, str]
    codes: dict[str, int]


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Ran:
    """A good run, and runs that end badly."""
    folder = tmp_path_factory.mktemp("planted")
    dicom_hospital(folder / "one")
    nifti_hospital(folder / "two")
    picture_hospitals(folder / "three")
    for name, text in TABLES.items():
        (folder / f"{name}.csv").write_text(text)
    for name, settings in ALL.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    said, codes = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for command in COMMANDS:
            codes[command], said[command] = ended(command, folder / "said")
    codes["started"], said["started"] = started(STARTED, folder)
    return Ran(folder, said, codes)


def ended(command: str, path: Path) -> tuple[int, str]:
    """Its exit code and everything on the screen, as Python and what lies below it write it there."""
    with path.open("w+") as screen, ExitStack() as stack:
        for number in (1, 2):
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(screen.fileno(), number)
        stack.enter_context(redirect_stdout(screen))
        stack.enter_context(redirect_stderr(screen))
        code = main(command.split())
        screen.flush()
    return code, path.read_text(errors="replace")


def started(command: str, folder: Path) -> tuple[int, str]:
    """The same of a process of its own, as an operator starts it."""
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.run", *command.split()],
        cwd=folder,
        capture_output=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


NUMBER = {
    plant: re.compile(rf"(?<![0-9A-Fa-f.]){plant}(?![0-9A-Fa-f])".encode()) for plant in PLANTS if plant.isdigit()
}
"""Plants of digits alone count where they are a number of their own: in a digest they stand by chance."""


def found(data: bytes) -> set[str]:
    """Plants in bytes: as they are, in UTF-16, behind entities and escapes, and in what is embedded or compressed."""
    return {plant for plant in PLANTS for text in texts_of(data) if _holds(text, plant)}


def _holds(text: bytes, plant: str) -> bool:
    if plant in NUMBER:
        return NUMBER[plant].search(text) is not None
    return plant.lower().encode() in text.lower()


def leaks(folder: Path) -> dict[str, set[str]]:
    """Files below `folder` that hold plants, in their bytes or in their own names."""
    if not any(path.is_file() for path in folder.rglob("*")):
        raise FileNotFoundError(f"{folder} holds nothing: a search in it says nothing")
    told = {}
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        data = path.read_bytes() if path.is_file() and path.name not in EXEMPT else b""
        here = found(data) | found(place.encode())
        if here:
            told[place] = here
    return told


def test_the_runs_ended_as_they_should(ran):
    assert ran.codes["planted.yaml --check"] == ran.codes["planted.yaml"] == Exit.OK, ran.said["planted.yaml"]
    assert ran.codes["strict.yaml"] == Exit.DATA, ran.said["strict.yaml"]
    assert ran.codes["pictures.yaml"] == Exit.OK, ran.said["pictures.yaml"]
    for name in BAD:
        assert ran.codes[f"{name}.yaml"] in (Exit.CONFIG, Exit.DATA), ran.said[f"{name}.yaml"]
    assert ran.codes["started"] == ran.codes[STARTED]
    assert (ran.folder / "runs" / "planted" / "report.html").exists()


def test_the_quarantine_has_something_to_say(ran):
    (place,) = (ran.folder / "runs" / "planted" / "sites" / "a").glob("cohorts/*/rejected.json")
    assert len(json.loads(place.read_text())) >= 4


def test_the_hospital_itself_can_look_up_who_was_rejected(ran):
    (linkage,) = (ran.folder / "runs" / "planted" / "sites" / "a").rglob("linkage.json")
    assert {"Pidplant", "Folderplant"} <= found(linkage.read_bytes())
    assert linkage.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("run", [name for name in ALL if name != "wrong"])
def test_no_file_that_a_run_leaves_holds_an_identifier(ran, run):
    assert leaks(ran.folder / "runs" / run) == {}


def test_nothing_that_is_said_holds_an_identifier(ran):
    assert {command: found(said.encode()) for command, said in ran.said.items() if found(said.encode())} == {}


def test_a_bug_that_quotes_a_patient_is_not_quoted(ran, tmp_path, monkeypatch, capfd):
    def bug(key, patient):
        raise RuntimeError(patient, *EVERYWHERE.values())

    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "planted.yaml"):
        (tmp_path / name).symlink_to(ran.folder / name)
    monkeypatch.setattr("pipelines.data.cohort.make_pseudonym", bug)
    assert main(["planted.yaml"]) == Exit.SITE
    assert (tmp_path / "runs" / "planted" / "sites" / "a" / "log.txt").read_text()
    assert leaks(tmp_path / "runs") == {}
    assert found("".join(capfd.readouterr()).encode()) == set()


def test_the_search_finds_what_is_there(tmp_path):
    (tmp_path / "a.html").write_text("<p>Zwetschke&#x20;</p>")
    (tmp_path / "b.txt").write_bytes("MODELPLANT".encode("utf-16"))
    (tmp_path / "c.html").write_bytes(b"src=data:x;base64," + base64.b64encode(b"..Fileplant.."))
    (tmp_path / "Folderplant 3").mkdir()
    (tmp_path / "pseudonym.key").write_text("Pidplant")
    assert leaks(tmp_path) == {
        "a.html": {"Zwetschke"},
        "b.txt": {"Modelplant"},
        "c.html": {"Fileplant"},
        "Folderplant 3": {"Folderplant"},
    }
