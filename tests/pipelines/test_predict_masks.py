"""A finished segmenting model on new files: a mask of each study, as the study is, where the network saw it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch
from PIL import Image
from torch import Tensor

from federation.models.cnn import Cnn
from federation.models.unet import UNet
from federation.task import Task
from pipelines.batch.masks import is_mixed_with_studies, remove_named_files
from pipelines.data.dicom.reader import read_dicom
from pipelines.data.dicom.segmentation import read_segmentation
from pipelines.data.grids.geometry import resample_volume
from pipelines.data.nifti.reader import read_nifti, read_volume
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.loader.validation import to_plain
from pipelines.models.answers import predict_classes, predict_probabilities
from pipelines.models.file import read_ready
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts
from translating import SELECT, errors

MODEL = UNet(width=4, levels=2, norm="group")
SLICES = {"kind": "slices", "values": "adc", "spacing_mm": 1.5, "size": 48, "slices": "all", "context": 1}
VOLUMES = {"kind": "volumes", "values": "adc", "spacing_mm": 1.5, "size": 48, "depth_mm": 3.0, "depth": 8}
PICTURES = {"kind": "pictures", "size": 32, "channels": 3, "fit": "squash", "margin": None}
NAMES = ["gland", "lesion"]


def model(path: Path, images: dict[str, object], source: dict[str, object], **more: object) -> Path:
    """A file as `ready` holds them, of a U-Net that has learnt nothing."""
    size = int(str(images["size"]))
    depth = [int(str(images["depth"]))] if images["kind"] == "volumes" else []
    inputs = [3 if images["kind"] == "pictures" else 1, *depth, size, size]
    torch.manual_seed(0)
    module = MODEL.build(inputs=tuple(inputs), classes=3)
    facts = {
        "format": 1,
        "site": "north",
        "label": "fedavg",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(MODEL),
        "inputs": inputs,
        "kind": "segmentation",
        "classes": 3,
        "names": NAMES,
        "source": source,
        "gland": False,
        "images": images,
        "scale": None,
        **more,
    }
    path.write_bytes(seal_parts(to_bytes(Message(dict(module.state_dict()), facts))))  # type: ignore[arg-type]
    return path


DICOM = {"kind": "dicom", "folder": ".", "select": SELECT}
NIFTI = {"kind": "nifti", "folder": "."}


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hospitals")
    for kind in ("dicom", "nifti"):
        write(PhantomSource(scanner="A", patients=2, slices=5, format=kind, damaged=1), root / kind)  # type: ignore[arg-type]
    return {kind: root / kind / "images" for kind in ("dicom", "nifti")}


@pytest.fixture
def by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class 1 above 1.2e-3 mm²/s and class 2 below, but what is 0: a network that everybody can check."""

    def probabilities(self: Task, module: torch.nn.Module, x: Tensor, **more: object) -> Tensor:
        one = x[:, 0]
        classes = torch.where(one > 1.2, 1, 2) * (one > 0.05)
        return torch.nn.functional.one_hot(classes, 3).movedim(-1, 1).float()

    monkeypatch.setattr(Task, "probabilities", probabilities)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return 2 * float((one & other).sum()) / float(one.sum() + other.sum())


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
@pytest.mark.parametrize("images", [SLICES, VOLUMES])
def test_masks_lie_on_the_studies_and_the_table_has_their_volumes(hospitals, tmp_path, by_value, kind, images):
    file = model(tmp_path / "m", images, DICOM if kind == "dicom" else NIFTI)
    out = tmp_path / "out"
    assert predict([str(file), str(hospitals[kind]), "--no-gland", "--out", str(out)]) == Exit.OK
    if kind == "dicom":
        studies, _ = read_dicom(DicomSource(folder=str(hospitals[kind]), select=SELECT))
    else:
        studies, _ = read_nifti(NiftiSource(folder=str(hospitals[kind])))
    table = {line["study"]: line for line in lines(out / "predictions.csv")}
    assert len(table) == len(studies) == 2 and len(lines(out / "quarantine.csv")) == 1
    unit = 1e-3 if float(np.max(studies[0].image.values)) > 50 else 1.0
    for study in studies:
        line = table[study.study]
        path = out / line["mask"]
        found = read_segmentation(path, NAMES) if kind == "dicom" else read_volume(path)
        mask = resample_volume(found, study.image.affine, study.image.values.shape, 0)  # type: ignore[arg-type]
        seen = np.any(mask > 0, axis=(0, 1)) if images is VOLUMES else np.ones(mask.shape[2], bool)
        values = np.asarray(study.image.values)[:, :, seen] * unit
        if images is SLICES:  # of the phantoms' own pixels
            assert dice(mask[:, :, seen] == 1, values > 1.2) > 0.999
            assert dice(mask[:, :, seen] == 2, (values > 0.05) & (values <= 1.2)) > 0.999
        ml = abs(float(np.linalg.det(study.image.affine[:3, :3]))) / 1000
        for number, name in enumerate(NAMES, start=1):
            assert float(line[f"{name}_ml"]) == pytest.approx((mask == number).sum() * ml, rel=1e-4)
    assert {path.stat().st_mode & 0o077 for path in out.rglob("*") if path.is_file()} == {0}


