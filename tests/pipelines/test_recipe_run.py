"""A run whose learning rate changes over rounds and that may end early, from its settings to hospitals' records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import smallest

from federation.conversation import load_memory
from federation.outcome import load_outcome
from pipelines.coordinator.conversations import build_opening
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.config import Config
from privacy.message import as_mapping


def settings(**train: Any) -> dict[str, Any]:
    """Two hospitals, one linear layer on pixels, and a rate that falls."""
    made = smallest(name="recipe")
    for site in made["sites"].values():
        site.pop("work", None)
    made["model"] = {"name": "mlp", "hidden": []}
    made["train"] |= {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 4}, **train}
    made["train"]["work"] = {**made["train"].get("work", {}), "rate": {"name": "cosine", "warmup": 1}, "clip_norm": 1.0}
    made["audit"] = {"canaries": 0}
    return made


def run(made: dict[str, Any], folder: Path, monkeypatch: Any) -> Path:
    """The folder of a finished run."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(made))
    monkeypatch.chdir(folder)
    assert main([str(path)]) == Exit.OK
    return folder / "runs" / "recipe"


def test_hospitals_know_over_how_many_rounds_the_rate_changes(tmp_path, monkeypatch):
    finished = run(settings(), tmp_path, monkeypatch)
    (memory,) = (finished / "sites" / "a" / "conversations").glob("*/fedavg-*")
    opening = as_mapping(load_memory(DiskFolder(memory), 0).facts["opening"])
    assert opening["rounds"] == 4 and as_mapping(opening["work"])["rate"] == {"name": "cosine", "warmup": 1}


def test_training_ends_early_and_every_hospital_has_the_last_model(tmp_path, monkeypatch):
    made = settings()
    made["train"]["work"] |= {"optimizer": "sgd", "lr": 1e4, "clip_norm": 1e4}
    made["train"]["schedule"] = {"rounds": 30, "patience": 2}
    finished = run(made, tmp_path, monkeypatch)
    (folder,) = (finished / "federation").glob("fedavg-*")
    trained = json.loads(next((finished / "train").glob("*/fedavg.json")).read_text())
    outcome = load_outcome(DiskFolder(folder), trained["train_run"])
    assert outcome is not None and outcome.round == 31 and max(outcome.merged.values()) < 30
    assert (finished / "sites" / "a" / "ready" / "fedavg.safetensors").exists()
    assert main(["recipe.yaml"]) == Exit.OK  # nothing is trained again
    assert json.loads(next((finished / "train").glob("*/fedavg.json")).read_text()) == trained


@pytest.mark.parametrize(
    ("train", "work", "text"),
    [
        ({"schedule": {"rounds": 3, "patience": 0}}, {}, "patience"),
        ({}, {"rate": {"name": "cosine", "floor": 2.0}}, r"in \[0, 1\]"),
        ({}, {"rate": {"name": "linear"}}, "cosine"),
        ({}, {"clip_norm": 0.0}, "> 0 or null"),
        ({"methods": {"scaffold": {"name": "scaffold"}}}, {"optimizer": "sgd"}, "clip_norm"),
    ],
)
def test_settings_that_cannot_be_are_refused(train, work, text):
    made = settings(**train)
    made["train"]["work"] |= work
    with pytest.raises(ConfigError, match=text):
        validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def test_openings_of_a_constant_rate_are_as_they_were():
    made = settings()
    made["train"]["work"].pop("rate")
    config = validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)
    world = type("World", (), {"config": config})()
    opening = build_opening(world, "fedavg", "a", "cohort")  # type: ignore[arg-type]
    assert "rounds" not in opening and "rate" not in as_mapping(opening["work"])
