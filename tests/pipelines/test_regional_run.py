"""A run whose hospitals answer through regional coordinators: the same ledgers, events and scores as without."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from laws.test_regions import MEMBERS, build_regions
from small_run import smallest

from federation.engine import Engine
from pipelines.coordinator.stages import train
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.message import Call, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused

KEYS = ("round", "request", "event", "bytes", "recipient", "refused")


def settings(name: str) -> dict[str, Any]:
    """Three hospitals that let parameters leave in sums over three alone."""
    made = smallest(name=name, pooling="refused")
    made["sites"]["c"] = copy.deepcopy(made["sites"]["a"])
    for number, site in enumerate(made["sites"].values()):
        site["policy"] = {"secure_sum": {"hospitals": 3}}
        site["source"] |= {"seed": number + 1, "damaged": 0}
        site.pop("work", None)
    made["train"] |= {"secure_sum": True, "schedule": {"rounds": 2}}
    made["audit"] = {"canaries": 0, "membership": False}
    return made


def ask_alone(engine: Engine, site: str, call: Call, message: Message) -> Message:
    """One hospital's answer, as its region gets it."""
    answers = engine.ask(call, {site: message})
    if site in answers.missing:
        raise Refused(answers.missing[site])
    return answers.replies[site]


def run_with(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a finished run. It is made in one place and moved: keys, which divide patients, follow from it."""
    place = folder / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    path = place / "sums.yaml"
    path.write_text(yaml.safe_dump(settings("sums")))
    assert main([str(path)]) == Exit.OK
    return place.rename(folder / name) / "runs" / "sums"


def test_each_ledger_says_the_same_with_regions_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What left, in which round, of what size, by what mechanism, to whom; and everybody's scores are the same."""
    flat = run_with(tmp_path, "flat", monkeypatch)
    conduct = train.conduct_training

    def conduct_by_regions(engine: Engine, *arguments: Any, **options: Any) -> Any:
        workers = {site: partial(ask_alone, engine, site) for site in engine.sites}
        return conduct(build_regions(workers), *arguments, **options)

    monkeypatch.setattr(train, "conduct_training", conduct_by_regions)
    tall = run_with(tmp_path, "tall", monkeypatch)
    assert sorted(site for sites in MEMBERS.values() for site in sites) == ["a", "b", "c"]
    for site in "abc":
        lines = [
            [
                {key: line.get(key) for key in KEYS} | {"run": re.sub("[0-9a-f]{12}", "", str(line.get("run")))}
                for line in ledgers.read_lines(run / "sites" / site / "ledger.jsonl")
            ]
            for run in (flat, tall)
        ]
        assert lines[0] == lines[1]
        assert sum(line["request"] == "train" for line in lines[0]) == 2
    scores = [json.loads(next(run.glob("report/*/report.json")).read_text())["methods"] for run in (flat, tall)]
    assert scores[0] == scores[1]
