"""A hospital whose updates stand out, as the settings, the coordinator's page and its files have it."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import smallest

from federation.engine import Answers, InProcess
from pipelines.coordinator.trained import read_trained
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from privacy.message import Call, Message, as_mapping

METHODS = {"fedavg": {"name": "fedavg"}, "by_median": {"name": "fedavg"}, "local": {"name": "local"}}


def settings(hospitals: int = 5, **train: Any) -> dict[str, Any]:
    """Hospitals with one linear layer on pixels."""
    made = smallest(name="poisoned")
    made["sites"] = {name: copy.deepcopy(made["sites"]["a"]) for name in "abcde"[:hospitals]}
    for number, site in enumerate(made["sites"].values()):
        site["source"] |= {"seed": number + 1, "patients": 12 + 4 * number, "damaged": 0}
        site.pop("work", None)
    made["model"] = {"name": "mlp", "hidden": []}
    made["train"] |= {"methods": METHODS, "method_merge": {"by_median": {"name": "median"}}, **train}
    made["train"]["schedule"] = {"rounds": 3}
    made["audit"] = {"canaries": 0}
    return made


def check(made: dict[str, Any]) -> Config:
    """The settings, as YAML has them."""
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def poison_reply(reply: Message, sent: Message) -> Message:
    """The reply with its update turned round and fifty times as large, of far more patients than there are."""
    tensors = {n: sent.tensors[n] - 50 * (v - sent.tensors[n]) for n, v in reply.tensors.items()}
    return Message(tensors, {**reply.facts, "algorithm": {**as_mapping(reply.facts["algorithm"]), "n": 5_000_000}})


ask_honestly = InProcess.ask


def ask_with_a_poisoner(
    engine: InProcess, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None
) -> Answers:
    """As `InProcess.ask`, where hospital e poisons what leaves after the first round."""
    answers = ask_honestly(engine, call, messages, deadline_s=deadline_s)
    if call.request != "train" or call.round < 2 or not (reply := answers.replies.get("e")) or not reply.tensors:
        return answers
    return Answers({**answers.replies, "e": poison_reply(reply, messages["e"])}, answers.missing)


@pytest.fixture(scope="module", params=["honest", "poisoned"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Whether a hospital poisoned a run, and the run's folder."""
    folder = tmp_path_factory.mktemp(request.param)
    path = folder / "poisoned.yaml"
    path.write_text(yaml.safe_dump(settings()))
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        if request.param == "poisoned":
            changed.setattr(InProcess, "ask", ask_with_a_poisoner)
        assert main([str(path)]) == Exit.OK
    return request.param, folder / "runs" / "poisoned"


def test_the_page_points_at_the_hospital_and_says_what_the_rule_did(finished):
    kind, run = finished
    answers = json.loads(next(run.glob("report/*/answers.json")).read_text())
    notices = {
        (text.split(" in ")[0], text.split(" in ")[1].split(",")[0]): text
        for text in (notice["text"] for notice in answers["look"] if notice["what"] == "Update stands out")
    }
    page = html.unescape((run / "report.html").read_text())
    if kind == "honest":
        assert not notices and "No hospital's update stands out" in page
        return
    assert notices.keys() == {("e", "fedavg"), ("e", "by_median")}
    assert "rounds 2 to 3" in notices["e", "fedavg"] and "5,000,000 examples" in notices["e", "fedavg"]
    assert "full weight" in notices["e", "fedavg"] and "train.merge" in notices["e", "fedavg"]
    assert "counted once" in notices["e", "by_median"] and "train.merge" not in notices["e", "by_median"]
    assert "Replies are merged by median (by_median); mean (fedavg)" in page


def test_what_was_measured_is_kept_with_the_training(finished):
    kind, run = finished
    trained = {label: read_trained(next(run.glob("train/*")), label) for label in METHODS}
    assert trained["local"].outliers is None
    for label in ("fedavg", "by_median"):
        if kind == "honest":
            assert trained[label].outliers is None
            continue
        (outlier,) = trained[label].outliers or ()
        assert outlier.site == "e" and outlier.rounds == (2, 3) and outlier.times > 20 and outlier.opposed


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (settings(merge={"name": "krum", "attackers": 2}), "krum needs 7 replies a round, found 5"),
        (settings(2), "median needs 3 replies a round, found 2"),
        (settings(methods={"a": {"name": "fedfomo"}}, method_merge={}, merge={"name": "median"}), "needs more of each"),
        (settings(method_merge={"other": {"name": "median"}}), "no such method"),
        (settings(merge={"name": "median"}, method_merge={}, secure_sum=True), "only their sum is seen"),
        (settings(merge={"name": "norm_bounded"}, method_merge={}, secure_sum=True), "norm_bounded with a bound"),
        (settings(merge={"name": "trimmed_mean", "trimmed": 0}), ">= 1"),
        (settings(merge={"name": "norm_bounded", "bound": 0.0}), "> 0 or null"),
    ],
)
def test_rules_that_cannot_be_are_refused_before_anything_runs(made, text):
    with pytest.raises(ConfigError, match=text):
        check(made)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "norm_bounded"])
def test_local_lines_and_averaging_methods_take_every_rule(rule):
    assert check(settings(merge={"name": rule}, method_merge={})).train.rule_of("local").name == rule
