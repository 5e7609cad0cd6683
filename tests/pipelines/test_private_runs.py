"""Private runs as a user has them: from YAML to a statement, with budgets that hold whatever the YAML says."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import methods
from pipelines.coordinator.conversations import build_opening
from pipelines.coordinator.permissions import find_refused_requests, permissions_in
from pipelines.coordinator.run import make_world
from pipelines.coordinator.spending import plan_method, total_cost
from pipelines.coordinator.stages.audit import audit_mechanism
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.config import Config
from pipelines.settings.load import load_config
from pipelines_settings import BASE
from privacy.dp.accounting import by_split, compute_cost
from privacy.dp.events import NON_PRIVATE, Declared, Part, parse_event
from privacy.message import Call, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

PRIVATE = {"epsilon": 3.0, "sampling": 0.5, "views": 2}


def settings(**changes) -> dict:
    """The smallest run whose methods can be private: group norm, no balancing, no pooling."""
    made = copy.deepcopy(BASE) | {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    for site in made["sites"].values():
        site["policy"] = {}
        site["source"]["patients"] = 16
    made["train"]["schedule"] = {"rounds": 2}
    made["audit"] = {"canaries": 100}
    return made | {"privacy": PRIVATE} | changes


def smaller(**changes) -> dict:
    """The same for tests of budgets: small images, no audit."""
    images = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    made = settings(images=images, audit={"membership": False, "canaries": 0}, **changes)
    made["evaluate"]["copies"] = 2
    return made


def write(folder: Path, made: dict) -> str:
    path = folder / "private.yaml"
    path.write_text(yaml.safe_dump(made))
    return str(path)


def config(**changes) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(settings(**changes)), environment={}), Config)


@pytest.fixture
def run(finished_run) -> Path:
    """One finished private run: the plain settings with only `privacy` changed. Not to be changed."""
    return finished_run(settings()) / "runs" / "tiny"


def test_every_method_runs_private_with_only_privacy_changed_and_pays_what_was_planned(run):
    made = config()
    for site in ("a", "b"):
        events = ledgers.spent_events(ledgers.read_lines(run / "sites" / site / "ledger.jsonl"))
        assert NON_PRIVATE not in events
        spent, plan = compute_cost(events, 1e-5), total_cost(made, site)
        assert 0 < spent.epsilon <= plan.epsilon * 1.001
        splits = {split for _, split in by_split(events, 1e-5)}
        assert splits == {"train", "validation", "test"}
        for label in made.train.methods:
            assert plan_method(made, label, site).cost.epsilon <= PRIVATE["epsilon"]


def test_the_statement_says_what_the_ledger_sums_up_to(run):
    said = json.loads((run / "statement.json").read_text())
    text = (run / "statement.md").read_text()
    for site in ("a", "b"):
        spent = compute_cost(ledgers.spent_events(ledgers.read_lines(run / "sites" / site / "ledger.jsonl")), 1e-5)
        assert spent.epsilon <= said[site]["epsilon"] <= 1.01 * spent.epsilon, "rounded, and never downwards"
        own = (run / "sites" / site / "statement.md").read_text()
        assert f"# Privacy statement: {site}" in own and f"# Privacy statement: {site}" in text
        for word in (
            "add-or-remove",
            "Poisson",
            "dp-accounting",
            "simulated patient",
            "os.urandom",
            "clip C = 1",
        ):
            assert word in own, word
        assert "no formal guarantee" not in own.split("## ")[0]
    page = (run / "report.html").read_text()
    assert "Privacy statement" in page and "noised" in page


def test_a_run_without_privacy_says_so_in_so_many_words(finished_run):
    root = finished_run(BASE, figures=True) / "runs" / "tiny"
    assert "no formal guarantee" in (root / "statement.md").read_text()
    assert "no formal guarantee" in (root / "report.html").read_text()


def test_attacks_on_private_models_stay_at_the_hospital(run):
    (found,) = run.glob("audit/*/audits.json")
    audits = json.loads(found.read_text())
    assert {entry["found"] for entry in audits["membership"]} == {None}
    assert audits["mechanism"]["canaries"] == 100
    assert list((run / "sites" / "a" / "scores").glob("*.membership.json"))
    lines = [line for line in ledgers.read_lines(run / "sites" / "a" / "ledger.jsonl") if line["request"] == "audit"]
    assert {line["event"]["kind"] for line in lines} == {"nothing"}


def test_a_second_run_spends_nothing(run, tmp_path, monkeypatch):
    shutil.copytree(run.parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "runs" / "tiny" / "sites" / "a" / "ledger.jsonl"
    before = compute_cost(ledgers.spent_events(ledgers.read_lines(ledger)), 1e-5).epsilon
    assert main(["tiny.yaml"]) == Exit.OK
    assert compute_cost(ledgers.spent_events(ledgers.read_lines(ledger)), 1e-5).epsilon == before


def test_check_says_noise_steps_and_cost_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = settings()
    made["sites"]["a"]["policy"] = {"budget": {"epsilon": 0.5}, "public": ["counts"]}
    assert main([write(tmp_path, made), "--check", "--headers", "--json"]) == Exit.OK
    said = json.loads(capsys.readouterr().out)["privacy"]
    plan = plan_method(config(), "fedavg", "a")
    first = next(one for one in said["a"]["methods"] if one["method"] == "fedavg")
    assert (first["noise"], first["epsilon"], first["steps"]) == (plan.protection.noise, plan.cost.epsilon, 4)
    assert said["a"]["epsilon"] == pytest.approx(total_cost(config(), "a").epsilon)
    assert said["a"]["epsilon"] < said["a"]["replaced"] < 3 * said["a"]["epsilon"]
    assert said["a"]["spent"] == 0 and said["a"]["after"] > 0.5 and "MORE than" in said["a"]["words"]
    lines = list(ledgers.read_lines(tmp_path / "runs/tiny/sites/a/ledger.jsonl"))
    assert {line["request"] for line in lines} == {"survey"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": None}, "privacy: must be 'none' or a group of keys"),
        ({"privacy": {}}, "privacy.epsilon: give either epsilon or noise"),
        ({"privacy": {"epsilon": -1.0, "sampling": 2.0}}, "privacy.sampling: must be in [1e-06, 1], found 2.0"),
        ({"model": {"name": "cam"}}, "cannot be trained privately: BatchNorm2d keeps running_mean"),
        ({"train": {**settings()["train"], "work": {"balance": True}}}, "train.work.balance: draws by the labels"),
    ],
)
def test_what_cannot_be_private_is_refused_with_its_reason(change, words):
    with pytest.raises(ConfigError) as caught:
        config(**change)
    assert words in str(caught.value)
    assert "must be 'none', found" not in str(caught.value), "a group of keys was meant: its own faults are enough"


def test_privacy_must_be_typed_out():
    made = settings()
    del made["privacy"]
    with pytest.raises(ConfigError, match="privacy: missing; add it"):
        validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def test_central_training_cannot_be_private():
    made = settings(pooling="allowed")
    made["train"]["methods"]["central"] = {"name": "central"}
    made["sites"]["a"]["policy"] = made["sites"]["b"]["policy"] = {"pooling": True}
    with pytest.raises(ConfigError, match=r"train.methods.central: pools images, which no epsilon covers; remove it"):
        validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def test_features_scaled_by_patients_cannot_be_private():
    with pytest.raises(ConfigError, match=r"images.normalize: site computes means from patients"):
        load_heart(privacy={"epsilon": 3.0})


@pytest.mark.parametrize("more", [{"secure_sum": True}, {"upload": {"name": "int8"}}], ids=["sums", "upload"])
@pytest.mark.parametrize("method", methods.ALL, ids=lambda method: f"{method.name}")
def test_a_method_that_does_not_fit_tables_is_named_and_ends_no_check(method, more):
    """A method that turns images was rehearsed on tables before its own complaint was heard."""
    with suppress(ConfigError):
        load_heart({"methods": {"m": to_plain(method)}, "method_work": {}, **more})


def load_heart(train: dict | None = None, **changes) -> Config:
    text = (Path(__file__).parents[2] / "pipelines/configs/heart_disease.yaml").read_text()
    data = yaml.safe_load(text.replace("${CONSILIUM_DATA}", "."))
    data["train"]["methods"] = {name: one for name, one in data["train"]["methods"].items() if "central" not in name}
    data["train"]["method_work"] = {"fedavg": {"lr": 0.1}}
    data["train"]["method_model"] = {}
    data["train"] |= train or {}
    for site in data["sites"].values():
        site["policy"] = {}
    return validate_settings(read_yaml(yaml.safe_dump(data | {"pooling": "refused"} | changes), environment={}), Config)


def budgeted(made: dict, site: str, epsilon: float) -> dict:
    made["sites"][site]["policy"] = {
        "budget": {"epsilon": epsilon},
        "most": {"release": epsilon},
        "public": ["counts"],
    }
    return made


def test_a_site_whose_budget_runs_out_stops_and_the_federation_goes_on(tmp_path, monkeypatch):
    """The budget lasts for a part of the first method: the site retires by name, and the report still comes."""
    monkeypatch.chdir(tmp_path)
    made = smaller()
    made["train"] |= {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 4}}
    made["evaluate"]["reference"] = None
    plan = plan_method(config(train=made["train"], evaluate=made["evaluate"]), "fedavg", "a")
    assert main([write(tmp_path, budgeted(made, "a", 0.75 * plan.cost.epsilon))]) == Exit.OK
    root = tmp_path / "runs" / "tiny"
    (result,) = root.glob("train/*/fedavg.json")
    missing = json.loads(result.read_text())["missing"]
    assert [(site, code) for _, site, code in missing] == [("a", "budget")] and missing[0][0] > 1
    spent = compute_cost(ledgers.spent_events(ledgers.read_lines(root / "sites/a/ledger.jsonl")), 1e-5)
    assert 0 < spent.epsilon <= 0.75 * plan.cost.epsilon
    page = (root / "report.html").read_text()
    assert "budget" in page


def test_a_model_whose_evaluation_is_too_dear_is_left_out_of_the_scores(tmp_path, monkeypatch):
    """Test patients pay for scores of their own: they run out where training still goes on."""
    monkeypatch.chdir(tmp_path)
    made = smaller()
    made["train"] |= {"methods": {"local": {"name": "local"}, "fedper": {"name": "fedper"}}}
    made["evaluate"] |= {"checkpoint": "latest"}
    made["split"] = {"train": 0.6, "validation": 0.0, "test": 0.4}
    free = config(train=made["train"], evaluate=made["evaluate"], split=made["split"])
    test = [with_split(event) for label in made["train"]["methods"] for event in plan_method(free, label, "a").events]
    whole, train = (
        compute_cost([e for e, split in test if (split == "test") == tested], 1e-5) for tested in (True, False)
    )
    assert whole.epsilon > train.epsilon
    assert main([write(tmp_path, budgeted(made, "a", (whole.epsilon + train.epsilon) / 2))]) == Exit.OK
    root = tmp_path / "runs" / "tiny"
    (found,) = root.glob("evaluate/*/refused.json")
    assert {(one["site"], one["code"]) for one in json.loads(found.read_text())} == {("a", "budget")}
    assert "evaluate local" in (root / "report.html").read_text()


def test_a_budget_that_ends_between_two_methods_leaves_a_report_of_both(tmp_path, monkeypatch, capsys):
    """One method has both hospitals' scores and the other one's: a gain is over those that have both."""
    monkeypatch.chdir(tmp_path)
    made = smaller()
    made["train"] |= {"methods": {"fedavg": {"name": "fedavg"}, "local": {"name": "local"}}}
    made["evaluate"] |= {"checkpoint": "latest", "public": False}
    plan = plan_method(config(train=made["train"], evaluate=made["evaluate"]), "fedavg", "a")
    assert main([write(tmp_path, budgeted(made, "a", 1.02 * plan.cost.epsilon))]) == Exit.OK
    assert "! a did not answer" in capsys.readouterr().out
    assert "budget" in (tmp_path / "runs/tiny/report.html").read_text()


def test_the_policy_of_the_documentation_is_one_that_a_run_can_live_with():
    text = (Path(__file__).parents[2] / "docs/reference/policy.md").read_text()
    block = text.split('```yaml title="policy.yaml"\n')[1].split("```")[0]
    policy = validate_settings(read_yaml(block, environment={}), Policy)
    made = settings(evaluate={**settings()["evaluate"], "public": False})
    plain = validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)
    sites = {name: replace(site, policy=policy) for name, site in plain.sites.items()}
    free = replace(plain, sites=sites)
    assert find_refused_requests(free, permissions_in(free)) == []
    strict = {name: replace(site, policy=Policy(requests=("survey",))) for name, site in plain.sites.items()}
    narrow = replace(plain, sites=strict)
    told = find_refused_requests(narrow, permissions_in(narrow))
    assert told[0] == "a: its policy does not answer ingest, holds, which the stage ingest asks"
    assert find_refused_requests(narrow, permissions_in(free)) == [], "what hospitals say counts"


def with_split(event):
    """An event, and the split that pays for it."""
    inner = event
    while not isinstance(inner, Part) and hasattr(inner, "event"):
        inner = inner.event
    return event, inner.split if isinstance(inner, Part) else "none"


def test_a_budget_outlives_runs_where_the_hospital_has_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "hospital_a"
    train = settings()["train"] | {"methods": {"fedavg": {"name": "fedavg"}}, "schedule": {"rounds": 1}}
    spent = []
    for name in ("first", "second"):
        made = budgeted(smaller(name=name, train=train), "a", 40.0)
        made["evaluate"]["reference"] = None
        made["sites"]["a"]["home"] = str(home)
        assert main([write(tmp_path, made), "--until", "train"]) == Exit.OK
        spent.append(compute_cost(ledgers.spent_events(ledgers.read_lines(home / "ledger.jsonl")), 1e-5).epsilon)
        assert not (tmp_path / "runs" / name / "sites" / "a" / "ledger.jsonl").exists()
    assert spent[1] > spent[0] > 0
    assert ledgers.verify_ledger(home / "ledger.jsonl") == []


def test_the_hospitals_own_policy_outranks_the_yaml(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "hospital_a"
    home.mkdir()
    made = settings()
    made["sites"]["a"] |= {"home": str(home), "policy": {"max_bytes": 1000}}
    (home / "policy.yaml").write_text("budget: {epsilon: 2.5, delta: 1e-6}\npublic: [counts]\nalgorithms: [fedavg]\n")
    own = load_config(write(tmp_path, made)).sites["a"].policy
    assert own == Policy(budget=Budget(epsilon=2.5, delta=1e-6), public=("counts",), algorithms=("fedavg",))
    (home / "policy.yaml").write_text("budget: {epsilon: -1}\nallow: everything\n")
    assert main([write(tmp_path, made)]) == Exit.CONFIG
    said = capsys.readouterr().err
    assert "policy.yaml:1" in said and "epsilon" in said and "unknown key" in said
    (home / "policy.yaml").write_text("public: []\n")
    assert main([write(tmp_path, made)]) == Exit.CONFIG
    assert "say public: [counts], or give it a budget" in capsys.readouterr().err


def hospital(tmp_path: Path, policy: Policy) -> Hospital:
    site = replace(config().sites["a"], policy=policy)
    return Hospital("a", tmp_path / "a", site, lambda: "2026-01-01T00:00:00Z")


def asked(tmp_path: Path, policy: Policy, privacy: object):
    """A coordinator that asks as it likes: its YAML is never checked against the hospital's policy."""
    free = config(privacy=privacy)
    own = hospital(tmp_path, policy)
    ask = make_worker(own)
    facts = {
        "images": to_plain(free.images),
        "split": to_plain(free.split),
        "seed": 0,
        "independent": privacy != "none",
    }
    cohort = ask(Call("tiny/ingest", 0, "ingest", {}), Message({}, facts)).facts["cohort"]
    world = make_world(free, tmp_path, Stop())
    start = Message({}, build_opening(world, "fedavg", "a", str(cohort)))
    return own, ask, start


