"""nnU-Net's folders of pictures: read as a run, written as they were, and refused in words where they have no
counterpart.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from federation.task import IGNORED
from pipelines.dataset import main as dataset
from pipelines.discovery.nnunet import discover_nnunet
from pipelines.hospital.hospital import read_cohort_file
from pipelines.init import main as init
from pipelines.plan import main as plan
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit

LABELS = {"background": 0, "Disc": [1, 2], "cup": 2, "ignore": 3}
KINDS = {"colours": (3, np.uint8), "grey": (1, np.uint8), "deep": (1, np.uint16)}
"""Channels and type of pixels."""
NNUNET = Path(os.environ.get("CONSILIUM_NNUNET_PYTHON", "/nowhere"))


def write_raw(folder: Path, kind: str = "colours", cases: int = 14, channels: tuple[str, ...] = ()) -> Path:
    """Pictures of one kind and different sizes, with every label in each map."""
    count, dtype = KINDS[kind]
    rng = np.random.default_rng(0)
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for number in range(cases):
        shape = (30 + number, 28)
        labels = np.zeros(shape, np.uint8)
        labels[6:22, 5:24] = rng.integers(0, 4, (16, 19))
        values = rng.integers(0, np.iinfo(dtype).max, (*shape, *([count] if count > 1 else [])), dtype)
        Image.fromarray(values).save(folder / "imagesTr" / f"Zoe {number}_0000.png")
        Image.fromarray(labels).save(folder / "labelsTr" / f"Zoe {number}.png")
    names = channels or (("R", "G", "B") if count > 1 else ("grey",))
    described = {"channel_names": dict(enumerate(names)), "labels": LABELS, "numTraining": cases}
    described |= {"file_ending": ".png", "regions_class_order": [1, 2]}
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def draft(folder: str) -> dict[str, Any]:
    assert init([folder, "--out", "draft.yaml"]) == Exit.OK
    drafted: dict[str, Any] = yaml.safe_load(Path("draft.yaml").read_text())
    drafted["train"] |= {"schedule": {"rounds": 1}, "work": {"batch": 2, "epochs": None, "steps": 1}}
    return drafted | {"name": "tiny", "images": drafted["images"] | {"size": 16}}


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_is_written_bit_for_bit(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("nnUNet_raw/Dataset001_A"), kind)
    made = draft(str(raw))
    Path("a.yaml").write_text(yaml.safe_dump(made))
    assert made["images"]["channels"] == KINDS[kind][0] and made["task"]["regions"] == {
        "disc": ["disc-only", "cup"],
        "cup": ["cup"],
    }
    assert run(["a.yaml", "--until", "ingest"]) == Exit.OK
    assert dataset(["a.yaml", "--out", "out"]) == Exit.OK
    said = capsys.readouterr().err
    assert "14 patients of dataset001_a" in said and "Zoe" not in said
    (path,) = Path("runs/tiny").glob("sites/*/cohorts/*/cohort.safetensors")
    cohort = read_cohort_file(path)
    assert IGNORED in cohort.mask and cohort.images.shape[1] == KINDS[kind][0]
    rows = [*csv.DictReader(Path("out/cases.csv").read_text().splitlines())]
    assert len(rows) == 14
    for row in rows:
        images, labels = ("imagesTs", "labelsTs") if row["split"] == "test" else ("imagesTr", "labelsTr")
        for before, after in (
            (raw / "imagesTr" / f"{row['case']}_0000.png", Path("out", images, f"{row['case']}_0000.png")),
            (raw / "labelsTr" / f"{row['case']}.png", Path("out", labels, f"{row['case']}.png")),
        ):
            assert np.array_equal(pixels(before), pixels(after)) and pixels(before).dtype == pixels(after).dtype
        place = cohort.patients.index(row["patient"])
        (split,) = torch.unique(cohort.split[cohort.patient == place]).tolist()
        assert ("train", "validation", "test")[split] == row["split"]
    first, second = (json.loads((folder / "dataset.json").read_text()) for folder in (raw, Path("out")))
    assert second["channel_names"] == first["channel_names"] and second["file_ending"] == ".png"
    assert second["labels"] == {"background": 0, "disc": [1, 2], "cup": 2, "ignore": 3}
    (fold,) = json.loads(Path("out/splits_final.json").read_text())
    assert {*fold["train"], *fold["val"]} == {row["case"] for row in rows if row["split"] != "test"}
    again = discover_nnunet(Path("out"))
    assert again is not None and again.task == discover_nnunet(raw).task


def test_a_picture_with_exif_or_clear_pixels_is_written_as_it_is_learnt(tmp_path, monkeypatch):
    """Upright, before black where it is clear, and in the colours that the network sees."""
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("raw"))
    turned = Image.fromarray(np.arange(20 * 30 * 3, dtype=np.uint16).astype(np.uint8).reshape(20, 30, 3))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(raw / "imagesTr" / "Zoe 0_0000.png", exif=exif)
    Image.fromarray(np.eye(30, 20, dtype=np.uint8)).save(raw / "labelsTr" / "Zoe 0.png")
    clear = np.full((31, 28, 4), 200, np.uint8)
    clear[..., 3] = 255 * (np.arange(31) >= 10)[:, None]
    Image.fromarray(clear).save(raw / "imagesTr" / "Zoe 1_0000.png")
    Path("a.yaml").write_text(yaml.safe_dump(draft("raw")))
    assert run(["a.yaml", "--until", "ingest"]) == Exit.OK and dataset(["a.yaml", "--out", "out"]) == Exit.OK
    upright, flat = (pixels(next(Path("out").rglob(f"Zoe {number}_0000.png"))) for number in (0, 1))
    assert np.array_equal(upright, np.rot90(np.asarray(turned), -1))
    assert (flat[:10] == 0).all() and (flat[10:] == 200).all()


def test_pictures_of_a_table_are_called_by_pseudonyms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_raw(Path("raw"))
    made = draft("raw")
    (site,) = made["sites"].values()
    lines = [f"Zoe {number}_0000.png,p{number // 2}" for number in range(14)]
    Path("table.csv").write_text("\n".join(["image,patient", *lines]))
    site["source"] |= {"table": "table.csv", "image": "image", "patient": "patient", "label": None}
    Path("a.yaml").write_text(yaml.safe_dump(made))
    assert run(["a.yaml", "--until", "ingest"]) == Exit.OK and dataset(["a.yaml", "--out", "out"]) == Exit.OK
    rows = [*csv.DictReader(Path("out/cases.csv").read_text().splitlines())]
    assert len(rows) == 14 and len({row["patient"] for row in rows}) == 7
    assert all(row["case"].startswith(row["patient"]) for row in rows)
    assert "Zoe" not in " ".join(map(str, Path("out").rglob("*")))


def test_a_folder_of_pictures_is_planned_trained_and_predicted_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("raw"))
    made = draft("raw")
    Path("a.yaml").write_text(yaml.safe_dump(made))
    assert plan(["a.yaml", "-o", "planned.yaml", "--small", "--rounds", "1", "--steps", "1"]) == Exit.OK
    assert run(["planned.yaml"]) == Exit.OK
    (model,) = Path("runs").rglob("ready/local.safetensors")
    assert predict([str(model), str(raw / "imagesTr"), "--out", "masks"]) == Exit.OK
    assert len([*Path("masks").rglob("*.png")]) >= 14


def test_what_has_no_counterpart_is_refused_in_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_raw(Path("raw"), channels=("R", "G", "B", "infrared"))
    assert init(["raw", "--out", "a.yaml"]) == Exit.DATA
    assert "4 channels, and a picture has 1 or 3; convert the pictures" in " ".join(capsys.readouterr().err.split())
    write_raw(Path("both/one"), "colours")
    write_raw(Path("both/two"), "grey")
    assert init(["both", "--out", "a.yaml"]) == Exit.DATA
    told = " ".join(capsys.readouterr().err.split())
    assert "have images of one kind" in told and "both/two: 1 channels, *.png" in told
    path = write_raw(Path("odd")) / "dataset.json"
    path.write_text(path.read_text().replace(".png", ".mha"))
    assert init(["odd", "--out", "a.yaml"]) == Exit.DATA
    assert "file_ending is '.mha', and .nii.gz, .nii, .png, .bmp, .tif are read" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.skipif(not NNUNET.is_file(), reason="CONSILIUM_NNUNET_PYTHON names no Python with nnU-Net")
@pytest.mark.slow
def test_nnunet_itself_accepts_what_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(yaml.safe_dump(draft(str(write_raw(Path("raw"))))))
    Path("nnUNet_raw").mkdir()
    assert run(["a.yaml", "--until", "ingest"]) == Exit.OK
    assert dataset(["a.yaml", "--out", "nnUNet_raw/Dataset002_B"]) == Exit.OK
    program = "from nnunetv2.experiment_planning.verify_dataset_integrity import verify_dataset_integrity as verify\n"
    program += "if __name__ == '__main__': verify('nnUNet_raw/Dataset002_B', 1)\n"
    Path("verify.py").write_text(program)
    folders = {f"nnUNet_{name}": str(tmp_path / name) for name in ("raw", "preprocessed", "results")}
    done = subprocess.run([NNUNET, "verify.py"], capture_output=True, text=True, env={**os.environ, **folders})
    assert done.returncode == 0 and "verify_dataset_integrity Done" in done.stdout, done.stderr
    assert "Error" not in done.stdout
