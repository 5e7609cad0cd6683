"""A hospital's cohort as a folder of nnU-Net's: the same images, labels and patients, and no name that is new."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from federation.task import IGNORED
from pipelines.data.cohort import Cohort
from pipelines.dataset import main as dataset
from pipelines.discovery.nnunet import _read_labels, _split_regions, discover_nnunet
from pipelines.exports.nnunet import _name_cases, describe_labels
from pipelines.hospital.hospital import read_cohort_file
from pipelines.init import main as init
from pipelines.loader.names import is_name
from pipelines.run import main as run
from pipelines.runs.exits import Exit

AFFINE = np.array([[-1.1, 0.2, 0, 30], [0.2, 1.1, 0, -25], [0, 0, 3.3, -10], [0, 0, 0, 1]])
SHAPE = (14, 12, 7)
LABELS = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3, "ignore": 4}
IMAGES = {"kind": "volumes", "values": "standardized", "centre": "image", "size": 16, "spacing_mm": 1.5}
PLAIN: dict[str, Any] = {
    "name": "tiny",
    "images": IMAGES | {"depth": 8, "depth_mm": 3.0},
    "privacy": "none",
    "split": {"train": 0.4, "validation": 0.3, "test": 0.3},
    "model": {"name": "unet", "width": 4, "levels": 2, "norm": "group"},
    "train": {
        "schedule": {"rounds": 1},
        "work": {"batch": 2, "epochs": None, "steps": 1},
        "methods": {"local": {"name": "local"}},
    },
    "evaluate": {"copies": 5, "reference": None},
    "audit": {"membership": False},
}
NNUNET = Path(os.environ.get("CONSILIUM_NNUNET_PYTHON", "/nowhere"))
"""A Python in which nnU-Net is installed."""


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, AFFINE), path)


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    image = nibabel.load(path)
    return np.asarray(image.dataobj), image.affine


def write_raw(folder: Path, cases: int = 8, labels: dict[str, Any] = LABELS) -> Path:
    """A folder of nnU-Net's with odd numbers in its images, and every label in each of its maps."""
    rng = np.random.default_rng(0)
    most = max(max(each) if isinstance(each, list) else each for each in labels.values())
    for number in range(cases):
        save(folder / "imagesTr" / f"Zoe {number}_0000.nii.gz", rng.normal(3, 40, SHAPE).astype(np.float32))
        classes = np.zeros(SHAPE, np.uint8)
        classes[2:12, 2:10, 1:6] = rng.integers(0, most + 1, (10, 8, 5))
        save(folder / "labelsTr" / f"Zoe {number}.nii.gz", classes)
    described: dict[str, Any] = {"channel_names": {"0": "T1"}, "labels": labels, "numTraining": cases}
    described |= {"file_ending": ".nii.gz", "regions_class_order": [1, 2, 3]}
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def ingest(file: str, settings: dict[str, Any]) -> None:
    Path(file).write_text(yaml.safe_dump(settings, sort_keys=False))
    assert run([file, "--until", "ingest"]) == Exit.OK


def cohort_at(run_name: str, site: str) -> Cohort:
    (path,) = Path("runs", run_name, "sites", site).glob("cohorts/*/cohort.safetensors")
    return read_cohort_file(path)


def draft(folder: str, name: str) -> dict[str, Any]:
    assert init([folder, "--out", f"{name}.draft.yaml"]) == Exit.OK
    drafted: dict[str, Any] = yaml.safe_load(Path(f"{name}.draft.yaml").read_text())
    return PLAIN | {"name": name, "task": drafted["task"], "sites": drafted["sites"]}