PUBLIC = ("counts",)


@pytest.mark.parametrize(
    ("policy", "privacy", "code"),
    [
        (Policy(budget=Budget(epsilon=2.0), public=PUBLIC), "none", "budget"),
        (Policy(budget=Budget(epsilon=2.0), public=PUBLIC), {"epsilon": 50.0, "sampling": 0.5}, "budget"),
        (Policy(budget=Budget(epsilon=9.0), public=PUBLIC, algorithms=("fedper",)), PRIVATE, "policy_algorithm"),
        (Policy(algorithms=("fedper",)), "none", "policy_algorithm"),
        (Policy(recipients=(), public=PUBLIC), PRIVATE, "policy_recipient"),
    ],
)
def test_a_coordinator_that_asks_for_more_than_the_policy_allows_is_refused(tmp_path, policy, privacy, code):

    def insist() -> None:
        _, ask, start = asked(tmp_path, policy, privacy)
        ask(Call("tiny/x", 0, "introduce", {}), start)
        initial = {f"model/{name}": value for name, value in network().items()}
        ask(Call("tiny/x", 1, "train", {}), Message(initial, {"algorithm": {}, "best": None}))

    with pytest.raises(Refused, match=code):
        insist()
    lines = list(ledgers.read_lines(tmp_path / "a" / "ledger.jsonl"))
    assert lines[-1]["refused"] == code and lines[-1]["bytes"] == 0
    assert NON_PRIVATE not in ledgers.spent_events(lines)


