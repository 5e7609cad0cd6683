"""Pictures of maps for the PACS: what they show, where it lies, and what they refer to."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
from pydicom.dataset import Dataset

from pipelines.batch import maps
from pipelines.batch.captures import SIDE, format_caption, paint_capture
from pipelines.batch.results import ResultRequest, write_results
from pipelines.data.dicom.reader import index_dicom
from pipelines.data.index import Candidate
from pipelines.data.sources import DicomSource
from pipelines.data.writing.dicom_capture import capture_bytes
from pipelines.data.writing.dicom_report import Finding
from pipelines.data.writing.dicom_source import NOTICE, Pseudonymous, ResultMaker
from pipelines.models.file import read_ready
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from privacy.deidentify.dicom_image import Profile
from privacy.deidentify.leftovers import find_leftovers
from translating import SELECT, errors, phantom
from untaught import DICOM, SEGMENTER, SLICES, lines, model

MAKER = ResultMaker(bytes(range(32)), "fedavg", "0123456789abcdef", datetime(2026, 1, 2, 3, 4, 5))
HIDDEN = Pseudonymous(bytes(range(32)), Profile())
FOUND = Finding(name="negative", positive=False, score=0.3871, threshold=0.5, examples=4, unlike=True)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hospital")
    write(PhantomSource(scanner="A", patients=1, slices=5, format="dicom"), root)
    return root / "images"


@pytest.fixture(scope="module")
def series(images: Path) -> Candidate:
    return index_dicom(DicomSource(folder=str(images), select=SELECT)).candidates[0]


def captured(series: Candidate, place: int = 1, **more: object) -> bytes:
    picture = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    more = {"derivation": "By dice.", **more}
    return capture_bytes(picture, series.stack.volumes[0][place], series.stack, MAKER, **more)  # type: ignore


def read(data: bytes) -> Dataset:
    return pydicom.dcmread(io.BytesIO(data))


def test_a_capture_refers_to_its_image_and_says_how_it_was_derived(series):
    file, frame = read(captured(series)), series.stack.volumes[0][1]
    image = pydicom.dcmread(frame.path)
    (source,) = file.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == image.SOPInstanceUID and source.ReferencedSOPClassUID == image.SOPClassUID
    for keyword in ("PatientID", "PatientName", "StudyInstanceUID", "AccessionNumber", "StudyDate"):
        assert file[keyword].value == image[keyword].value
    assert file.SeriesInstanceUID != image.SeriesInstanceUID and file.SeriesNumber >= 9200
    assert file.DerivationDescription == f"By dice. {NOTICE}" and file.ImageType == ["DERIVED", "SECONDARY"]
    assert file.BurnedInAnnotation == "NO" and file.PatientOrientation == ["L", "P"]
    assert np.array_equal(file.pixel_array, np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8))


def test_the_same_input_gives_the_same_bytes_and_anything_else_another_uid(series):
    assert captured(series) == captured(series)
    others = [{}, {"place": 2}, {"derivation": "x"}, {"pseudonymous": HIDDEN}]
    assert len({read(captured(series, **other)).SOPInstanceUID for other in others}) == len(others)


def test_without_identity_nothing_of_the_patient_is_left(series):
    original = pydicom.dcmread(series.stack.volumes[0][1].path)
    data = captured(series, pseudonymous=HIDDEN)
    assert find_leftovers(original, data) == [] and read(data).PatientIdentityRemoved == "YES"


def test_other_arrays_are_no_pictures(series):
    with pytest.raises(ValueError, match="rows, columns, 3"):
        capture_bytes(np.zeros((3, 3)), series.stack.volumes[0][0], series.stack, MAKER, derivation="")  # type: ignore


@pytest.mark.parametrize("shape", [(20, 20), (10, 30), (30, 10)])
def test_a_picture_has_the_slice_twice_in_its_proportions_and_the_map_on_the_right(shape):
    image = np.random.default_rng(0).random(shape).astype(np.float32) * 1e3
    cam = np.zeros(shape, np.float32)
    cam[: shape[0] // 2, : shape[1] // 2] = 1
    found = paint_capture(image, cam, (1.0, 2.0), [NOTICE]).astype(int)
    width, height = (round(SIDE * side / max(shape[0] * 2, shape[1])) for side in (shape[1], shape[0] * 2))
    left, right = found[:height, :width], found[:height, width : 2 * width]
    changed = np.abs(left - right).sum(axis=2) > 0
    assert changed[: height // 3, : width // 3].mean() > 0.9 and not changed[2 * height // 3 :, 2 * width // 3 :].any()
    assert (left == left[..., :1]).all(), "grey"
    assert found[height:].any(), "the words"


@pytest.mark.parametrize("fill", [np.nan, 0.0, np.inf])
def test_a_slice_without_values_is_drawn_too(fill):
    assert (
        paint_capture(np.full((8, 8), fill, np.float32), np.zeros((8, 8), np.float32), (1, 1), [NOTICE]).shape[2] == 3
    )


def test_the_words_are_the_notice_first_then_result_and_model():
    first, score, where, made = format_caption(FOUND, MAKER, 9, 19)
    assert first == NOTICE and "0.387" in score and "negative" in score and "UNLIKE" in score
    assert "Slice 10 of 19" in where and "fedavg 0123456789abcdef" in made and "Consilium" in made
    classes = Finding(name="mel", classes={"mel": 0.7, "nev": 0.3})
    assert "mel, probability 0.700" in format_caption(classes, MAKER, 0, 1)[1]


def test_the_most_sensitive_slice_is_drawn(images, series, tmp_path, monkeypatch):
    """With a map that lies in one slice."""

    def slopes(module: torch.nn.Module, x: torch.Tensor, finding: int | None) -> torch.Tensor:
        size = torch.zeros(x[:, 0].shape)
        size[3, 20:28, 20:28] = 1
        return size

    monkeypatch.setattr(maps, "compute_slopes", slopes)
    chosen = read_ready(model(tmp_path / "m", SLICES, DICOM))
    when = datetime(2026, 1, 2)
    found = write_results(chosen, images, tmp_path / "out", ResultRequest(captures=True), when=when)
    assert [one.kind for one in found.files] == ["report", "capture"] and found.rows[0]["capture"].startswith(
        "captures/"
    )
    file = pydicom.dcmread(found.files[1].path)
    heights = sorted(float(frame.values["ImagePositionPatient"][2]) for frame in series.stack.volumes[0])
    seen = {frame.values["SOPInstanceUID"]: frame for frame in series.stack.volumes[0]}
    drawn = seen[file.SourceImageSequence[0].ReferencedSOPInstanceUID]
    assert float(drawn.values["ImagePositionPatient"][2]) == heights[3]
    later = write_results(
        *(chosen, images, tmp_path / "later", ResultRequest()), when=when.replace(day=3), replaced=found.files
    )
    assert [one.kind for one in later.files] == ["report", "rejection"]
    assert file.SOPInstanceUID in str(pydicom.dcmread(later.files[1].path))
    assert errors(tmp_path) == set()


def test_predict_draws_them_on_demand(images, tmp_path, capsys):
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    assert predict([str(file), str(images), "--no-gland", "--captures", "--out", str(out)]) == Exit.OK
    (row,) = lines(out / "predictions.csv")
    assert (out / row["capture"]).is_file() and "map" not in row and not (out / "maps").exists()
    masks = model(tmp_path / "s", SLICES, DICOM, SEGMENTER)
    assert predict([str(masks), str(images), "--no-gland", "--captures", "--out", str(tmp_path / "no")]) == Exit.CONFIG
    assert "--captures is for models that give scores" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("scanner", list("APE"))
def test_dciodvfy_finds_no_error(tmp_path, scanner):
    one = index_dicom(DicomSource(folder=str(phantom(tmp_path / "in", scanner)), select=SELECT)).candidates[0]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.dcm").write_bytes(captured(one))
    (tmp_path / "out" / "b.dcm").write_bytes(captured(one, pseudonymous=HIDDEN))
    assert errors(tmp_path / "out") == set()
