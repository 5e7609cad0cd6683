"""A night scores a series as `predict` scores its folder, and so is one scored that was de-identified."""

from __future__ import annotations

import shutil
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydicom
import pytest

import untaught
from pipelines.batch.results import ResultRequest, write_results
from pipelines.models.file import read_ready
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.phantom.scanner import SCANNERS
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import as_bytes, deidentify_image

KEY = bytes(range(32))
WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def phantoms(folder: Path) -> Path:
    """A patient of each scanner, one of them with padding that the file declares."""
    for scanner in SCANNERS:
        write(PhantomSource(scanner=scanner, patients=1, slices=4, seed=3), folder / scanner)
    for path in sorted((folder / "A" / "images").rglob("*.dcm")):
        file = pydicom.dcmread(path)
        pixels = file.pixel_array.copy()
        pixels[:9] = 4095
        file.PixelData = pixels.tobytes()
        file.add_new("PixelPaddingValue", "US", 4095)
        file.save_as(path)
    return folder


def of_series(folder: Path, out: Path) -> list[Path]:
    """The folder's files by series, as a night fetches them."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(path for path in folder.rglob("*.dcm") if path.is_file()):
        found[str(pydicom.dcmread(path, stop_before_pixels=True).SeriesInstanceUID)].append(path)
    for number, paths in enumerate(found.values()):
        (out / str(number)).mkdir(parents=True)
        for place, path in enumerate(paths):
            shutil.copyfile(path, out / str(number) / f"{place}.dcm")
    return sorted(out.iterdir())


def scores(rows: Any) -> list[tuple[str, str]]:
    return sorted((row["score"], row["positive"]) for row in rows)


def predicted(model: Path, folder: Path, out: Path) -> list[tuple[str, str]]:
    assert predict([str(model), str(folder), "--out", str(out), "--readers", "1"]) == Exit.OK
    return scores(untaught.lines(out / "predictions.csv"))


def check(model: Path, folder: Path, here: Path, count: int) -> None:
    whole = predicted(model, folder, here / "predict")
    ready, single = read_ready(model), list[Any]()
    for number, series in enumerate(of_series(folder, here / "series")):
        single += write_results(ready, series, here / "night" / str(number), ResultRequest(), when=WHEN).rows
    assert len(whole) == count and scores(single) == whole
    safe = here / "safe"
    safe.mkdir()
    for number, path in enumerate(sorted(path for path in folder.rglob("*.dcm") if path.is_file())):
        (safe / f"{number}.dcm").write_bytes(as_bytes(deidentify_image(pydicom.dcmread(path), key=KEY)))
    assert predicted(model, safe, here / "safely") == whole


@pytest.mark.parametrize("values", ["adc", "standardized"])
def test_phantoms_get_one_score_by_predict_by_night_and_without_identity(values: str, tmp_path: Path) -> None:
    model = untaught.model(tmp_path / "m.safetensors", {**untaught.SLICES, "values": values}, untaught.DICOM)
    check(model, phantoms(tmp_path / "files"), tmp_path, len(SCANNERS))


@pytest.mark.slow  # a smaller case: phantoms, above
def test_real_maps_get_one_score_by_predict_by_night_and_without_identity(data: Path, tmp_path: Path) -> None:
    model = untaught.model(tmp_path / "m.safetensors", untaught.SLICES, untaught.DICOM)
    check(model, data / "prostatex" / "dicom", tmp_path, 2)


@pytest.mark.slow  # a smaller case: phantoms, above
def test_real_diffusion_series_get_one_score_by_predict_and_by_night(data: Path, tmp_path: Path) -> None:
    fitted = {"kind": "dicom", "folder": ".", "select": {"ImageType": "DIFFUSION"}, "derive": "adc"}
    model = untaught.model(tmp_path / "m.safetensors", untaught.SLICES, fitted)
    folder = tmp_path / "files"
    for place in (data / "prostatex" / "dicom").rglob("*ep2ddiff*"):
        if "ADC" not in place.name:
            shutil.copytree(place, folder / place.parent.name)
    check(model, folder, tmp_path, 2)