def network():
    made = config()
    return made.train.methods["fedavg"].network(made.task_of("fedavg")).state_dict()


def test_a_budget_without_a_declaration_lets_no_count_leave_with_the_survey(tmp_path):
    own = hospital(tmp_path, Policy(budget=Budget(epsilon=3.0)))
    said = make_worker(own)(Call("tiny/survey", 0, "survey", {}), Message()).facts
    assert not [name for name, value in said.items() if type(value) in (int, float)]
    assert [line["event"] for line in ledgers.read_lines(own.ledger)] == [{"kind": "nothing"}]


def test_a_cohort_that_looked_across_patients_is_not_trained_on_privately(tmp_path):
    policy = Policy(public=PUBLIC)
    own, ask, _ = asked(tmp_path, policy, "none")
    stratified = next(path.name for path in (own.root / "cohorts").iterdir() if path.is_dir())
    world = make_world(config(), tmp_path, Stop())
    with pytest.raises(Refused, match="dependent_patients"):
        ask(Call("tiny/y", 0, "introduce", {}), Message({}, build_opening(world, "fedavg", "a", stratified)))


def test_that_something_failed_is_told_and_is_no_secret_cost(tmp_path):
    own = hospital(tmp_path, Policy(budget=Budget(epsilon=3.0), public=PUBLIC))
    with pytest.raises(Refused, match="not_introduced"):
        make_worker(own)(Call("tiny/z", 1, "train", {}), Message())
    (line,) = ledgers.read_lines(own.ledger)
    assert parse_event(line["event"]) == Declared("failure") and line["refused"] == "not_introduced"


