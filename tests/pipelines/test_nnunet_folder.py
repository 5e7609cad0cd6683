"""A folder of nnU-Net becomes a run that is planned, trained and predicted with; what cannot is refused in words."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from federation.task import IGNORED
from pipelines.discovery.nnunet import _list_channels, _name_class, _read_labels, _split_regions, discover_nnunet
from pipelines.hospital.hospital import read_cohort_file
from pipelines.init import main as init
from pipelines.loader.names import is_name
from pipelines.plan import main as plan
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.load import load_config

AFFINE = np.diag([1.5, 1.5, 3.0, 1.0])
SHAPE = (18, 16, 8)
DESCRIBED: dict[str, Any] = {
    "channel_names": {"0": "T2"},
    "labels": {"background": 0, "Transition Zone": 2, "PZ": 1},
    "numTraining": 4,
    "file_ending": ".nii.gz",
}


def write_dataset(folder: Path, cases: int = 4, described: dict[str, Any] = DESCRIBED, seed: int = 0) -> Path:
    """A bright block in a brighter block, in noise."""
    rng = np.random.default_rng(seed)
    for name in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / name).mkdir(parents=True)
    for number in range(cases + 1):
        labels = np.zeros(SHAPE, np.uint8)
        first = int(rng.integers(3, 6))
        labels[first : first + 9, 4:12, 2:6] = 1
        labels[first + 2 : first + 6, 6:10, 3:5] = 2
        values = (3 + 2 * labels + rng.normal(0, 0.2, SHAPE)).astype(np.float32)
        case = f"case{seed}_{number:02d}"
        images = folder / ("imagesTr" if number < cases else "imagesTs")
        nibabel.save(nibabel.Nifti1Image(values, AFFINE), images / f"{case}_0000.nii.gz")
        if number < cases:
            nibabel.save(nibabel.Nifti1Image(labels, AFFINE), folder / "labelsTr" / f"{case}.nii.gz")
    (folder / "dataset.json").write_text(json.dumps(described))
    return folder


def test_from_the_folder_to_a_plan_a_run_and_label_maps_of_new_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    raw = write_dataset(Path("nnUNet_raw") / "Dataset001_Zones")
    assert init([str(raw), "--out", "my.yaml"]) == Exit.OK
    assert "now: python -m pipelines.plan my.yaml -o planned.yaml" in " ".join(capsys.readouterr().err.split())
    assert not [path for path in Path("my.yaml").read_text().splitlines() if "case0_" in path]
    assert run(["my.yaml", "--check"]) == Exit.OK
    assert plan(["my.yaml", "--small", "-o", "planned.yaml"]) == Exit.OK
    planned = load_config("planned.yaml")
    assert (planned.images.spacing_mm, planned.images.depth_mm) == (1.5, 3.0)  # type: ignore[union-attr]
    assert "pz: 1.73 mL" in Path("planned.yaml").read_text()  # (9 * 8 * 4 - 4 * 4 * 2) voxels of 6.75 mm³
    assert run(["planned.yaml", "--check"]) == Exit.OK
    short = ["train.schedule.rounds=1", "train.work.steps=2", "evaluate.copies=5"]
    assert (
        run(["planned.yaml", "--until", "evaluate", *(word for each in short for word in ("--set", each))]) == Exit.OK
    )
    (ready,) = Path("runs").glob("*/sites/*/ready/local.safetensors")
    assert predict([str(ready), str(raw / "imagesTs"), "--out", "out"]) == Exit.OK
    with Path("out/predictions.csv").open() as file:
        (line,) = csv.DictReader(file)
    found = nibabel.load(Path("out") / line["mask"])
    labels = np.asarray(found.dataobj)
    assert labels.shape == SHAPE and np.allclose(found.affine, AFFINE) and set(np.unique(labels)) <= {0, 1, 2}
    for name, value in (("pz", 1), ("transition_zone", 2)):
        assert float(line[f"{name}_ml"]) == pytest.approx((labels == value).sum() * 6.75e-3, abs=1e-3)


def test_classes_stand_in_the_order_of_their_labels_so_that_predictions_have_the_same_numbers(tmp_path, capsys):
    assert init([str(write_dataset(tmp_path / "north"))]) == Exit.OK
    drafted = yaml.safe_load(capsys.readouterr().out)
    assert drafted["task"] == {"kind": "segmentation", "target": "masks", "classes": ["pz", "transition_zone"]}
    (source,) = (site["source"] for site in drafted["sites"].values())
    assert source["masks"]["values"] == {"pz": [1], "transition_zone": [2]} and list(drafted["sites"]) == ["north"]


def test_a_folder_of_datasets_is_a_hospital_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("north", "south")):
        write_dataset(Path("raw") / name, 3, seed=seed)
    assert init(["raw", "--out", "my.yaml"]) == Exit.OK
    assert run(["my.yaml", "--check", "--headers"]) == Exit.OK
    config = load_config("my.yaml")
    assert set(config.sites) == {"north", "south"} and set(config.train.methods) == {"local", "fedavg"}
    (Path("raw") / "south" / "dataset.json").write_text(
        json.dumps(DESCRIBED | {"labels": {"background": 0, "liver": 1}})
    )
    capsys.readouterr()
    assert init(["raw"]) == Exit.DATA
    said = capsys.readouterr().err
    assert "classes of the same names" in said and "liver" in said


def test_what_is_ignored_is_no_class_and_is_learnt_and_scored_around(tmp_path, monkeypatch):
    """From the folder to a model, with a label of which nobody says what it is."""
    monkeypatch.chdir(tmp_path)
    write_dataset(Path("north"), described=DESCRIBED | {"labels": {"background": 0, "zone": 1, "ignore": 2}})
    assert init(["north", "--out", "my.yaml"]) == Exit.OK
    config = load_config("my.yaml")
    source = config.sites["north"].source
    assert config.task.names == ("background", "zone")
    assert dict(source.masks.values) == {"zone": (1,), "ignore": (2,)} and source.masks.classes == ("zone",)
    text = Path("my.yaml").read_text().replace("rounds: 20", "rounds: 1").replace("steps: 25", "steps: 2")
    Path("my.yaml").write_text(text)
    assert run(["my.yaml"]) == Exit.OK
    (home,) = Path("runs").glob("*/sites/north")
    cohort = read_cohort_file(next(home.glob("cohorts/*/cohort.safetensors")))
    assert cohort.mask.unique().tolist() == [0, 1, IGNORED] and set(cohort.recipe["classes"]) == {"zone"}
    assert bool((cohort.labels == 1).all())
    assert (home / "ready" / "local.safetensors").is_file()


def test_ct_is_planned_as_ct(tmp_path, capsys):
    raw = write_dataset(tmp_path / "north", described=DESCRIBED | {"channel_names": {"0": "CT"}})
    assert init([str(raw)]) == Exit.OK
    said = capsys.readouterr()
    assert "planned.yaml --ct" in said.out and "planned.yaml --ct" in said.err


def test_images_without_a_label_map_are_told(tmp_path, capsys):
    raw = write_dataset(tmp_path / "north")
    (raw / "labelsTr" / "case0_01.nii.gz").unlink()
    assert init([str(raw)]) == Exit.OK
    said = " ".join(capsys.readouterr().err.split())
    assert "1 images have no label map in labelsTr" in said and "case0_01" not in said


@pytest.mark.parametrize(
    ("described", "said"),
    [
        ({"channel_names": {"0": "T2", "1": "ADC"}}, "channel_names: 2 channels, and a study has one image here"),
        ({"channel_names": None}, "channel_names: missing"),
        ({"labels": None}, "labels: none that can be read"),
        ({"labels": {"background": 0}}, "labels: none that can be read"),
        ({"labels": {"background": 0, "a": "one"}}, "labels: none that can be read"),
        ({"labels": {"background": 0, "whole": [1, 2], "core": [2, 1]}}, "labels: core: it has the classes of whole"),
        ({"labels": {"background": 0, "a" * 40: [1, 2], "b" * 41: [2, 3]}}, "shorten the regions' names"),
        ({"labels": {"background": 0} | {f"c{n}": [*range(n, 9)] for n in range(1, 9)}}, "labels: 8 classes, and 7"),
        ({"labels": {"background": 0} | {f"c{n}": [*range(n, 9)] for n in range(1, 9)}}, "8 regions, and 7 are scored"),
        ({"labels": {"background": 0, "ignore": 2}}, "labels: none that can be read"),
        ({"labels": {"background": 0, "a": 1, "ignore": 1}}, "labels: [1] are ignored, and a class has them too"),
        ({"labels": {"background": 0, "A b": 1, "a-b": 2}}, "labels: names must differ"),
        ({"labels": {"background": 0, "***": 1}}, "labels: names must differ"),
        ({"labels": {"background": 3, "a": 1}}, "0 the background, found [3]"),
        ({"labels": {"background": 0, "a": -1}}, "must be in [1, 65535], and 0 the background, found [-1]"),
        ({"labels": {"background": 0} | {f"c{n}": n for n in range(1, 9)}}, "labels: 8 classes, and 7"),
        ({"file_ending": ".nrrd"}, "file_ending is '.nrrd', and .nii.gz, .nii, .png, .bmp, .tif are read"),
        ({"file_ending": ".nii"}, "has its label map NAME.nii in labelsTr"),
    ],
)
def test_what_has_no_counterpart_is_refused_in_words(tmp_path, capsys, described, said):
    raw = write_dataset(tmp_path / "north", 1, DESCRIBED | described)
    assert init([str(raw)]) == Exit.DATA
    told = capsys.readouterr()
    assert said in " ".join(told.err.split()) and not told.out


def test_files_are_looked_at_too_and_all_problems_come_at_once(tmp_path, capsys):
    raw = write_dataset(tmp_path / "north", 2, DESCRIBED | {"labels": {}})
    one = raw / "imagesTr" / "case0_00_0000.nii.gz"
    (raw / "imagesTr" / "case0_00_0001.nii.gz").write_bytes(one.read_bytes())
    one.rename(raw / "imagesTr" / "case0_00.nii.gz")
    assert init([str(raw)]) == Exit.DATA
    said = " ".join(capsys.readouterr().err.split())
    for each in ("labels: none", "1 files of imagesTr are of a second", "1 files of imagesTr do not end with _0000"):
        assert each in said
    for broken in ("{", "[]"):
        (raw / "dataset.json").write_text(broken)
        assert init([str(raw)]) == Exit.DATA
        assert "nnU-Net's documentation" in " ".join(capsys.readouterr().err.split())


NAMES = st.text("abcXYZ 01_-", min_size=1, max_size=8).filter(lambda text: text.strip(" _-") not in ("", "background"))


@given(
    st.dictionaries(NAMES, st.integers(1, 300), min_size=1, max_size=5).filter(lambda d: len(set(d.values())) == len(d))
)
def test_both_versions_say_the_same(labels):
    """Version 1 writes modality, and label -> class."""
    second = _read_labels({"background": 0, **labels})
    assert second == _read_labels({"0": "background", **{str(value): name for name, value in labels.items()}})
    assert [values for _, values in second] == sorted((value,) for value in labels.values())
    assert all(is_name(name) for name, _ in second)
    assert _list_channels({"modality": {"0": "CT"}}) == _list_channels({"channel_names": {"0": "CT"}}) == ["CT"]


def test_other_folders_are_none_of_it(tmp_path):
    (tmp_path / "imagesTr").mkdir()
    assert discover_nnunet(tmp_path) is None
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(ValueError, match="channel_names: missing"):
        discover_nnunet(tmp_path)


@given(
    st.dictionaries(NAMES, st.sets(st.integers(1, 6), min_size=1), min_size=1, max_size=5).filter(
        lambda drawn: len({_name_class(name) for name in drawn} - {"ignore"}) == len(drawn)
    )
)
def test_classes_of_regions_exclude_each_other_and_make_them_up(drawn):
    """Whatever labels regions share: each label is of one class, and each region is the labels of its classes."""
    labels = _read_labels({"background": 0} | {name: sorted(values) for name, values in drawn.items()})
    values, regions = _split_regions(labels)
    every = [value for own in values.values() for value in own]
    assert sorted(every) == sorted({value for own in drawn.values() for value in own}) and all(map(is_name, values))
    for (name, own), classes in zip(labels, regions.values() or [(name,) for name in values], strict=len(regions) > 0):
        assert not regions or {value for each in classes for value in values[each]} == {*own}, name
    assert bool(regions) == (len(every) < sum(map(len, drawn.values())))
