"""Translators on synthetic files, for the tests of `pipelines.translate`: studies, files, and errors of dciodvfy."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from pydicom.dataset import Dataset

from harmonize.cyclegan import CycleGan
from harmonize.scale import Scale
from harmonize.translation import AnyTranslator
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.images import Slices
from pipelines.data.sources import DicomSource
from pipelines.data.study import Study, Volume
from pipelines.models.translator_file import SETTINGS, TranslatorFile, write_translator
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.store import DiskFolder
from pipelines.translate import main

KEY = bytes(range(32))
SCALE = Scale(low=0, high=3.5)  # 1e-3 mm²/s
SELECT = {"ImageType": "ADC"}
NUMBERS = {"numbers": torch.tensor([[-0.75, 0.25]])}


def translator(
    folder: Path, settings: AnyTranslator, params: dict[str, torch.Tensor] | None = None, **more: Any
) -> str:
    told = {
        "site": "north",
        "scale": SCALE,
        "images": Slices(),
        "source": DicomSource(folder="secret/folder", select={**SELECT, "PatientID": "PH0"}),
        "gland": False,
        "vetoed": (),
        "origin": {"run": "tiny"},
        **more,
    }
    write_translator(DiskFolder(folder), settings.name, settings=settings, params=params or {}, **told)
    return str(folder / f"{settings.name}.safetensors")


def run(file: str, folder: Path, out: Path, *more: str) -> int:
    key = out.parent / "site.key"
    if not key.exists():
        key.write_bytes(KEY)
        key.chmod(0o600)
    return main([file, str(folder), "--out", str(out), "--key", str(key), "--readers", "1", *more])


def table(out: Path, name: str = "translated") -> list[dict[str, str]]:
    with (out.parent / f"{out.name}.{name}.csv").open() as file:
        return list(csv.DictReader(file))


def phantom(folder: Path, scanner: str, patients: int = 1, **more: Any) -> Path:
    write(PhantomSource(scanner=scanner, patients=patients, slices=4, **more), folder)  # type: ignore[arg-type]
    return folder / "images"


def five(folder: Path) -> Path:
    """One patient for each vendor's coding of ADC: real-world map, table, none, table in 1e-3, slope."""
    for scanner in "ABPLE":
        phantom(folder / scanner, scanner)
    return folder


def studies(folder: Path) -> list[Study]:
    found, rejected = read_dicom(DicomSource(folder=str(folder), select=SELECT))
    assert not rejected
    return found


def only(folder: Path) -> Study:
    (found,) = studies(folder)
    return found


def by_position(folder: Path) -> dict[tuple[float, ...], Dataset]:
    files = [pydicom.dcmread(path) for path in sorted(folder.rglob("*.dcm"))]
    return {tuple(map(float, file.ImagePositionPatient)): file for file in files}


def through(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Replace the translator's network by a function of a slice."""
    monkeypatch.setattr(CycleGan, "translate", lambda self, params, images, patient: change(images))


def oblique(spacing: tuple[float, float, float]) -> np.ndarray:
    """Axes rotated by 20 degrees about one and 10 about another axis of the patient."""
    a, b = np.radians(20), np.radians(10)
    one = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    two = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = one @ two @ np.diag(spacing)
    affine[:3, 3] = (-30.0, 12.0, 7.0)
    return affine


def smooth(affine: np.ndarray, shape: tuple[int, int, int]) -> Volume:
    """ADC in 1e-6 mm²/s that varies over centimetres, with a corner that the vendor masked."""
    i, j, k = np.meshgrid(
        *(np.arange(size) * step for size, step in zip(shape, spacing(affine), strict=True)), indexing="ij"
    )
    values = 1400 + 500 * np.sin(i / 12) * np.cos(j / 15) + 20 * k
    values[:4, :3] = 0
    return Volume(values.astype(np.float32), affine)


def spacing(affine: np.ndarray) -> np.ndarray:
    return np.linalg.norm(affine[:3, :3], axis=0)


def nifti(path: Path, volume: Volume) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(np.rint(volume.values).astype(np.int16), volume.affine)
    image.set_qform(volume.affine, code="scanner")
    image.header["descrip"] = "ADC 1e-6 mm2/s"
    nibabel.save(image, path)


def made(settings: AnyTranslator, params: dict[str, torch.Tensor] | None = None) -> TranslatorFile:
    """The translator as it is read from its file."""
    known = SETTINGS.validate_json(SETTINGS.dump_json(settings))
    source = DicomSource(folder=".")
    return TranslatorFile("s", "x", known, params or {}, SCALE, Slices(), source, False, (), "0" * 16, {})


def content(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


def errors(folder: Path) -> set[str]:
    program = shutil.which("dciodvfy")
    if program is None:
        pytest.skip("dciodvfy (dicom3tools) is not installed")
    found = set()
    for path in sorted(folder.rglob("*.dcm")):
        told = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
        found |= {line for line in (told.stdout + told.stderr).splitlines() if line.startswith("Error")}
    return found
