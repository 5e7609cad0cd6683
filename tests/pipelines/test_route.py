"""Hospitals outside the federation: who gets models, from what they learn, and what is told of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from evaluation.masks import Values
from evaluation.overlap import DICE, from_tensors
from pipelines.exits import Exit
from pipelines.run import main as run
from pipelines.site.route import averaged
from pipelines_settings import BASE
from privacy import ledger as book
from privacy.message import from_bytes

OPEN = {"recipients": ["coordinator", "outside"]}
LINES = {
    "as_trained": {"how": {"name": "as_trained"}},
    "average": {"how": {"name": "average"}},
    "ensemble": {"how": {"name": "ensemble"}},
    "tent": {"how": {"name": "tent", "epochs": 1}},
    "ttt": {"how": {"name": "ttt", "epochs": 1}, "shared": "turns"},
    "routing": {"how": {"name": "routing", "epochs": 2, "radius": 2}},
    "online": {"how": {"name": "routing", "mode": "online", "radius": 2}},
}


def settings(**changes: object) -> dict[str, object]:
    made = copy.deepcopy(BASE)
    site = {"kind": "phantom", "scanner": "A", "patients": 6, "slices": 4}
    made["sites"] = {
        "north": {"source": {**site, "seed": 1}, "policy": OPEN},
        "south": {"source": {**site, "seed": 2, "scanner": "L", "format": "nifti"}, "policy": OPEN},
        "west": {"source": {**site, "seed": 3, "scanner": "D"}},
    }
    made |= {
        "pooling": "refused",
        "task": {"kind": "segmentation", "target": "gland"},
        "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
        "model": {"name": "unet", "width": 4, "levels": 1},
        "train": {
            "schedule": {"rounds": 1},
            "work": {"lr": 0.01, "batch": 8},
            "methods": {
                "fedavg": {"name": "fedavg", "weights": "uniform"},
                "iopfl": {"name": "iopfl"},
                "turns": {"name": "fedavg_turns"},
            },
        },
        "evaluate": {"checkpoint": "latest", "copies": 3, "public": False},
        "audit": {"membership": False},
        "outside": ["west"],
        "route": {"shared": "fedavg", "personal": "iopfl", "lines": LINES},
    }
    return {**made, **changes}


def write(folder: Path, said: dict[str, object]) -> str:
    (folder / "tiny.yaml").write_text(yaml.safe_dump(said))
    return str(folder / "tiny.yaml")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("route")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run([write(folder, settings())]) == Exit.OK
    (found,) = (folder / "runs").glob("tiny*")
    return found


def scores(root: Path) -> dict[str, object]:
    (artifact,) = (path.parent for path in root.glob("route/*/index.json"))
    index = json.loads((artifact / "index.json").read_text())
    return {one["label"]: from_tensors(from_bytes((artifact / one["file"]).read_bytes()).tensors) for one in index}


def test_every_line_scores_all_patients_of_the_hospital_outside(done):
    found = scores(done)
    assert set(found) == set(LINES)
    for one in found.values():
        assert one.patients == 6
        assert len(one.totals) == 4
        assert 0 <= DICE.of(one)[0] <= 1


def test_the_hospital_outside_takes_no_part_in_training(done):
    requests = {line["request"] for line in book.lines(done / "sites" / "west" / "ledger.jsonl")}
    assert "route" in requests
    assert not requests & {"introduce", "train", "finish", "export", "evaluate"}


def test_handing_out_models_is_booked_for_whom_it_is(done):
    for site in ("north", "south"):
        lines = [line for line in book.lines(done / "sites" / site / "ledger.jsonl") if line["request"] == "export"]
        assert len(lines) == 3, "one for each method that a line needs"
        assert {line["recipient"] for line in lines} == {"outside"}


def test_what_adaptation_came_to_stays_at_the_hospital(done):
    files = list((done / "sites" / "west" / "scores").glob("route-*.safetensors"))
    told = {(facts := from_bytes(path.read_bytes()).facts)["line"]: facts for path in files}
    assert set(told) == set(LINES)
    assert len(told["routing"]["losses"]) == 3
    assert told["routing"]["experts"] == ["north", "south", "*"]
    assert told["routing"]["why"]
    assert "losses" not in told["ensemble"]


def test_an_average_is_the_mean_of_each_patients_scores_over_models_that_have_one():
    nothing = np.nan
    one = np.array([[[0.25, 3.0]], [[nothing, nothing]]])
    two = np.array([[[0.75, nothing]], [[nothing, nothing]]])
    present = np.array([[True], [True]])
    found = averaged([Values(np.arange(2), scores, present, 8) for scores in (one, two)])
    assert np.array_equal(found.scores, [[[0.5, 3.0]], [[nothing, nothing]]], equal_nan=True)
    assert found.images == 8


def test_the_pages_say_who_was_outside_and_how_it_went(done):
    rows = json.loads(next(done.glob("report/*/scores.json")).read_text())
    outside = {row["method"]: row["value"] for row in rows if row["protocol"] == "outside" and row["measure"] == "Dice"}
    assert outside == {label: pytest.approx(DICE.of(one)[0]) for label, one in scores(done).items()}
    page = (done / "report.html").read_text()
    assert "Hospitals outside the federation" in page
    assert "adapted on the images that it is scored on" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"outside": []}, "outside: missing"),
        ({"evaluate": {"checkpoint": "local"}}, "route: models of each site's own best round are no common one"),
        ({"outside": ["east"]}, "outside: 'east' is no site"),
        ({"outside": ["north", "south", "west"]}, "outside: names every site"),
        ({"route": {"shared": "fedavg", "personal": "nobody"}}, "route.lines.routing: personal: 'nobody' is no method"),
        (
            {"route": {"shared": "fedavg", "personal": "iopfl", "lines": {"ttt": {"how": {"name": "ttt"}}}}},
            "route.lines.ttt: shared: fedavg is fedavg; ttt goes with fedavg_turns",
        ),
    ],
)
def test_what_cannot_be_done_is_told_with_the_settings(tmp_path, capsys, change, said):
    assert run([write(tmp_path, settings(**change)), "--check"]) == Exit.CONFIG
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_policy_that_does_not_hand_models_out_is_named_before_and_kept_at_the_hospital(tmp_path, capsys, monkeypatch):
    said = settings()
    said["sites"]["north"]["policy"] = {}
    assert run([write(tmp_path, said), "--check"]) == Exit.CONFIG
    assert "sites.north.policy.recipients: route hands this site's models" in " ".join(capsys.readouterr().err.split())


def test_a_method_whose_models_differ_cannot_stand_for_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = {"as_trained": {"how": {"name": "as_trained"}}}
    said = settings(route={"shared": "iopfl", "personal": "iopfl", "lines": lines})
    assert run([write(tmp_path, said)]) != Exit.OK
    assert "iopfl stands for one model of all hospitals" in " ".join(capsys.readouterr().err.split())


def test_parts_of_one_source_may_lie_inside_and_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = settings(route={"shared": "fedavg", "personal": "iopfl", "lines": {"x": {"how": {"name": "ensemble"}}}})
    source = {"kind": "phantom", "scanner": "A", "patients": 24, "slices": 4, "seed": 1}
    said["sites"] = {"one": {"source": source, "policy": OPEN, "part": {"kind": "even", "of": 3}}}
    said["outside"] = ["one-3"]
    assert run([write(tmp_path, said)]) == Exit.OK
    folder = tmp_path / "runs" / "tiny" / "sites"
    seen = {
        site: set(json.loads(next((folder / site).glob("cohorts/*/split.json")).read_text())["train"])
        for site in ("one-1", "one-2", "one-3")
    }
    assert not (seen["one-1"] | seen["one-2"]) & seen["one-3"]
