"""Pages of runs: what they say of withdrawn patients, of a table's features, and what of it leaves the hospital."""

import html
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from embedded import holds

from evaluation.tiles import Tile
from pipelines.coordinator.stages.report import without_patients
from pipelines.data.cohort import Cohort
from pipelines.data.images import Features
from pipelines.data.tables.features import moments, standardize_features
from pipelines.hospital.page.pictures import describe_outlines
from pipelines.hospital.page.table import read_features
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines_settings import BASE

ONE = {
    **BASE,
    "train": {
        **BASE["train"],
        "schedule": {"rounds": 1},
        "methods": {"local": {"name": "local"}, "central": {"name": "central"}},
    },
    "evaluate": {"copies": 5, "reference": "local", "public": False},
}


def told(settings, *words: str) -> Path:
    Path("tiny.yaml").write_text(yaml.safe_dump(settings))
    assert main(["tiny.yaml", *words]) == Exit.OK
    return Path("runs/tiny")


def excluding(*names):
    return {**ONE, "sites": {**ONE["sites"], "a": {**ONE["sites"]["a"], "exclude": list(names)}}}


@pytest.fixture(scope="module")
def withdrawn(tmp_path_factory):
    """A run that trained; then one without one of its training patients (by pseudonym), and a name that nobody has."""
    before = Path.cwd()
    folder = tmp_path_factory.mktemp("withdrawn")
    os.chdir(folder)
    run = told(ONE, "--until", "train")
    (split,) = run.glob("sites/a/cohorts/*/split.json")
    patient = json.loads(split.read_text())["train"][0]
    trained = sorted(
        path.name for path in (run / "sites/a/conversations/tiny").glob("*") if path.name[:3] in ("loc", "poo")
    )
    told(excluding(patient, "Nobody^At^All"))
    os.chdir(before)
    return folder / run, patient, trained


PLACES = {"run": "report.html", "a": "sites/a/report.html", "b": "sites/b/report.html"}


def test_the_hospitals_page_names_the_runs_that_knew_a_patient(withdrawn):
    run, _, trained = withdrawn
    text = (run / PLACES["a"]).read_text()
    section = text[text.index('<h2 id="withdrawn">') : text.index('<h2 id="images">')]
    assert "1 study left out; 1 excluded name matches no patient" in section
    rows = dict(re.findall(r"<code>([^<]+)</code></th><td>([^<]+)</td>", section))
    assert sorted(rows) == [f"tiny/{name}" for name in trained] and len(trained) == 2
    assert {rows[f"tiny/{name}"] for name in trained if name.startswith("local")} == {"its model was trained on them"}
    assert {rows[f"tiny/{name}"] for name in trained if name.startswith("pool")} == {
        "their images were sent, for a central model"
    }
    assert 'id="withdrawn"' not in (run / PLACES["b"]).read_text()


def test_the_coordinator_is_told_counts_and_names_of_runs_only(withdrawn):
    run, patient, trained = withdrawn
    text = (run / PLACES["run"]).read_text()
    assert "1 study left out; 1 excluded name matches no patient" in text
    assert all(f"<code>tiny/{name}</code>" in text for name in trained)
    assert "trained on them" not in text
    for path in run.rglob("*"):
        if path.is_file() and "sites" not in path.relative_to(run).parts:
            data = path.read_bytes()
            assert not holds(data, patient) and not holds(data, "Nobody^At^All"), path


def test_the_ways_on_can_be_typed(withdrawn):
    run, _, _ = withdrawn
    text = (run / PLACES["a"]).read_text()
    assert "python -m pipelines.predict runs/tiny/sites/a/ready/local.safetensors FOLDER" in text
    assert "ready/central" not in text
    assert "runs/tiny/sites/SITE/ready/METHOD.safetensors FOLDER" in (run / PLACES["run"]).read_text()
    assert (run / "sites/a/ready/local.safetensors").is_file()


def test_a_sheet_says_outlined_only_of_what_is(withdrawn):
    run, _, _ = withdrawn
    text = (run / PLACES["a"]).read_text()
    sheets = re.findall(r"<h3>((?:train|validation|test)[^<]*)</h3>\s*<figure>(.*?)</ul>", text, re.DOTALL)
    assert len(sheets) == 3
    for title, sheet in sheets:
        for mask, name in (("lesion", "lesion"), ("gland", "organ")):
            assert (f"{mask} outlined" in title) == (f"{name} outlined" in sheet), title
    assert "the size of the score's gradient at each of 32 × 32 pixels" in html.unescape(text)


def test_names_of_patients_in_settings_become_numbers():
    sites = {"a": {"exclude": ["x", "y"], "test": ["z"], "readers": 1}, "b": {"exclude": [], "test": []}}
    assert without_patients({"name": "n", "sites": sites}) == {
        "name": "n",
        "sites": {"a": {"exclude": "2 names", "test": "1 names", "readers": 1}, "b": {"exclude": [], "test": []}},
    }


def cohort(x, recipe):
    n = len(x)
    none, zeros = torch.zeros(n, 0, dtype=torch.uint8), torch.zeros(n, dtype=torch.int64)
    split = torch.zeros(n, dtype=torch.int8)
    return Cohort(x, zeros, zeros, torch.zeros(n), none, none, split, ("p",), "", recipe)


@pytest.mark.parametrize("normalize", ["site", "none"])
def test_features_are_told_in_the_tables_own_numbers(normalize):
    """Standardized and back, whatever the column's size; a constant column too."""
    rng = np.random.default_rng(0)
    table = np.c_[
        rng.normal(5e4, 3e3, 30).round(), rng.normal(2e-3, 1e-4, 30), np.full(30, 7.0), rng.integers(0, 2, 30)
    ]
    kind = rng.integers(0, 3, 30)
    x = torch.tensor(np.c_[table, kind == 1, kind == 2], dtype=torch.float32)
    images = Features(
        numbers=("big", "small", "same", "yes"), categories={"kind": ("u", "v", "w")}, normalize=normalize
    )
    known = moments(x)
    scale = {"count": known.count, "total": known.total.tolist(), "squares": known.squares.tolist()}
    recipe = {
        "images": {
            "kind": "features",
            "numbers": list(images.numbers),
            "categories": {"kind": ["u", "v", "w"]},
            "normalize": normalize,
        },
        "scale": scale if normalize == "site" else None,
    }
    found = read_features(cohort(standardize_features(x, known) if normalize == "site" else x, recipe))
    for name, column in zip(images.numbers, table.T, strict=True):
        np.testing.assert_allclose(found[name], column, rtol=2e-5)
    assert set(found["yes"]) == {0.0, 1.0}
    for place, value in enumerate("uvw"):
        np.testing.assert_array_equal(found[f"kind = {value}"], kind == place)


def test_images_have_no_features():
    assert read_features(cohort(torch.zeros(2, 1, 4, 4), {})) == {}
    assert read_features(cohort(torch.zeros(2, 1, 4, 4), {"images": {"kind": "pictures"}, "scale": None})) == {}


def test_what_no_tile_shows_is_not_announced():
    image, none = np.ones((4, 4)), np.zeros((4, 4))
    assert describe_outlines([Tile(image, "", lesion=none, organ=none), Tile(image, "")]) == ""
    assert describe_outlines([Tile(image, "", lesion=none, organ=image)]) == ": gland outlined in blue"
    assert describe_outlines([Tile(image, "", lesion=image), Tile(image, "")]) == ": lesion outlined in amber"
