"""Pictures that the user declares public, and features of volumes and of slices among their neighbours."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from pipelines.data.images import Pictures, Slices
from pipelines.data.public import read_public
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE

TRAIN = {"schedule": {"rounds": 1}, "methods": {"moments": {"name": "moments"}}}
FOREST = {"name": "random_convolutions", "filters": 4, "scales": 2}
MODEL = {"name": "features", "of": FOREST, "public": "atlas", "pictures": 30, "components": 6}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def painted(folder: Path, count: int, seed: int) -> Path:
    """So many pictures of random colours in a new folder."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        values = (rng.uniform(0, 200) + rng.uniform(0, 55, (24, 24, 3))).astype(np.uint8)
        Image.fromarray(values).save(folder / f"{number}.png")
    return folder


def settings(tmp_path: Path, **changes: object) -> dict[str, object]:
    """Two hospitals with a folder of pictures, and an atlas beside them."""
    own = painted(tmp_path / "wards", 40, 0)
    lines = [f"{k}.png,P{k},{'ab'[k // 20]},{k % 2}" for k in range(40)]
    (tmp_path / "labels.csv").write_text("\n".join(["image,patient,site,label", *lines]))
    source = {"kind": "picture", "folder": str(own), "table": str(tmp_path / "labels.csv")}
    return {
        **copy.deepcopy(BASE),
        "sites": {site: {"source": {**source, "where": {"site": [site]}}} for site in "ab"},
        "images": {"kind": "pictures", "size": 16},
        "public_pictures": {"atlas": {"folder": str(painted(tmp_path / "atlas_folder", 20, 1))}},
        "pooling": "refused",
        "model": MODEL,
        "train": TRAIN,
        "evaluate": {"copies": 5, "reference": None, "public": False},
        **changes,
    }


def started(said: dict[str, object], *options: str) -> int:
    Path("x.yaml").write_text(yaml.safe_dump(said))
    return run(["x.yaml", *options])


def test_declared_pictures_set_the_scale_and_are_told_of(tmp_path, capsys):
    said = settings(tmp_path)
    (tmp_path / "atlas_folder" / "notes.txt").write_text("taken in 1998")
    (tmp_path / "atlas_folder" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    assert started(said) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    ((told,),) = [
        json.loads(path.read_text())["summary"]["public"].values() for path in home.glob("features/*/manifest.json")
    ]
    assert told["folder"] == "atlas" and told["pictures"] == 20 and "torn.png" in told["refused"][0]
    expected = read_public(Pictures(size=16), 30, folder=str(tmp_path / "atlas_folder")).sha256
    assert told["sha256"] == expected
    statement = " ".join(next(home.glob("report/*/statement.md")).read_text().split())
    assert f"features were scaled by 20 pictures, atlas (SHA-256 {expected}), which the coordinator read" in statement
    for path in (home / "sites").rglob("*"):
        assert not (path.is_file() and b"atlas_folder" in path.read_bytes()), path
    capsys.readouterr()
    assert started(said) == Exit.OK
    assert "features  kept" in capsys.readouterr().err
    painted(tmp_path / "more", 1, 2).joinpath("0.png").rename(tmp_path / "atlas_folder" / "23.png")
    assert started(said) == Exit.OK
    assert "features  done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"public_pictures": {}},
            "unknown pictures 'atlas'; there are prostate_adc, prostate_t2w, skin_lesion; public_pictures:",
        ),
        ({"public_pictures": {"atlas": {}}}, "give either folder, of pictures, or source, as of a hospital"),
        ({"public_pictures": {"atlas": {"folder": "wards"}}}, "lies in the folder of a, whose patients are not public"),
        ({"public_pictures": {"skin_lesion": {"folder": "atlas_folder"}}}, "is the name of a prior"),
        ({"images": BASE["images"]}, "holds pictures, and images are slices"),
    ],
)
def test_pictures_that_cannot_serve_are_told_before_anything_runs(changes, words, tmp_path, capsys):
    assert started(settings(tmp_path, **changes), "--check") == Exit.CONFIG
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_is_not_there_is_missing(tmp_path, capsys):
    said = settings(tmp_path, public_pictures={"atlas": {"folder": "/nowhere"}})
    assert started(said, "--check") == Exit.DATA
    assert "public_pictures.atlas.folder: '/nowhere' is no folder that exists" in capsys.readouterr().err


def test_a_folder_of_torn_pictures_is_refused_with_all_of_them(tmp_path):
    folder = painted(tmp_path / "atlas", 4, 0)
    for name in ("x.png", "y.png"):
        (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ValueError, match=r"2 of 6 public pictures or studies cannot be read: .*\.png: .*; .*\.png: "):
        read_public(Pictures(size=16), 100, folder=str(folder))
    with pytest.raises(ValueError, match="a folder of pictures is no source of slices"):
        read_public(Slices(), 4, folder=str(folder))


@pytest.mark.parametrize(
    ("images", "of"),
    [
        ({"kind": "slices", "size": 32, "spacing_mm": 2.0, "context": 3}, {"name": "radiomics"}),
        (
            {"kind": "volumes", "size": 16, "spacing_mm": 4.0, "depth": 8, "depth_mm": 3.0},
            {"name": "scattering", "scales": 2},
        ),
    ],
    ids=lambda one: one.get("kind", ""),
)
def test_volumes_and_slices_among_neighbours_have_features(images, of, tmp_path):
    model = {**MODEL, "of": of, "public": "prostate_adc"}
    said = {**BASE, "images": images, "model": model, "train": TRAIN, "evaluate": {"copies": 5, "public": False}}
    assert started(said) == Exit.OK
    site = tmp_path / "runs" / BASE["name"] / "sites" / "a"
    (files,) = site.glob("phantom/*/images")
    arguments = [str(files), "--gland", str(files.parent / "masks" / "gland"), "--out", "out"]
    assert predict([str(site / "ready" / "moments.safetensors"), *arguments]) == Exit.OK
    with Path("out", "predictions.csv").open() as file:
        assert all(0 <= float(line["score"]) <= 1 for line in csv.DictReader(file))