def join(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Case -> its image and its labels, of training and test."""
    return {
        path.name[: -len("_0000.nii.gz")]: (path, folder / labels / path.name.replace("_0000.nii.gz", ".nii.gz"))
        for images, labels in (("imagesTr", "labelsTr"), ("imagesTs", "labelsTs"))
        for path in sorted((folder / images).iterdir())
    }


def test_what_was_read_is_written_and_read_again_bit_for_bit(tmp_path, monkeypatch, capsys):
    """Images, labels, case names and, of a folder that nnU-Net's rules make unique, the meaning of labels."""
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("nnUNet_raw") / "Dataset001_A")
    ingest("a.yaml", draft(str(raw), "a"))
    assert dataset(["a.yaml", "--out", "nnUNet_raw/Dataset002_B"]) == Exit.OK
    said = capsys.readouterr().err
    assert "8 patients of dataset001_a" in said and "stays at the hospital" in said and "Zoe" not in said
    made, before = join(Path("nnUNet_raw/Dataset002_B")), join(raw) if (raw / "imagesTs").mkdir() is None else {}
    assert made.keys() == before.keys() and len(made) == 8
    for case, places in made.items():
        for (values, affine), (old, old_affine) in zip(map(load, places), map(load, before[case]), strict=True):
            assert (
                values.tobytes() == old.tobytes() and values.dtype == old.dtype and np.array_equal(affine, old_affine)
            )
    described = [json.loads((path / "dataset.json").read_text()) for path in (raw, Path("nnUNet_raw/Dataset002_B"))]
    assert described[1]["labels"] == described[0]["labels"] == LABELS
    assert described[1]["regions_class_order"] == [1, 2, 3] and list(described[1]["labels"]) == list(LABELS)
    check_splits(Path("nnUNet_raw/Dataset002_B"), cohort_at("a", "dataset001_a"))
    write_once_more()


def check_splits(folder: Path, cohort: Cohort) -> None:
    """Who trains, validates and tests is who did in the run."""
    (fold,) = json.loads((folder / "splits_final.json").read_text())
    rows = [*csv.DictReader((folder / "cases.csv").read_text().splitlines())]
    of_split = {split: {row["case"] for row in rows if row["split"] == split} for split in ("train", "validation")}
    assert {*fold["train"]} == of_split["train"] and {*fold["val"]} == of_split["validation"]
    assert {path.name.removesuffix("_0000.nii.gz") for path in (folder / "imagesTr").iterdir()} == {
        *fold["train"],
        *fold["val"],
    }
    for row in rows:
        place = cohort.patients.index(row["patient"])
        (split,) = torch.unique(cohort.split[cohort.patient == place]).tolist()
        assert ("train", "validation", "test")[split] == row["split"]
    assert json.loads((folder / "dataset.json").read_text())["numTraining"] == len(fold["train"]) + len(fold["val"])


def write_once_more() -> None:
    """The written folder is read as the same cohort: its training part holds the same prepared images and masks."""
    ingest("b.yaml", draft("nnUNet_raw/Dataset002_B", "b"))
    first, second = cohort_at("a", "dataset001_a"), cohort_at("b", "dataset002_b")
    assert second.recipe["classes"] == first.recipe["classes"] and second.recipe["regions"] == first.recipe["regions"]
    prepared = {image.numpy().tobytes(): mask for image, mask in zip(first.images, first.mask, strict=True)}
    assert len(second.images) == json.loads(Path("nnUNet_raw/Dataset002_B/dataset.json").read_text())["numTraining"]
    for image, mask in zip(second.images, second.mask, strict=True):
        assert torch.equal(prepared[image.numpy().tobytes()], mask)
    assert IGNORED in first.mask


@pytest.mark.parametrize("kind", ["dicom", "nifti"])
@pytest.mark.parametrize("target", ["gland", "lesion"])
def test_a_phantom_is_written_on_its_own_grid(kind, target, tmp_path, monkeypatch):
    """ADC in one unit, and masks where they were drawn; patients of DICOM are called by their pseudonyms."""
    monkeypatch.chdir(tmp_path)
    source = {"kind": "phantom", "scanner": "L", "patients": 8, "seed": 2, "slices": 4, "format": kind}
    made = PLAIN | {"task": {"kind": "segmentation", "target": target}, "sites": {"a": {"source": source}}}
    made = made | {"images": {"kind": "slices", "size": 16, "spacing_mm": 2.0, "centre": "image", "slices": "all"}}
    ingest("p.yaml", made)
    assert dataset(["p.yaml", "--out", "out", "--json"]) == Exit.OK
    cohort, cases = cohort_at("tiny", "a"), join(Path("out"))
    rows = {row["case"]: row["patient"] for row in csv.DictReader(Path("out/cases.csv").read_text().splitlines())}
    assert {*rows.values()} == {*cohort.patients} and rows.keys() == cases.keys()
    described = json.loads(Path("out/dataset.json").read_text())
    assert described["labels"] == {"background": 0, target: 1} and described["channel_names"] == {"0": "ADC"}
    files = [path.name.split(".")[0] for path in Path("runs/tiny/sites/a/phantom").rglob("*.nii.gz")]
    linkage = json.loads(Path("runs/tiny/sites/a/linkage.json").read_text())["patients"]
    for case, (image, labels) in cases.items():
        (values, affine), (mask, mask_affine) = load(image), load(labels)
        assert values.shape == mask.shape and np.array_equal(affine, mask_affine) and {*np.unique(mask)} <= {0, 1}
        assert 200 < np.median(values[values > 0]) < 3000, "1e-6 mm²/s"
        drawn = next(Path("runs/tiny/sites/a/phantom").rglob(f"masks/{target}/{linkage[rows[case]]}.nii.gz"))
        assert np.isclose((load(drawn)[0] > 0).sum(), (mask > 0).sum())
        if kind == "dicom":
            assert case == rows[case] and linkage[case] not in image.name
    assert kind == "dicom" or {*cases} <= {*files}
    check_splits(Path("out"), cohort)


