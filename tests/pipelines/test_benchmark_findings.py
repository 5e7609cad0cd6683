"""A signed model of several findings at hospitals that never trained: each finding is scored where it is known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score

from federation.models.mlp import Mlp
from pipelines.data.images import Features
from pipelines.data.sources import TableSource
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from privacy.message import from_bytes
from privacy.release import ledger as ledgers
from signed_models import finished, public_key, write_signed

NAMES = ("edema", "effusion", "nodule")
COLUMNS = {name: name for name in NAMES}
SOURCE = TableSource(file=".", findings=COLUMNS)
NUMBERS = Features(numbers=("x0", "x1", "x2"), normalize="none")
TRUSTED: dict[str, Any] = {"trusted_models": {"owner": public_key()}}
PRIVATE: dict[str, Any] = {**TRUSTED, "budget": {"epsilon": 50.0, "delta": 1e-4}}


def written(folder: Path) -> Path:
    """A model whose probability of each finding follows from one column."""
    params = {"head.weight": torch.eye(3) * 2, "head.bias": torch.zeros(3)}
    facts = {"kind": "findings", "classes": 3, "names": [*NAMES], "findings": [*NAMES]}
    data = finished(model=Mlp(hidden=()), images=NUMBERS, source=SOURCE, params=params, **facts)
    return write_signed(folder / "chest.safetensors", data)


def patients(seed: int, noise: float, number: int = 240) -> tuple[np.ndarray, np.ndarray]:
    """Columns and states; a tenth of the states is unknown, 2."""
    chance = np.random.default_rng(seed)
    states = chance.integers(0, 2, (number, 3))
    x = (2 * states - 1) + noise * chance.normal(size=states.shape)
    states[chance.random(states.shape) < 0.1] = 2
    return x.round(4), states


def site(folder: Path, name: str, seed: int, noise: float, policy: dict[str, Any]) -> dict[str, Any]:
    lines = ["x0,x1,x2," + ",".join(NAMES)]
    for numbers, states in zip(*patients(seed, noise), strict=True):
        lines.append(",".join([*map(str, numbers), *("" if state == 2 else str(state) for state in states)]))
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / f"home {name}").mkdir()
    source = {"kind": "table", "file": str(folder / f"{name}.csv"), "findings": dict(COLUMNS)}
    return {"source": source, "policy": policy, "home": str(folder / f"home {name}")}


def benchmarked(folder: Path, sites: dict[str, Any], **plan: Any) -> int:
    said = {"models": {"chest": str(written(folder))}, "copies": 50, **plan}
    path = folder / "bench.yaml"
    path.write_text(yaml.safe_dump({"name": "bench", "benchmark": said, "sites": sites}))
    return run([str(path)])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_hospitals_score_each_finding_and_the_worst_stands_first(place: Path) -> None:
    noises = {"east": (1, 1.0), "west": (2, 3.0)}
    sites = {name: site(place, name, seed, noise, TRUSTED) for name, (seed, noise) in noises.items()}
    assert benchmarked(place, sites) == Exit.OK
    root = place / "runs/bench"
    facts = json.loads((root / "benchmark.json").read_text())
    assert facts["measure"] == "AUC" and [each["site"] for each in facts["hospitals"]] == ["west", "east"]
    with (root / "scores.csv").open() as file:
        rows = {(row["measure"], row["sites"]): float(row["value"]) for row in csv.DictReader(file) if row["value"]}
    for name, (seed, noise) in noises.items():
        x, states = patients(seed, noise)
        each = []
        for k, finding in enumerate(NAMES):
            known = states[:, k] != 2
            each.append(roc_auc_score(states[known, k], x[known, k]))
            assert rows[f"AUC {finding}", name] == pytest.approx(each[-1], abs=0.01)
        assert rows["AUC", name] == pytest.approx(np.mean(each), abs=0.01)
    page = (root / "benchmark.html").read_text()
    assert "AUC effusion" in page and "sensitivity effusion" not in page


def test_a_hospital_that_promises_privacy_answers_with_noise_for_all_findings_together(place: Path) -> None:
    assert benchmarked(place, {"east": site(place, "east", 1, 0.5, PRIVATE)}, epsilon=8.0) == Exit.OK
    reply = from_bytes((place / "runs/bench/replies/chest.east.safetensors").read_bytes())
    assert set(reply.tensors) == {"finding_scale", "finding_noised"} and reply.facts["noise"] > 0
    lines = [line for line in ledgers.read_lines(place / "home east/ledger.jsonl") if line["request"] == "benchmark"]
    assert [line["refused"] for line in lines] == [None] and "non_private" not in json.dumps(lines[0]["event"])


def test_a_hospital_without_these_findings_gives_no_score(place: Path) -> None:
    odd = site(place, "east", 1, 1.0, TRUSTED)
    file = place / "east.csv"
    file.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in file.read_text().splitlines()))
    assert benchmarked(place, {"east": odd, "west": site(place, "west", 2, 1.0, TRUSTED)}) == Exit.OK
    facts = json.loads((place / "runs/bench/benchmark.json").read_text())
    assert [each["verdict"] for each in facts["hospitals"]] == ["no score", "scored"]
    assert facts["hospitals"][0]["reasons"]["chest"]["code"] == "bad_source"