def test_masks_of_a_dicom_series_are_valid_and_name_the_patient_as_his_images_do(hospitals, tmp_path, by_value):
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    assert predict([str(file), str(hospitals["dicom"]), "--no-gland", "--out", str(out)]) == Exit.OK
    assert errors(out) == set()
    written = [pydicom.dcmread(out / line["mask"]) for line in lines(out / "predictions.csv")]
    assert {file.PatientID for file in written} == {line["patient"] for line in lines(out / "predictions.csv")}
    assert {file.Modality for file in written} == {"SEG"}
    assert {str(item.SegmentLabel) for file in written for item in file.SegmentSequence} == set(NAMES)


def test_a_network_that_finds_nothing_still_writes_and_says_so(hospitals, tmp_path, monkeypatch, capsys):
    def nothing(self: Task, module: torch.nn.Module, x: Tensor, **more: object) -> Tensor:
        return torch.nn.functional.one_hot(torch.zeros_like(x[:, 0], dtype=torch.long), 3).movedim(-1, 1).float()

    monkeypatch.setattr(Task, "probabilities", nothing)
    file, out = model(tmp_path / "m", SLICES, DICOM), tmp_path / "out"
    assert predict([str(file), str(hospitals["dicom"]), "--no-gland", "--out", str(out), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["positive"] == 0
    for line in lines(out / "predictions.csv"):
        assert (line["gland_ml"], line["lesion_ml"]) == ("0", "0")
        assert not read_segmentation(out / line["mask"]).values.any()


def test_a_network_that_gives_no_number_quarantines_the_study(hospitals, tmp_path, monkeypatch):
    monkeypatch.setattr(
        Task, "probabilities", lambda self, module, x, **how: torch.full((len(x), 3, 48, 48), torch.nan)
    )
    file, out = model(tmp_path / "m", SLICES, NIFTI), tmp_path / "out"
    assert predict([str(file), str(hospitals["nifti"]), "--no-gland", "--out", str(out)]) == Exit.DATA
    assert [line["reason"] for line in lines(out / "quarantine.csv")].count("not_finite") == 2
    assert not list(out.rglob("*.nii.gz"))


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_pictures_get_png_masks_of_their_own_size(tmp_path, monkeypatch, fit):
    def bright(self: Task, module: torch.nn.Module, x: Tensor, **more: object) -> Tensor:
        share = (x[:, 0] + 1) / 2
        return torch.stack([1 - share, share, torch.zeros_like(share)], 1)

    monkeypatch.setattr(Task, "probabilities", bright)
    (tmp_path / "in" / "ward").mkdir(parents=True)
    pixels = np.zeros((60, 100, 3), np.uint8)
    pixels[10:40, 30:70] = 255
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees
    picture.save(tmp_path / "in" / "plain.png")
    picture.save(tmp_path / "in" / "ward" / "turned.png", exif=exif)
    file = model(tmp_path / "m", {**PICTURES, "fit": fit}, {"kind": "picture", "folder": ".", "table": "t.csv"})
    out = tmp_path / "out"
    assert predict([str(file), str(tmp_path / "in"), "--out", str(out)]) == Exit.OK
    for line in lines(out / "predictions.csv"):
        with Image.open(out / line["mask"]) as opened:
            mask = np.asarray(opened)
            assert (opened.mode, opened.info) == ("L", {})
        truth = np.rot90(pixels[:, :, 0], -1) if "turned" in line["study"] else pixels[:, :, 0]
        assert mask.shape == truth.shape and dice(mask == 1, truth > 0) > 0.93
        assert float(line["gland_share"]) == pytest.approx((mask == 1).mean(), rel=1e-4)
        assert line["lesion_share"] == "0"


def test_the_network_of_the_file_itself_is_asked(hospitals, tmp_path):
    file, out = model(tmp_path / "m", SLICES, NIFTI), tmp_path / "out"
    assert predict([str(file), str(hospitals["nifti"]), "--no-gland", "--out", str(out)]) == Exit.OK
    ready = read_ready(file)
    assert ready.names == tuple(NAMES) and ready.task.kind == "segmentation" and len(ready.digest) == 16
    study = read_nifti(NiftiSource(folder=str(hospitals["nifti"])))[0][0]
    mask = read_volume(out / "masks" / study.study)
    assert set(np.unique(mask.values)) <= {0, 1, 2} and mask.values.any()


def test_masks_of_an_earlier_run_go_with_their_lines_and_others_files_stay(hospitals, tmp_path):
    file, out, folder = model(tmp_path / "m", SLICES, NIFTI), tmp_path / "out", tmp_path / "in"
    shutil.copytree(hospitals["nifti"], folder)
    arguments = [str(file), str(folder), "--no-gland", "--out", str(out)]
    assert predict(arguments) == Exit.OK
    first, second = (line["mask"] for line in lines(out / "predictions.csv"))
    (out / "masks" / "mine.txt").write_text("not of this program")
    (folder / Path(first).name).write_bytes(b"none")
    assert predict(arguments) == Exit.OK
    assert [line["mask"] for line in lines(out / "predictions.csv")] == [second]
    assert sorted(path.name for path in (out / "masks").iterdir()) == sorted([Path(second).name, "mine.txt"])


@pytest.mark.parametrize("name", ["../in/study.nii.gz", "/etc/hostname", "masks/../../in/study.nii.gz", "masks/x"])
def test_only_below_masks_is_anything_forgotten(tmp_path, name):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "study.nii.gz").write_bytes(b"whole")
    (tmp_path / "out" / "masks").mkdir(parents=True)
    (tmp_path / "out" / "masks" / "x").write_bytes(b"a mask")
    remove_named_files(tmp_path / "out", [name])
    assert (folder / "study.nii.gz").exists() and Path("/etc/hostname").exists()
    assert (tmp_path / "out" / "masks" / "x").exists() == (name != "masks/x")


def test_a_model_that_was_scored_in_windows_predicts_in_windows(hospitals, tmp_path):
    whole, pieces = model(tmp_path / "w", SLICES, NIFTI), model(tmp_path / "p", SLICES, NIFTI, window=[16, 16])
    x = torch.randn(1, 1, 48, 48, generator=torch.Generator().manual_seed(1))
    ready = read_ready(pieces)
    assert read_ready(whole).window is None and ready.window == (16, 16)
    found = {}
    for file in (whole, pieces):
        out = tmp_path / f"out{file.name}"
        assert predict([str(file), str(hospitals["nifti"]), "--no-gland", "--out", str(out)]) == Exit.OK
        found[file.name] = lines(out / "predictions.csv")
    assert found["w"] != found["p"]
    expected = predict_classes(ready.task, ready.module, x, window=(16, 16))
    assert torch.equal(predict_probabilities(ready.task, ready.module, x, ready.window).argmax(dim=1), expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--threshold", "0.4"], "--threshold is for scores"), (["--out", "{in}/masks"], "--out must not lie in FOLDER")],
)
def test_what_makes_no_sense_of_masks_is_told(hospitals, tmp_path, arguments, said, capsys):
    file = model(tmp_path / "m", SLICES, NIFTI)
    folder = str(hospitals["nifti"])
    words = [word.replace("{in}", folder) for word in arguments]
    assert predict([str(file), folder, "--no-gland", "--out", str(tmp_path / "out"), *words]) == Exit.CONFIG
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("window", [[], [24], [24, 24, 24], [0, 24], [24, 49], [24, "x"], "x"])
def test_a_window_that_no_image_of_the_model_has_is_told(hospitals, tmp_path, window, capsys):
    file = model(tmp_path / "m", SLICES, NIFTI, window=window)
    assert predict([str(file), str(hospitals["nifti"]), "--no-gland", "--out", str(tmp_path / "out")]) == Exit.CONFIG
    said = " ".join(capsys.readouterr().err.split())
    whole = all(isinstance(side, int) for side in window)
    assert f"{file} is not a model to predict with (window must" in said
    assert not whole or f"must have 2 sides within [48, 48], found {window}" in said


@pytest.mark.parametrize("names", [["gland"], [], ["gland", "../x"]])
def test_a_file_that_does_not_name_its_classes_is_refused(tmp_path, names):
    with pytest.raises(ValueError, match="2 names of classes"):
        read_ready(model(tmp_path / "m", SLICES, NIFTI, names=names))


def test_a_file_of_before_there_were_masks_is_a_classifier(tmp_path):
    path = model(tmp_path / "m", SLICES, NIFTI)
    facts = dict(from_bytes(unseal_parts(path.read_bytes())).facts)
    for key in ("kind", "names"):
        del facts[key]
    facts |= {"model": to_plain(Cnn()), "classes": 2}
    module = Cnn().build(inputs=(1, 48, 48), classes=2)
    path.write_bytes(seal_parts(to_bytes(Message(dict(module.state_dict()), facts))))
    ready = read_ready(path)
    assert (ready.task.kind, ready.names) == ("classification", ())


def test_masks_never_stand_where_studies_lie(tmp_path):
    assert is_mixed_with_studies(tmp_path / "masks", tmp_path)
    assert is_mixed_with_studies(tmp_path, tmp_path / "masks"), (
        "masks/x.nii.gz would be written over the study of that name"
    )
    assert is_mixed_with_studies(tmp_path, tmp_path / "masks" / "more")
    assert not is_mixed_with_studies(tmp_path / "out", tmp_path / "studies")
