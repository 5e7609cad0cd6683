"""Buffered merging as runs have it: what each hospital pays, its ledger, the page, and settings that are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import smallest

from pipelines.coordinator.spending import count_rounds, plan_method
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from privacy.dp.accounting import compute_cost
from privacy.release import ledger as ledgers

UPDATES = {"a": 4, "b": 1, "c": 2}
"""a answers at 1, 2, 3, 4, c at 2, 4, and b at 4: four merges of a buffer of one."""


def settings(**changes: Any) -> dict[str, Any]:
    """Three hospitals, of which one is four times slower."""
    made = smallest(pooling="refused", privacy={"epsilon": 3.0, "views": 1}, **changes)
    made["sites"]["c"] = copy.deepcopy(made["sites"]["a"])
    for number, site in enumerate(made["sites"].values()):
        site["policy"] = {"budget": {"epsilon": 20.0}}
        site["source"] |= {"seed": number + 1, "patients": 16, "damaged": 0}
        site.pop("work", None)
    made["train"]["schedule"] = {"rounds": 4, "buffer": 1, "durations": {"b": 4, "c": 2}}
    made["audit"] = {"canaries": 0}
    return made


def changed_settings(change: dict[str, Any], base: dict[str, Any] | None = None) -> dict[str, Any]:
    """The settings with nested values replaced; of methods and durations the whole."""
    merged = dict(settings() if base is None else base)
    for key, value in change.items():
        is_nested = isinstance(value, dict) and key not in ("methods", "durations", "merge")
        merged[key] = changed_settings(value, merged[key]) if is_nested else value
    return merged


def check(made: dict[str, Any]) -> Config:
    """The settings, as YAML has them."""
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("buffered")
    path = folder / "buffered.yaml"
    path.write_text(yaml.safe_dump(settings(name="buffered")))
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        assert main([str(path)]) == Exit.OK
    return folder / "runs" / "buffered"


def trainings(run: Path, site: str) -> list[dict[str, Any]]:
    """The lines of a hospital's ledger with which updates left."""
    lines = ledgers.read_lines(run / "sites" / site / "ledger.jsonl")
    return [dict(line) for line in lines if line.get("request") == "train" and not line.get("refused")]


def test_each_hospital_books_the_updates_that_were_announced_and_no_other(finished: Path) -> None:
    assert {site: len(trainings(finished, site)) for site in UPDATES} == UPDATES
    assert [line["round"] for line in trainings(finished, "a")] == [1, 2, 3, 4]
    assert [line["round"] for line in trainings(finished, "b")] == [1]
    assert [line["round"] for line in trainings(finished, "c")] == [1, 3]


def test_each_hospital_is_promised_what_its_own_updates_cost(finished: Path) -> None:
    """The plan is of its number of updates: who trains less often adds less noise, for the same epsilon."""
    config = check(settings(name="buffered"))
    assert {site: count_rounds(config, "fedavg", site) for site in UPDATES} == UPDATES
    plans = {site: plan_method(config, "fedavg", site) for site in UPDATES}
    assert plans["a"].protection.noise > plans["c"].protection.noise > plans["b"].protection.noise
    for site, plan in plans.items():
        lines = [*ledgers.charged_lines(ledgers.read_lines(finished / "sites" / site / "ledger.jsonl"))]
        booked = [event for line, event in lines if line["request"] != "ingest"]  # noised counts are booked there
        counted = compute_cost(booked, 1e-5).epsilon
        assert 2.9 < counted <= plan.cost.epsilon + 1e-6 and plan.cost.epsilon <= 3.0
        alone = [event for line, event in lines if line["request"] == "train"]
        assert len(alone) == UPDATES[site]


def test_the_page_says_who_was_waited_for(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "A merge waits for 1 hospital and no other (schedule.buffer, of fedavg)" in page
    assert "hospitals train 1 (b) to 4 times" in page
    assert "4 merges end at 4, where 4 rounds of everybody would end at 16" in page


def test_a_check_says_who_will_be_waited_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buffered.yaml"
    path.write_text(yaml.safe_dump(settings(name="buffered")))
    assert main([str(path), "--check"]) == Exit.OK
    text = " ".join("".join(capfd.readouterr()).split())
    assert "hospitals train 1 (b) to 4 times" in text and "4 merges end at 4" in text


def test_a_run_in_rounds_keeps_its_name() -> None:
    """Its settings have no new field, so that nothing is trained and charged again."""
    plain = check(changed_settings({"train": {"schedule": {"buffer": None, "durations": {}}}}))
    assert to_plain(plain.train.schedule) == {"rounds": 4, "participation": 1.0, "quorum": 1.0, "deadline_s": None}
    assert json.dumps(to_plain(check(settings()).train.schedule), sort_keys=True).count("buffer") == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"train": {"methods": {"s": {"name": "fedsgd"}}}}, "fedsgd merges more than a weighted mean of updates"),
        ({"train": {"secure_sum": True}}, "in a sum nobody sees whose update is late"),
        ({"train": {"schedule": {"buffer": 4}}}, "must be at most 3, the number of hospitals that train, found 4"),
        ({"train": {"schedule": {"durations": {"d": 2}}}}, "no such hospital trains; those that do are a, b, c"),
        ({"train": {"schedule": {"rounds": 2}}}, "2 merges end before b has answered once"),
        ({"train": {"merge": {"name": "median"}}}, "median needs 3 replies a round, found 1: 3 hospitals, of which a"),
    ],
)
def test_settings_that_merge_nobody_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check(changed_settings(change))


def test_who_sends_nothing_waits_for_nobody_and_is_allowed() -> None:
    config = check(changed_settings({"train": {"methods": {"l": {"name": "local"}, "f": {"name": "fedavg"}}}}))
    assert count_rounds(config, "l", "b") == 4 and count_rounds(config, "f", "b") == 1