def test_with_pseudonyms_no_file_name_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ingest("a.yaml", draft(str(write_raw(Path("raw"))), "a"))
    assert dataset(["a.yaml", "--out", "out", "--pseudonyms", "--channel", "CT"]) == Exit.OK
    text = " ".join([*map(str, Path("out").rglob("*")), *(path.read_text() for path in Path("out").glob("*.*"))])
    assert "Zoe" not in text and {*join(Path("out"))} == {*cohort_at("a", "raw").patients}
    assert json.loads(Path("out/dataset.json").read_text())["channel_names"] == {"0": "CT"}


def test_a_hospital_writes_by_its_own_site_file(tmp_path, monkeypatch, capsys):
    """With the folder that it has for itself, and the same result as of a run on one machine."""
    monkeypatch.chdir(tmp_path)
    settings = draft(str(write_raw(Path("raw"))), "a")
    ingest("a.yaml", settings)
    site = {"source": settings["sites"]["raw"]["source"]}
    Path("site.yaml").write_text(
        yaml.safe_dump({"name": "raw", "kit": "kit", "root": "runs/a/sites/raw", "site": site})
    )
    assert dataset(["site.yaml", "--out", "far"]) == Exit.OK and dataset(["a.yaml", "--out", "near"]) == Exit.OK
    files = {path.relative_to("near"): path.read_bytes() for path in Path("near").rglob("*") if path.is_file()}
    assert {path.relative_to("far"): path.read_bytes() for path in Path("far").rglob("*") if path.is_file()} == files
    assert dataset(["site.yaml", "--site", "raw", "--out", "more"]) == Exit.CONFIG
    assert "this is one; remove it" in " ".join(capsys.readouterr().err.split())


def test_a_run_whose_files_changed_is_not_written(tmp_path, monkeypatch, capsys):
    """Nor is anything else that is not the cohort: what is wrong is said, and no folder is left."""
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("raw"))
    settings = draft(str(raw), "a")
    Path("a.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    wrong = {
        (): "holds no cohort with masks; let a segmentation run read its files first",
        ("--site", "east"): "a.yaml: --site east: these hospitals are on this machine: raw; name one",
    }
    for words, said in wrong.items():
        assert dataset(["a.yaml", "--out", "out", *words]) == Exit.CONFIG and said in capsys.readouterr().err
    ingest("a.yaml", settings)
    (raw / "kept").mkdir()
    wrong = {
        ("--out", "raw"): "raw is there already",
        ("--out", "raw/imagesTr/out"): "--out must not lie in the hospital's images",
        ("--out", "raw/labelsTr/out"): "--out must not lie in the hospital's masks",
        ("--out", "no/where"): "there is no folder no",
        ("--out", "out", "--cohort", "nothing"): "--cohort nothing: runs/a/sites/raw/cohorts has",
    }
    for words, said in wrong.items():
        assert dataset(["a.yaml", *words]) == Exit.CONFIG
        assert said in " ".join(capsys.readouterr().err.split()), words
    gone = raw / "imagesTr" / "Zoe 3_0000.nii.gz"
    data = gone.read_bytes()
    gone.unlink()
    assert dataset(["a.yaml", "--out", "out"]) == Exit.DATA
    assert "the run read 8 studies of 8 patients here, and 7 of 7 are there now" in capsys.readouterr().err
    gone.write_bytes(data[:200])
    assert dataset(["a.yaml", "--out", "out"]) == Exit.DATA and not [*Path().glob("*out*")]
    gone.write_bytes(data)
    assert dataset(["a.yaml", "--out", "out"]) == Exit.OK


