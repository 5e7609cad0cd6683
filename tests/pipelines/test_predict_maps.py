"""`predict --maps`: where a score is sensitive, on the study's own grid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from federation.models.sensitivity import compute_sensitivity
from pipelines.batch import maps
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import resample_volume
from pipelines.data.nifti.reader import read_nifti, read_volume
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from translating import SELECT
from untaught import CLASSIFIER, DICOM, NIFTI, PICTURES, SEGMENTER, SLICES, lines, model


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hospitals")
    for kind in ("dicom", "nifti"):
        write(PhantomSource(scanner="A", patients=2, slices=5, format=kind), root / kind)  # type: ignore[arg-type]
    return {kind: root / kind / "images" for kind in ("dicom", "nifti")}


def whole(module: torch.nn.Module, x: torch.Tensor, finding: int | None = None) -> torch.Tensor:
    """In the place of slopes: the image itself, so that everybody can see where it should lie."""
    return x[:, 0].clamp(min=0)


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
def test_a_map_lies_on_its_study(hospitals, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(maps, "compute_slopes", whole)
    file, out = model(tmp_path / "m", SLICES, DICOM if kind == "dicom" else NIFTI), tmp_path / "out"
    assert predict([str(file), str(hospitals[kind]), "--no-gland", "--maps", "--out", str(out)]) == Exit.OK
    if kind == "dicom":
        studies, _ = read_dicom(DicomSource(folder=str(hospitals[kind]), select=SELECT))
    else:
        studies, _ = read_nifti(NiftiSource(folder=str(hospitals[kind])))
    table = {line["study"]: line for line in lines(out / "predictions.csv")}
    assert len(table) == len(studies) == 2
    for study in studies:
        found = read_volume(out / table[study.study]["map"])
        image = np.asarray(study.image.values)
        cam = resample_volume(found, study.image.affine, image.shape, 1)  # type: ignore[arg-type]
        seen = cam > 0
        assert 0.9 < float(cam.max()) <= 1 and seen.mean() > 0.3
        assert np.corrcoef(cam[seen], image[seen])[0, 1] > 0.98


def test_a_study_has_one_scale_and_the_networks_own_slopes(hospitals, tmp_path):
    """Against the network's own maps of a picture, which are as large as the picture."""
    images = tmp_path / "pictures"
    images.mkdir()
    values = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(values).save(images / "one.png")
    file, out = model(tmp_path / "m", PICTURES, {"kind": "picture", "folder": ".", "table": "t.csv"}), tmp_path / "out"
    assert predict([str(file), str(images), "--maps", "--out", str(out)]) == Exit.OK
    (line,) = lines(out / "predictions.csv")
    found = np.asarray(Image.open(out / line["map"]), np.float64) / 255
    torch.manual_seed(0)
    module = CLASSIFIER.build(inputs=(3, 32, 32), classes=2).eval()
    x = torch.from_numpy(values).permute(2, 0, 1)[None].float() / 127.5 - 1
    assert np.allclose(found, compute_sensitivity(module, x)[0], atol=0.01)


def test_without_the_flag_no_map_is_written_and_those_of_before_go(hospitals, tmp_path):
    file, out = model(tmp_path / "m", SLICES, NIFTI), tmp_path / "out"
    command = [str(file), str(hospitals["nifti"]), "--no-gland", "--out", str(out)]
    assert predict([*command, "--maps"]) == Exit.OK
    assert len(list((out / "maps").iterdir())) == 2
    (out / "maps" / "mine.txt").write_text("stays")
    assert predict(command) == Exit.OK
    assert [path.name for path in (out / "maps").iterdir()] == ["mine.txt"]
    assert "map" not in lines(out / "predictions.csv")[0]


def test_a_model_that_gives_no_scores_of_planes_has_no_maps(hospitals, tmp_path, capsys):
    file = model(tmp_path / "m", SLICES, NIFTI, SEGMENTER)
    command = [str(file), str(hospitals["nifti"]), "--no-gland", "--maps", "--out", str(tmp_path / "out")]
    assert predict(command) == Exit.CONFIG
    assert "--maps is for models that give scores" in " ".join(capsys.readouterr().err.split())


def test_maps_do_not_lie_among_studies(hospitals, tmp_path, capsys):
    file, inside = model(tmp_path / "m", SLICES, NIFTI), hospitals["nifti"] / "out"
    command = [str(file), str(hospitals["nifti"]), "--no-gland", "--maps", "--out", str(inside)]
    assert predict(command) == Exit.CONFIG and not inside.exists()
    assert "--out must not lie in FOLDER" in " ".join(capsys.readouterr().err.split())
