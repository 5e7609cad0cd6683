"""Parts of one source and folds, from YAML: what a user writes, what is refused, what lies at the hospitals."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from pipelines.loader.document import ConfigError, read_yaml, render
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.models.file import read_ready
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.checks.partition import find_partition_differences
from pipelines.settings.config import Config
from pipelines.settings.learning import Split
from privacy.message import from_bytes

WHOLE: dict[str, Any] = {
    "name": "parts",
    "privacy": "none",
    "sites": {"t": {"source": {"kind": "table", "file": "t.csv", "patient": "id", "label": "ill"}}},
    "images": {"kind": "features", "numbers": ["a", "b", "c"]},
    "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {
        "schedule": {"rounds": 2},
        "work": {"lr": 0.05, "batch": 8, "augment": "none"},
        "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}},
    },
    "evaluate": {"copies": 10},
    "audit": {"membership": False},
}
EVEN = {"kind": "even", "of": 3}


def made(**changes: Any) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump({**copy.deepcopy(WHOLE), **changes}), environment={}), Config)


def sites(**parts: Any) -> dict[str, Any]:
    return {name: {**copy.deepcopy(WHOLE["sites"]["t"]), **said} for name, said in parts.items()}


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    return render(caught.value, "my.yaml")


def test_a_part_without_a_number_is_a_site_for_every_part() -> None:
    config = made(sites=sites(t={"part": {**EVEN, "seed": 7}, "work": {"lr": 0.1}}))
    assert list(config.sites) == ["t-1", "t-2", "t-3"]
    said = [(site.part.number, site.part.seed, site.work) for site in config.sites.values() if site.part]
    assert said == [(number, 7, {"lr": 0.1}) for number in (1, 2, 3)]
    assert made(**json.loads(json.dumps(to_plain(config)))) == config, "the plain form says the same"


def test_some_parts_of_a_source_may_be_left_out() -> None:
    """CusFL Fig. 6: more and more clients out of one partition."""
    two = sites(x={"part": {**EVEN, "number": 3}}, y={"part": {**EVEN, "number": 1}})
    assert list(made(sites=two).sites) == ["x", "y"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"part": {**EVEN, "number": 1}}, "sites.y.part.number: 1, which x has"),
        ({"part": {**EVEN, "number": 2, "seed": 1}}, "sites.y.part.seed: 1, and 0 at x"),
        ({"part": {**EVEN, "number": 2, "tests": "source"}}, "sites.y.part.tests: source, and own at x"),
        ({"part": {"kind": "dirichlet", "alpha": 1.0, "of": 3, "number": 2}}, "sites.y.part.kind: dirichlet, and even"),
        ({"part": {**EVEN, "number": 2}, "exclude": ["p1"]}, "sites.y.exclude: differs from that of x"),
        ({"part": {**EVEN, "number": 2}, "test": ["p1"]}, "sites.y.test: differs from that of x"),
        ({}, "sites.y.part: missing; the same source is dealt out, and x has a part of it"),
        ({"part": {**EVEN, "number": 2}, "home": "h"}, "a home or a budget is a real hospital's"),
        ({"part": {**EVEN, "number": 2}, "policy": {"budget": {"epsilon": 1.0}}}, "sites.y.part: is for simulations"),
        ({"part": {**EVEN, "number": 2, "alpha": 1.0}}, "sites.y.part.alpha: it goes with kind: dirichlet"),
    ],
)
def test_sites_of_one_source_that_could_share_a_patient_are_refused(second: dict[str, Any], said: str) -> None:
    text = refused(sites=sites(x={"part": {**EVEN, "number": 1}}, y=second))
    assert said in text and text.startswith("my.yaml:")


def test_sites_whose_lines_may_be_the_same_are_refused_and_disjoint_ones_are_not() -> None:
    def where(**columns: list[str]) -> dict[str, Any]:
        return {"source": {**WHOLE["sites"]["t"]["source"], "where": columns}}

    assert "sites.y.source.where: may choose lines that x" in refused(
        sites=sites(x=where(site=["A", "B"]), y=where(site=["B"]))
    )
    assert "may choose lines" in refused(sites=sites(x=where(site=["A"]), y=where(sex=["f"])))
    assert "may choose lines" in refused(sites=sites(x=where(site=["A"]), y={}))
    assert made(sites=sites(x=where(site=["A"], sex=["f"]), y=where(site=["B"], sex=["f"])))
    assert "the same as that of x" in refused(sites=sites(x={}, y={}))


def test_names_of_parts_that_other_sites_have_are_refused() -> None:
    other = sites(**{"t": {"part": EVEN}, "t-2": {"source": {**WHOLE["sites"]["t"]["source"], "file": "u.csv"}}})
    assert "sites.t.part: its part would be called t-2" in refused(sites=other)


def test_hospitals_that_found_another_source_are_told() -> None:
    config = made(sites=sites(t={"part": EVEN}))
    assert not find_partition_differences(config.sites, {"t-1": "x", "t-2": "x", "t-3": "x"})
    (said,) = find_partition_differences(config.sites, {"t-1": "x", "t-2": "y", "t-3": "x"})
    assert said.startswith("t-1, t-2, t-3: parts of one source, which did not look alike")


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"folds": 5, "fold": 0, "train": 0.5}, ["split.train: 0.5, and with folds 5 and validation 0.15 it is 0.65"]),
        ({"folds": 5, "fold": 0, "test": 0.35}, ["split.test: 0.35, and with folds 5"]),
        ({"folds": 5}, ["split.fold: missing"]),
        ({"fold": 1}, ["split.fold: 1, and folds is missing"]),
        ({"folds": 5, "fold": 5}, ["split.fold: must be in [0, 4]"]),
        ({"folds": 1, "fold": 0}, ["split.folds: must be in [2, 100], found 1"]),
        ({"folds": 2, "fold": 0, "validation": 0.6}, ["train > 0"]),
        (
            {"folds": 500, "fold": 700, "train": 0.1, "test": 0.9},
            ["folds: must", "fold: must", "train: 0.1", "test: 0.9"],
        ),
        ({"train": 0.5, "validation": 0.1, "test": 0.1}, ["sum to 1, found [0.5, 0.1, 0.1]"]),
        ({"train": float("nan")}, [""]),
    ],
)
def test_mixtures_of_folds_and_shares_that_make_no_sense_are_refused(split: dict[str, Any], said: list[str]) -> None:
    text = refused(split=split)
    assert all(each in text for each in said), text


def test_folds_need_nothing_else_and_what_they_imply_may_be_said() -> None:
    split = made(split={"folds": 4, "fold": 3}).split
    assert (split.train, split.validation, split.test) == (pytest.approx(0.6), 0.15, 0.25)
    assert split.place is not None and tuple(split.place) == (3, 4)
    assert Split(train=0.6, test=0.25, folds=4, fold=3) == split
    assert (Split().train, Split().validation, Split().test, Split().place) == (0.5, 0.15, 0.35, None)
    assert "sites.t.test: with split.folds a fold is the test" in refused(
        split={"folds": 4, "fold": 0}, sites=sites(t={"test": ["p1"]})
    )


def test_what_looks_at_all_patients_is_refused_in_a_private_run() -> None:
    text = refused(
        privacy={"epsilon": 3.0, "delta": 1e-5},
        images={**WHOLE["images"], "normalize": "none", "components": 2},
        sites=sites(t={"part": {**EVEN, "least": 5}, "policy": {"public": ["counts"]}}),
    )
    assert "images.components: 2 fits principal axes to all training patients" in text
    assert "sites.t-2.part.least: 5 would be reached by looking at all patients" in text


@pytest.fixture(scope="module")
def done(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("parts")
    rows = [f"p{n},{n % 7},{n * n % 11},{n % 13},{int(n % 3 == 0)}\n" for n in range(90)]
    (folder / "t.csv").write_text("id,a,b,c,ill\n" + "".join(rows))
    data = copy.deepcopy(WHOLE)
    data["sites"]["t"]["source"]["file"] = str(folder / "t.csv")
    data["sites"]["t"]["part"] = {**EVEN, "tests": "source"}
    data |= {"split": {"folds": 3, "fold": 1}, "runs": str(folder), "images": {**WHOLE["images"], "components": 2}}
    (folder / "parts.yaml").write_text(yaml.safe_dump(data))
    assert run([str(folder / "parts.yaml"), "--until", "evaluate"]) == Exit.OK
    return folder


def test_each_hospital_has_its_training_patients_and_the_test_of_the_source(done: Path) -> None:
    shaped, tested = [], []
    for number in (1, 2, 3):
        home = done / "parts" / "sites" / f"t-{number}"
        (written,) = home.glob("cohorts/*/partition.json")
        said, split = json.loads(written.read_text()), json.loads((written.parent / "split.json").read_text())
        names = json.loads((home / "linkage.json").read_text())["patients"]
        assert sorted(said["patients"]) == sorted(split["train"] + split["validation"])
        assert sorted(said["shared_test"]) == sorted(split["test"])
        assert said["part"]["number"] == number and len(said["sizes"]) == 3
        shaped += [names[code] for code in said["patients"]]
        tested.append({names[code] for code in split["test"]})
    assert len(shaped) == len(set(shaped)) == 60
    assert tested[0] == tested[1] == tested[2] and len(tested[0]) == 30
    assert set(shaped) | tested[0] == {f"p{n}" for n in range(90)}


def test_a_model_in_a_hospitals_own_space_predicts_what_the_run_said(done: Path, tmp_path: Path) -> None:
    home = done / "parts" / "sites" / "t-2"
    told = predict([str(home / "ready" / "fedavg.safetensors"), str(done / "t.csv"), "--out", str(tmp_path)])
    assert told == Exit.OK
    with (tmp_path / "predictions.csv").open() as file:
        found = torch.tensor([float(line["score"]) for line in csv.DictReader(file)])
    (kept,) = home.glob("scores/fedavg-*.safetensors")
    scores = from_bytes(kept.read_bytes()).tensors["probabilities"][:, 1]
    assert len(found) == 90 and len(scores) == 30
    assert (found - scores[:, None]).abs().min(dim=1).values.max() < 1e-6  # six digits are written
    raw = read_ready(home / "ready" / "fedavg.safetensors")
    assert raw.axes is not None and tuple(raw.axes.axes.shape) == (2, 3) and raw.task.inputs == (2,)
