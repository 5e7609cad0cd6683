"""The whole run over a wire, and over what FLARE's two sides do: every message serialized, the same bits in the end."""

from __future__ import annotations

import functools
import json
import threading
from multiprocessing import active_children
from pathlib import Path

import pytest
import yaml
from planned_settings import own_settings

import pipelines.hospital.simulated
from consilium.testing import testbed
from flare_in_process import flare
from pipelines.run import main
from privacy.message import to_bytes
from privacy.release import ledger as ledgers

GOLDEN = (Path(__file__).parents[1] / "golden" / "tiny" / "tiny.yaml").read_text()
SMALL = yaml.safe_dump(
    yaml.safe_load(GOLDEN)
    | {
        "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0},
        "train": {
            "schedule": {"rounds": 2},
            "work": {"lr": 0.01, "batch": 16},
            "methods": {name: {"name": name} for name in ("fedavg", "fedper", "central")},
        },
        "evaluate": {"copies": 5, "reference": None},
    }
)
QUANTIZED = yaml.safe_dump(
    yaml.safe_load(SMALL)
    | {
        "train": yaml.safe_load(SMALL)["train"]
        | {"methods": {name: {"name": name} for name in ("scaffold", "fenda", "central")}, "upload": {"name": "int8"}}
        | {"work": {"lr": 0.01, "batch": 16, "optimizer": "sgd"}},
    }
)

OWN_PLANS = yaml.safe_dump(own_settings(name="golden"))
"""Hospitals with unlike networks, which share what these have in common."""
SLOW = [pytest.param(settings, marks=pytest.mark.slow) for settings in (OWN_PLANS, GOLDEN)]


class Weighing:
    """An engine that weighs every reply that passes through it."""

    def __init__(self, engine) -> None:
        self.engine, self.sites = engine, engine.sites
        self.weighed: dict[str, list[int]] = {}

    def ask(self, call, messages, *, deadline_s=None):
        answers = self.engine.ask(call, messages, deadline_s=deadline_s)
        for site, reply in answers.replies.items():
            self.weighed.setdefault(site, []).append(len(to_bytes(reply)))
        return answers


def over_flare(workers):
    """Over what FLARE's two sides do, without FLARE. Hospitals that share a process share its chance: one at a time."""
    turn = threading.Lock()

    def in_turn(worker, call, message):
        with turn:
            return worker(call, message)

    return flare({site: functools.partial(in_turn, worker) for site, worker in workers.items()})


def results(folder: Path) -> tuple[dict[str, bytes], object]:
    root = folder / "runs" / "golden"
    state = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob("federation/**/state"))}
    models = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob("sites/*/models/**/*")) if p.is_file()}
    (scores,) = root.glob("report/*/scores.json")
    return {**state, **models}, json.loads(scores.read_text())


@pytest.mark.parametrize(
    "settings", [SMALL, QUANTIZED, OWN_PLANS, SLOW[-1]], ids=["small", "quantized", "own plans", "golden"]
)
@pytest.mark.parametrize("way", [testbed.SerializingEngine, over_flare])
def test_what_passes_in_process_passes_over_a_wire(finished_run, settings, way, tmp_path, monkeypatch):
    near = results(finished_run(settings))
    made = []

    def engine(workers):
        made.append(Weighing(way(workers)))
        return made[-1]

    monkeypatch.setattr(pipelines.hospital.simulated, "InProcess", engine)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(settings)
    assert main(["tiny.yaml"]) == 0
    assert results(tmp_path) == near
    assert len(near[0]) >= 10
    (weighed,) = (one.weighed for one in made if one.sites)
    for site in "ab":
        lines = list(ledgers.read_lines(tmp_path / "runs" / "golden" / "sites" / site / "ledger.jsonl"))
        written = [line["bytes"] for line in lines]
        assert set(written) == set(weighed[site]), "a byte left that is not in the ledger"
        if (
            way is testbed.SerializingEngine
        ):  # over FLARE's sides, what was just answered is answered again without being written again
            assert written == weighed[site]


@pytest.mark.parametrize("settings", [SMALL, QUANTIZED, *SLOW], ids=["small", "quantized", "own plans", "golden"])
def test_hospitals_in_processes_of_their_own_give_the_same_bits(finished_run, settings, tmp_path, monkeypatch):
    near = results(finished_run(settings))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(settings)
    assert main(["tiny.yaml", "--set", "processes=2"]) == 0
    assert results(tmp_path) == near
    assert not [one for one in active_children() if one.name == "simulated sites"], "they end with the run"
    for site in "ab":
        lines = list(ledgers.read_lines(tmp_path / "runs" / "golden" / "sites" / site / "ledger.jsonl"))
        assert {"train", "evaluate"} <= {line["request"] for line in lines}
    assert main(["tiny.yaml"]) == 0, "and the setting makes no stage run again"
