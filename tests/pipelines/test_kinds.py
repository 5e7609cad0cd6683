"""Every kind of example goes the whole way: from files to the report, and to predictions on the same files."""

from __future__ import annotations

import copy
import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from pipelines.hospital.hospital import COHORT, read_cohort_file
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.load import load_config
from pipelines_settings import BASE
from privacy.message import from_bytes
from privacy.release import ledger as ledgers

WORK = {"lr": 0.01, "batch": 8}
TRAIN = {"schedule": {"rounds": 1}, "work": WORK, "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}}
LIST = ("vienna", "graz")


def settings(**changes: object) -> dict[str, object]:
    evaluate = {"copies": 5, "reference": "local", "public": False}
    return {**copy.deepcopy(BASE), "pooling": "refused", "train": TRAIN, "evaluate": evaluate, **changes}


def write(folder: Path, said: dict[str, object]) -> str:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(said))
    return str(path)


def tables(folder: Path) -> dict[str, object]:
    """Two hospitals with tables; the second one's numbers are ten times as large."""
    rng = np.random.default_rng(0)
    for scale, site in enumerate(LIST):
        ill = rng.random(40) < 0.5
        lines = [
            f"{x * 10**scale:.4f},{'ab'[int(y)]},{int(y)}" for x, y in zip(ill + rng.normal(size=40), ill, strict=True)
        ]
        (folder / f"{site}.csv").write_text("\n".join(["marker,group,ill", *lines]))
    sites = {site: {"source": {"kind": "table", "file": str(folder / f"{site}.csv"), "label": "ill"}} for site in LIST}
    images = {"kind": "features", "numbers": ["marker"], "categories": {"group": ["a", "b"]}}
    return settings(sites=sites, images=images, model={"name": "mlp", "hidden": [], "logits": "one"})


def pictures(folder: Path) -> dict[str, object]:
    rng = np.random.default_rng(0)
    lines = ["image,patient,site,label"]
    for number in range(40):
        ill = number % 2
        values = rng.integers(0, 120, (24, 24, 3), np.uint8) + np.uint8(100 * ill)
        Image.fromarray(values).save(folder / f"{number}.png")
        lines.append(f"{number}.png,P{number},{LIST[number // 20]},{ill}")
    (folder / "labels.csv").write_text("\n".join(lines))
    source = {"kind": "picture", "folder": str(folder), "table": str(folder / "labels.csv")}
    sites = {site: {"source": {**source, "where": {"site": [site]}}} for site in LIST}
    images = {"kind": "pictures", "size": 16}
    return settings(sites=sites, images=images, model={"name": "cnn", "widths": [8, 8], "norm": "group"})


