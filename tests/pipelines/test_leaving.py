"""Hospitals that leave and join a run of moments, from YAML: what others send again, and what their models become."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
import yaml

from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.message import from_bytes, unseal_parts
from privacy.release import ledger

SITES = {**BASE["sites"], "c": {**BASE["sites"]["a"]}}
PRIVATE = {"epsilon": 5.0, "delta": 1e-3, "clip": 1.0, "sampling": 0.5}


def asked(folder: Path, names: str, *options: str, privacy="none") -> None:
    """Train moments at these hospitals, in this folder."""
    made = copy.deepcopy(BASE) | {"pooling": "refused", "privacy": privacy}
    made["sites"] = {name: {**copy.deepcopy(SITES[name]), "policy": {}} for name in names}
    made["train"] = {"schedule": {"rounds": 2}, "work": {}, "methods": {"moments": {"name": "moments"}}}
    made["model"] = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    made["evaluate"] = {"copies": 0, "public": False, "checkpoint": "latest"}
    made["audit"] = {"membership": False, "canaries": 0}
    (folder / "it.yaml").write_text(yaml.safe_dump(made))
    os.chdir(folder)
    assert run(["it.yaml", "--until", "train", *options]) == Exit.OK


def requests(folder: Path, name: str) -> list[str]:
    lines = ledger.read_lines(folder / "runs" / BASE["name"] / "sites" / name / "ledger.jsonl")
    return [line["request"] for line in lines if line["request"] in ("introduce", "train", "finish")]


def model(folder: Path, name: str):
    """The newest model of the newest conversation at a hospital."""
    home = folder / "runs" / BASE["name"] / "sites" / name
    found = json.loads(max(folder.rglob("train/*/moments.json"), key=os.path.getmtime).read_text())
    files = [path for path in home.rglob(f"{found['train_run'].rpartition('/')[2]}/*") if path.name.isdigit()]
    newest = max(files, key=lambda path: int(path.name))
    return from_bytes(unseal_parts(newest.read_bytes())).tensors


def same(one, two) -> bool:
    return one.keys() == two.keys() and all((value == two[name]).all() for name, value in one.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("leaving")
    asked(folder, "abc")
    return folder


def test_who_leaves_is_in_no_model_and_who_joins_is_asked_alone(whole):
    three = model(whole, "a")
    asked(whole, "ab")
    two = model(whole, "a")
    assert requests(whole, "a") == ["introduce", "train", "finish", "finish"], "nothing is trained again"
    assert not same(two, three)
    asked(whole, "abc")
    assert requests(whole, "a").count("train") == 1
    assert requests(whole, "c").count("train") == 2, "who comes back sends again"
    assert same(model(whole, "a"), three), "bit for bit what it was"
    asked(whole, "ab", "--fresh")  # a run that never heard of c
    assert requests(whole, "a").count("train") == 2
    assert same(model(whole, "a"), two), "bit for bit a run without c"


def test_in_a_private_run_others_pay_no_epsilon_for_it(tmp_path):
    asked(tmp_path, "abc", privacy=PRIVATE)
    home = tmp_path / "runs" / BASE["name"] / "sites" / "a" / "ledger.jsonl"
    before = ledger.spent_events(ledger.read_lines(home))
    asked(tmp_path, "ab", privacy=PRIVATE)
    from privacy.dp.accounting import compute_cost

    now = ledger.spent_events(ledger.read_lines(home))
    assert requests(tmp_path, "a") == ["introduce", "train", "finish", "finish"]
    assert compute_cost(now, 1e-3).epsilon == compute_cost(before, 1e-3).epsilon