def test_what_the_run_rejected_or_excluded_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("raw"))
    save(raw / "labelsTr" / "Zoe 2.nii.gz", np.full(SHAPE, 9, np.uint8))
    settings = draft(str(raw), "a")
    (site,) = settings["sites"].values()
    site |= {"exclude": ["Zoe 5"], "max_rejected": 0.5}
    ingest("a.yaml", settings)
    assert dataset(["a.yaml", "--out", "out"]) == Exit.OK
    assert {*join(Path("out"))} == {f"Zoe {number}" for number in (0, 1, 3, 4, 6, 7)}


@given(st.lists(st.tuples(st.sampled_from(["a/x", "b/x", "x", "y_0000", "c/y"]), st.sampled_from("pq")), unique=True))
def test_each_case_has_a_name_of_its_own(studies):
    for keep in (True, False):
        names = _name_cases([(f"{path}.nii.gz", code) for path, code in studies], keep=keep)
        assert len(names) == len({*names}) == len(studies)
        assert keep or all(
            re.fullmatch(f"{code}(_[0-9]+)?", name) for name, (_, code) in zip(names, studies, strict=True)
        )


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.integers(1, 4), min_size=1), min_size=1, max_size=5))
def test_regions_are_written_as_nnunet_reads_and_paints_them(drawn):
    """Painted in nnU-Net's order, regions that hold each other or share nothing give the map that they were read of."""
    labels = _read_labels({"background": 0} | {name: sorted(values) for name, values in drawn.items()})
    values, regions = _split_regions(labels)
    if not regions or len({frozenset(own) for own in regions.values()}) < len(regions):
        return
    recipe: dict[str, Any] = {"classes": [*values], "regions": [[name, *own] for name, own in regions.items()]}
    cohort = Cohort(*[torch.zeros(0)] * 7, patients=(), recipe=recipe)
    written, order = describe_labels(cohort, ignored=True)
    assert written.pop("ignore") == len(values) + 1 and written.pop("background") == 0 and len(order) == len(written)
    members = {name: {*own} if isinstance(own, list) else {own} for name, own in written.items()}
    again, same = _split_regions(_read_labels({"background": 0, **written}))
    assert {frozenset(same[name]) for name in same} == {frozenset(own) for own in regions.values()}
    assert len(again) == len(values) and all(map(is_name, again))
    nested = all(a <= b or b <= a or not a & b for a in members.values() for b in members.values())
    for number in range(1, len(values) + 1):
        painted = 0
        for own, label in zip(members.values(), order, strict=True):
            painted = label if number in own else painted
        assert not nested or {name for name, own in members.items() if number in own} == {
            name for name, own in members.items() if painted in own
        }


@pytest.mark.skipif(not NNUNET.is_file(), reason="CONSILIUM_NNUNET_PYTHON names no Python with nnU-Net")
@pytest.mark.slow
def test_nnunet_itself_accepts_what_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = write_raw(Path("nnUNet_raw") / "Dataset001_A")
    ingest("a.yaml", draft(str(raw), "a"))
    assert dataset(["a.yaml", "--out", "nnUNet_raw/Dataset002_B"]) == Exit.OK
    program = "from nnunetv2.experiment_planning.verify_dataset_integrity import verify_dataset_integrity as verify\n"
    program += "if __name__ == '__main__': verify('nnUNet_raw/Dataset002_B', 1)\n"
    Path("verify.py").write_text(program)
    folders = {f"nnUNet_{name}": str(tmp_path / name) for name in ("raw", "preprocessed", "results")}
    done = subprocess.run([NNUNET, "verify.py"], capture_output=True, text=True, env={**os.environ, **folders})
    assert done.returncode == 0 and "verify_dataset_integrity Done" in done.stdout, done.stderr
    assert "Error" not in done.stdout and "Warning" not in done.stdout
    assert discover_nnunet(Path("nnUNet_raw/Dataset002_B")) is not None