def volumes(folder: Path) -> dict[str, object]:
    images = {"kind": "volumes", "size": 16, "spacing_mm": 3.0, "depth": 8, "depth_mm": 3.0}
    model = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    return settings(images=images, model=model, train={**TRAIN, "work": {**WORK, "augment": "affine"}})


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", [tables, pictures, volumes], ids=lambda kind: kind.__name__)
def test_each_kind_goes_from_files_to_predictions(here, kind):
    assert run([write(here, kind(here))]) == Exit.OK
    config = load_config("tiny.yaml")
    site = next(iter(config.sites))
    home = here / "runs" / "tiny" / "sites" / site
    (path,) = home.glob(f"cohorts/*/{COHORT}")
    cohort = read_cohort_file(path)
    assert tuple(cohort.images.shape[1:]) == config.images.inputs
    assert set(cohort.labels.tolist()) == {0, 1}
    model = str(home / "ready" / "fedavg.safetensors")
    new = {
        "tables": str(here / f"{site}.csv"),
        "pictures": str(here),
        "volumes": str(next(iter(home.glob("phantom/*/images")), "")),
    }[kind.__name__]
    extra = ["--no-gland"] if kind is volumes else []
    assert predict([model, new, "--out", str(here / "out"), *extra]) == Exit.OK
    with (here / "out" / "predictions.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == {"tables": 40, "pictures": 40, "volumes": 10}[kind.__name__]
    if kind is not volumes:  # whose masks are not given here
        kept = DiskFolder(home / "scores")
        (name,) = (name for name in kept.names() if name.startswith("fedavg") and name.endswith(".safetensors"))
        told = np.array([float(line["score"]) for line in lines])
        for score in from_bytes(kept.read(name)).tensors["probabilities"][:, 1].tolist():
            assert np.abs(told - score).min() < 1e-5


def test_pooled_normalization_is_one_scale_for_all_and_stands_in_the_ledger(here):
    said = tables(here)
    for how in ("site", "pooled"):
        said["name"], said["images"]["normalize"] = how, how
        assert run([write(here, said), "--until", "ingest"]) == Exit.OK
    spread = {}
    for how in ("site", "pooled"):
        homes = [here / "runs" / how / "sites" / site for site in LIST]
        cohorts = [read_cohort_file(next(home.glob(f"cohorts/*/{COHORT}"))) for home in homes]
        spread[how] = [float(c.images[c.split == 0][:, 0].std()) for c in cohorts]
        asked = {line["request"] for home in homes for line in ledgers.read_lines(home / "ledger.jsonl")}
        assert ("moments" in asked) == (how == "pooled")
        if how == "pooled":
            together = torch.cat([c.images[c.split == 0] for c in cohorts])
            assert together.mean(dim=0).abs().max() < 1e-5
            assert torch.allclose(together.std(dim=0), torch.ones(2), atol=1e-4)
    assert spread["site"] == pytest.approx([1, 1], abs=1e-4)
    assert spread["pooled"][1] > 5 * spread["pooled"][0]


def test_a_hospital_may_refuse_to_tell_its_moments(here, capsys):
    said = tables(here)
    said["images"]["normalize"] = "pooled"
    requests = ["survey", "ingest", "introduce", "train", "finish", "export", "evaluate", "report", "holds"]
    said["sites"]["graz"]["policy"] = {"requests": requests}
    assert run([write(here, said), "--until", "ingest"]) == Exit.SITE
    assert "graz: policy" in capsys.readouterr().err


def test_named_test_patients_are_the_test_split(here):
    said = tables(here)
    said["split"] = {"train": 0.8, "validation": 0.2, "test": 0.0}
    for site in LIST:
        said["sites"][site]["test"] = [str(number) for number in range(1, 11)]
    assert run([write(here, said), "--until", "ingest"]) == Exit.OK
    home = here / "runs" / "tiny" / "sites" / "graz"
    linkage = json.loads((home / "linkage.json").read_text())["patients"]
    (path,) = home.glob("cohorts/*/split.json")
    split = json.loads(path.read_text())
    assert sorted(int(linkage[name]) for name in split["test"]) == list(range(1, 11))
    assert (len(split["train"]), len(split["validation"])) == (24, 6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"images": {"kind": "slices"}},
            "images of kind slices need dicom, dicomweb, dicom_node, nifti or phantom, found table",
        ),
        ({"train": {**TRAIN, "work": {"augment": "flip"}}}, "flip is for images, not for features"),
        ({"split": {"train": 0.8, "validation": 0.2, "test": 0.0}}, "name this site's test patients"),
        ({"model": {"name": "cnn"}}, "the network cannot take examples of shape"),
    ],
)
def test_what_does_not_go_together_is_told_with_the_settings(here, capsys, change, said):
    assert run([write(here, {**tables(here), **change}), "--check"]) == Exit.CONFIG
    assert said in " ".join(capsys.readouterr().err.split())
    assert not os.path.exists("runs/tiny/sites")


def test_patients_named_in_the_settings_are_on_no_page(here):
    said = tables(here)
    header, *lines = (here / "graz.csv").read_text().splitlines()
    named = [f"id,{header}", *(f"Gruber{number},{line}" for number, line in enumerate(lines))]
    (here / "graz.csv").write_text("\n".join(named))
    said["sites"]["graz"]["source"]["patient"] = "id"
    said["sites"]["graz"] |= {"exclude": ["Gruber3"], "test": ["Gruber7", "Gruber8", "Gruber9"]}
    assert run([write(here, said)]) == Exit.OK
    runs = here / "runs"
    files = [path for path in runs.rglob("*") if path.is_file() and b"Gruber" in path.read_bytes()]
    assert [path.relative_to(runs).as_posix() for path in files] == ["tiny/sites/graz/linkage.json"]