def test_a_damaged_ledger_lets_nothing_leave(tmp_path):
    own = hospital(tmp_path, Policy(public=PUBLIC))
    ask = make_worker(own)
    ask(Call("tiny/survey", 0, "survey", {}), Message())
    ask(Call("tiny/survey", 0, "survey", {}), Message())
    text = own.ledger.read_text()
    own.ledger.write_text(text.replace('"bytes": ', '"bytes": 1', 1))
    with pytest.raises(Refused, match="damaged_ledger"):
        ask(Call("tiny/survey", 0, "survey", {}), Message())


def test_the_protection_of_a_run_is_audited_and_holds():
    audit = audit_mechanism(config().privacy, 1000, random.Random(0).randbytes)
    assert audit is not None and audit["claimed"] == 1.0
    assert audit["bound"] <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_9_in_a_private_run_charges_every_round_once_and_loses_none(run, tmp_path, seed):
    """Whatever the blow hits: what was committed is sent again, what was not is done anew, and the sum is the same."""
    write(tmp_path, settings())
    chance, killed = random.Random(seed), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    ledger = tmp_path / "runs/tiny/sites/a/ledger.jsonl"
    for last in (False, False, False, False, True):
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.run", "private.yaml"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )
        before, deadline = len(list(ledgers.read_lines(ledger))), time.monotonic() + 120
        while not last and process.poll() is None and len(list(ledgers.read_lines(ledger))) < before + 6:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0 if last else chance.uniform(0, 1.5))
        if last:
            assert process.wait(timeout=300) == Exit.OK
        elif process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
    assert killed
    for site in ("a", "b"):
        ours, theirs = (root / "sites" / site / "ledger.jsonl" for root in (tmp_path / "runs/tiny", run))
        assert ledgers.verify_ledger(ours) == []
        found, wanted = (Counter(describe_all(path)) for path in (ours, theirs))
        assert found == wanted, "an event more or less than in a run that nobody disturbed"


def describe_all(ledger: Path) -> list[str]:
    """Every event that cost something."""
    return [
        repr(event) for event in ledgers.spent_events(ledgers.read_lines(ledger)) if compute_cost([event], 1e-5).epsilon
    ]


def test_a_run_with_budgets_can_be_checked_though_no_files_are_counted_for_others(tmp_path, monkeypatch, capsys):
    """The table of files once ended in a trace: a hospital with a budget tells no numbers of them."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, budgeted(settings(), "a", 50.0))
    assert main([path, "--check", "--headers"]) == Exit.OK
    said = capsys.readouterr().err
    assert "not told" in said and "Settings, files and methods are in order" in said
