"""Results in a real archive: `storescu` of dcmtk hands over a folder as it is, and Orthanc shows what is in it."""

from __future__ import annotations

import base64
import io
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from orthanc import PASSWORD, TITLE, USER, Orthanc, running_orthanc
from pipelines.batch.results import ResultFile, ResultRequest, write_results
from pipelines.models.file import read_ready
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from programs import find_dcmtk
from untaught import CLASSIFIER, DICOM, SEGMENTER, SLICES, model

WHEN = datetime(2026, 1, 2, 3, 4, 5)
KINDS = {"report": "SR", "capture": "OT", "segmentation": "SEG", "rejection": "KO"}


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Orthanc]:
    if find_dcmtk("storescu") is None:
        pytest.skip("storescu (dcmtk) is not installed")
    with running_orthanc(tmp_path, tls=False) as one:
        yield one


def results(images: Path, out: Path) -> list[ResultFile]:
    """Of both kinds of models, and those that replace them when the series has lost its last image."""
    found: list[ResultFile] = []
    for name, network in {"scores": CLASSIFIER, "masks": SEGMENTER}.items():
        ready = read_ready(model(out / name, SLICES, DICOM, network))
        wanted, last = ResultRequest(captures=network is CLASSIFIER), max(images.iterdir())
        earlier = write_results(ready, images, out / f"{name}1", wanted, when=WHEN)
        kept = last.read_bytes()
        last.unlink()
        day = WHEN.replace(day=3)
        later = write_results(ready, images, out / f"{name}2", wanted, when=day, replaced=earlier.files)
        last.write_bytes(kept)
        found += [*earlier.files, *later.files]
    return found


def test_all_kinds_of_results_are_stored_in_the_patients_study_and_shown(archive: Orthanc, tmp_path: Path) -> None:
    write(PhantomSource(scanner="A", patients=1, slices=5, format="dicom"), tmp_path / "phantom")
    (series,) = {path.parent for path in (tmp_path / "phantom" / "images").rglob("*.dcm")}
    archive.load(sorted(series.iterdir()))
    (tmp_path / "out").mkdir()
    found = results(series, tmp_path / "out")
    assert [one.kind for one in found].count("rejection") == 2 and len(found) == 8
    for folder in sorted({one.path.parent for one in found}):
        command = [
            str(find_dcmtk("storescu")),
            "-R",
            "+sd",
            "-aec",
            TITLE,
            "127.0.0.1",
            str(archive.dicom),
            str(folder),
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
    (study,) = archive.ask("GET", "/studies?expand")
    there = archive.ask("GET", f"/studies/{study['ID']}/instances?expand")
    stored = {one["MainDicomTags"]["SOPInstanceUID"]: one["ID"] for one in there}
    assert {one.sop_instance for one in found} <= set(stored)
    for one in found:
        tags = archive.ask("GET", f"/instances/{stored[one.sop_instance]}/simplified-tags")
        assert tags["Modality"] == KINDS[one.kind]
        sent = archive_file(archive, stored[one.sop_instance])
        assert pydicom.dcmread(io.BytesIO(sent)) == pydicom.dcmread(one.path)
    picture = next(one for one in found if one.kind == "capture")
    shown = archive_file(archive, stored[picture.sop_instance], "preview")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(shown))), pydicom.dcmread(picture.path).pixel_array)


def archive_file(archive: Orthanc, instance: str, what: str = "file") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{archive.http}/instances/{instance}/{what}")
    request.add_header("Authorization", f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}")
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own
        data: bytes = answer.read()
    return data
