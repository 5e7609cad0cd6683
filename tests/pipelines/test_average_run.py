"""Runs that score the average of each model over rounds, from their settings to hospitals' files and pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import PRIVATE, smallest

from federation.participant import list_averages
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.config import Config
from privacy.message import from_bytes, unseal_parts


def settings(**evaluate: Any) -> dict[str, Any]:
    """Two hospitals, a network with and one without rounds, no validation patients."""
    made = smallest(name="averaged", split={"train": 0.5, "validation": 0.0, "test": 0.5})
    made["train"] |= {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 4}}
    made["evaluate"] = {"copies": 2, "reference": None, "checkpoint": "average", **evaluate}
    made["audit"] = {"canaries": 0}
    return made


def run(made: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished run."""
    path = folder / "averaged.yaml"
    path.write_text(yaml.safe_dump(made))
    monkeypatch.chdir(folder)
    assert main([str(path)]) == Exit.OK
    return folder / "runs" / str(made["name"])


def models(finished: Path, site: str) -> DiskFolder:
    """The models of a hospital's only training."""
    (folder,) = (finished / "sites" / site / "models").glob("*/fedavg-*")
    return DiskFolder(folder)


def refused(made: dict[str, Any], text: str) -> None:
    """Hold that these settings are refused with a problem in these words."""
    with pytest.raises(ConfigError, match=text):
        validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def served(finished: Path, site: str) -> dict[str, Any]:
    """The facts and tensors of the model that a hospital serves."""
    message = from_bytes(unseal_parts((finished / "sites" / site / "ready" / "fedavg.safetensors").read_bytes()))
    return {**message.facts, "tensors": dict(message.tensors)}


def test_hospitals_serve_the_average_and_a_variant_scores_another_checkpoint(tmp_path, monkeypatch):
    finished = run(settings(variants={"last": {"of": "fedavg", "checkpoint": "latest"}}), tmp_path, monkeypatch)
    folder = models(finished, "a")
    assert list_averages(folder)[-1] == 4
    average, latest = (from_bytes(unseal_parts(folder.read(name))).tensors for name in ("average-4", "4"))
    ready = served(finished, "a")
    assert (ready["checkpoint"], ready["round"]) == ("average", 4)
    same = [name for name, value in average.items() if bool((value != latest[name]).any())]
    assert same, "no parameter of the average differs from the last round's"
    assert all(bool((ready["tensors"][name] == average[name]).all()) for name in same if name in ready["tensors"])
    assert "average" in (finished / "report.html").read_text()


def test_an_average_that_is_damaged_or_gone_is_noticed_and_made_again(tmp_path, monkeypatch):
    finished = run(settings(), tmp_path, monkeypatch)
    before = served(finished, "a")["tensors"]
    for name in list_averages(models(finished, "a")):
        models(finished, "a").remove(f"average-{name}")
    assert main(["averaged.yaml"]) == Exit.OK
    folders = sorted((finished / "sites" / "a" / "models").glob("*/fedavg-*"))
    assert len(folders) == 2, "the training was not repeated"
    after = served(finished, "a")["tensors"]
    assert all(bool((after[name] == value).all()) for name, value in before.items())


def test_a_private_run_spends_no_more_for_an_average(tmp_path, monkeypatch):
    spent = {}
    for checkpoint in ("global", "average"):
        made = {**PRIVATE, "name": checkpoint, "audit": {"canaries": 0}}
        made["train"] = {**PRIVATE["train"], "schedule": {"rounds": 2}}
        made["evaluate"] = {**PRIVATE["evaluate"], "checkpoint": checkpoint}
        finished = run(made, tmp_path, monkeypatch)
        lines = [json.loads(line) for line in (finished / "sites" / "a" / "ledger.jsonl").read_text().splitlines()]
        spent[checkpoint] = [(line["request"], line["event"]) for line in lines]
        assert (list_averages(models(finished, "a")) != []) is (checkpoint == "average")
    assert spent["average"] == spent["global"]


def test_external_sites_get_an_average_only_where_all_hospitals_have_the_same():
    made = settings()
    made["sites"]["c"] = {"source": {"kind": "phantom", "scanner": "D", "patients": 8, "seed": 9}}
    for site in ("a", "b"):
        made["sites"][site]["policy"] = {"recipients": ["coordinator", "outside"]}
    lines = {"as_trained": {"how": {"name": "as_trained"}}}
    made |= {"outside": ["c"], "route": {"shared": "fedavg", "personal": "fedavg", "lines": lines}}
    made["train"]["schedule"] = {"rounds": 2, "participation": 0.5}
    refused(made, "averages of their own")
