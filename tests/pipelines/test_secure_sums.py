"""Secure sums and shared noise as hospitals and runs have them: refusals, ledgers, statements, settings."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_run import smallest

from federation.conversation import load_memory, load_stored_reply
from federation.fedsgd import FedSGD
from federation.models.mlp import Mlp
from federation.outcome import load_outcome
from federation.parameters import prefixed
from federation.rehearsal import initial_parameters
from federation.summing import MASKED, hide_reply
from federation.task import Task
from pipelines.coordinator.spending import plan_method
from pipelines.data.images import Slices
from pipelines.hospital import training
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.ledger import main as main_of_ledger
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from pipelines.settings.config import Config
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Event, SharedGaussian, assume_colluding, list_leaves
from privacy.message import Call, Message, from_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.meaning import format_loss, round_up
from privacy.release.policy import Policy, SumsOnly
from privacy.secure_sum import make_key_pair, sign_key, verification_key

SUMS = {"secure_sum": {"hospitals": 3, "colluding": 1, "trust_coordinator": True}}
NAMES = ("a", "b", "c")
KEY = verification_key(bytes(range(32)))


def settings(**changes: Any) -> dict[str, Any]:
    """Three hospitals that share the noise of one linear layer on pixels."""
    made = smallest(pooling="refused", privacy={"epsilon": 2.0, "views": 1, "shared": {"colluding": 1}}, **changes)
    made["sites"]["c"] = copy.deepcopy(made["sites"]["a"])
    for number, site in enumerate(made["sites"].values()):
        site["policy"] = copy.deepcopy(SUMS)
        site["source"] |= {"seed": number + 1, "patients": 16, "damaged": 0}
        site.pop("work", None)
    made["model"] = {"name": "mlp", "hidden": []}
    made["train"] |= {"secure_sum": True, "methods": {"fedsgd": {"name": "fedsgd", "rounds": 3}}}
    made["audit"] = {"canaries": 0}
    return made


def check(made: dict[str, Any]) -> Config:
    """The settings, as YAML has them."""
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("sums")
    path = folder / "sums.yaml"
    path.write_text(yaml.safe_dump(settings(name="sums")))
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        assert main([str(path)]) == Exit.OK
    return folder / "runs" / "sums"


def conversation_of(run: Path, site: str) -> DiskFolder:
    """What a hospital keeps of the training."""
    (folder,) = (run / "sites" / site / "conversations").glob("*/fedsgd-*")
    return DiskFolder(folder)


def charged_events(run: Path, site: str) -> list[Event]:
    return list(ledgers.spent_events(ledgers.read_lines(run / "sites" / site / "ledger.jsonl")))


def test_every_reply_of_a_round_is_words_and_a_loss(finished: Path) -> None:
    for site in NAMES:
        reply = from_bytes(load_stored_reply(conversation_of(finished, site), "train-3"))  # earlier ones are not kept
        assert set(reply.tensors) == {MASKED} and reply.facts["algorithm"] == {}


def test_the_coordinator_stores_nothing_of_one_hospital(finished: Path) -> None:
    """Its folders hold the merged model, public keys, and no secret key of anybody."""
    secrets = {str(load_memory(conversation_of(finished, site), 0).facts["x25519"]) for site in NAMES}
    assert len(secrets) == len(NAMES)
    for path in finished.rglob("*"):
        if path.is_file() and "sites" not in path.relative_to(finished).parts:
            content = path.read_bytes()
            assert not any(secret.encode() in content or bytes.fromhex(secret) in content for secret in secrets)
            assert b"masked" not in content


def test_the_ledger_has_both_prices_and_the_policy_says_which_counts(finished: Path) -> None:
    config = check(settings(name="sums"))
    plan = plan_method(config, "fedsgd", "a")
    events = charged_events(finished, "a")
    shared = [part for event in events for part in list_leaves(event) if isinstance(part, SharedGaussian)]
    assert {(part.hospitals, part.noise_multiplier) for part in shared} == {(3, plan.protection.noise)}
    together = compute_cost([assume_colluding(event, 1) for event in events], 1e-5).epsilon
    alone = compute_cost(events, 1e-5).epsilon
    assert together == pytest.approx(2.0, abs=0.05) and alone > 1.3 * together


def test_the_statement_says_what_holds_if_all_others_collude(finished: Path) -> None:
    own = (finished / "sites" / "a" / "statement.md").read_text()
    alone = compute_cost(charged_events(finished, "a"), 1e-5).epsilon
    assert "at most 1 of the other hospitals work together" in own
    assert f"costs ε = {format_loss(round_up(alone))}" in own and "shared: a part of that of 3 hospitals" in own
    assert "sees each reply of this hospital separately" not in own


def test_pages_say_that_only_sums_of_parameters_were_seen(finished: Path) -> None:
    for page in (finished / "report.html", finished / "sites" / "a" / "report.html"):
        text = page.read_text()
        assert "ums of model parameters over hospitals" in text
    assert "hidden in a sum over hospitals" in (finished / "sites" / "a" / "statement.md").read_text()


def test_the_ledger_command_takes_the_number_that_may_collude(finished: Path, capsys: Any) -> None:
    ledger = str(finished / "sites" / "a")
    sums = []
    for more in ([], ["--colluding", "1"]):
        assert main_of_ledger(["sum", ledger, "--json", *more]) == Exit.OK
        sums.append(json.loads(capsys.readouterr().out)["all"]["epsilon"])
    assert sums[1] < sums[0]


# Settings.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"train": {"secure_sum": False}}, "say train: {secure_sum: true}"),
        ({"train": {"methods": {"s": {"name": "scaffold"}, "f": {"name": "fedsgd"}}}}, "scaffold needs more of each"),
        ({"train": {"methods": {"f": {"name": "fedavg"}}}}, "take fedsgd"),
        ({"train": {"methods": {"f": {"name": "fedsgd"}, "d": {"name": "ditto"}}}}, "own model of d would leave"),
        ({"privacy": {"shared": {"colluding": 2}}}, "needed are two that do not work"),
        ({"train": {"schedule": {"rounds": 2, "participation": 0.5}}}, "noise is shared by all hospitals"),
        (
            {"train": {"schedule": {"rounds": 2, "participation": 0.3}}},
            "0.3 asks 1 of 3 hospitals, and a sum needs two",
        ),
        (
            {"privacy": "none", "train": {"schedule": {"rounds": 2, "participation": 0.7}}},
            "3 is the fewest hospitals in a sum, and train.schedule.participation asks 2",
        ),
        ({"sites": {"b": {"policy": {"secure_sum": {"hospitals": 4}}}}}, "4 is the fewest hospitals in a sum"),
        ({"sites": {"b": {"policy": {"secure_sum": {"hospitals": 3, "colluding": 2}}}}}, r"in \[0, 1\]"),
        ({"sites": {"b": {"policy": {"secure_sum": {"colluding": 1}}}}}, "a coordinator could invent"),
        ({"sites": {"b": {"policy": {"secure_sum": {"signers": {"a": "01" + "00" * 31}}}}}}, "digits 0-9 a-f"),
        ({"sites": {"b": {"policy": {"secure_sum": {"signers": {"a": KEY, "c": KEY}}}}}}, "one key for two"),
    ],
)
def test_settings_that_hide_nothing_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check(merge_settings(settings(), change))


def merge_settings(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The base with nested values replaced; lists of methods and policies as a whole."""
    merged = dict(base)
    for key, value in change.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict) and key not in ("methods", "secure_sum")
        merged[key] = merge_settings(merged[key], value) if nested else value
    return merged


def test_without_shared_noise_every_hospital_adds_all_of_it() -> None:
    """fedavg in the same run is hidden too, and its noise is not shared."""
    made = merge_settings(settings(), {"train": {"methods": {"f": {"name": "fedsgd"}, "g": {"name": "fedavg"}}}})
    config = check(made)
    assert plan_method(config, "f", "a").protection.hospitals == 3
    assert plan_method(config, "g", "a").protection.hospitals == 1


def test_a_check_says_what_shared_noise_costs_if_all_others_collude(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "sums.yaml"
    path.write_text(yaml.safe_dump(settings(name="sums")))
    assert main([str(path), "--check"]) == Exit.OK
    text = " ".join("".join(capfd.readouterr()).split())
    config = check(settings(name="sums"))
    alone = compute_cost(plan_method(config, "fedsgd", "a").events, 1e-5).epsilon
    assert f"one hospital's part of noise that 3 share, and ε of it {alone:.3f} if all others tell" in text


def test_each_hospital_shortens_its_own_update_in_a_sum(tmp_path: Path, monkeypatch: Any) -> None:
    """Three rounds lead no further than three bounds, and the page says what that is worth."""
    made, bound = settings(name="bounded"), 0.01
    for site in made["sites"].values():
        site["policy"] = {"secure_sum": {"hospitals": 3}}
    made["privacy"] = "none"
    made["train"] |= {"methods": {"fedavg": {"name": "fedavg"}}, "merge": {"name": "norm_bounded", "bound": bound}}
    made["train"]["schedule"] = {"rounds": 3}
    path = tmp_path / "bounded.yaml"
    path.write_text(yaml.safe_dump(made))
    monkeypatch.chdir(tmp_path)
    assert main([str(path)]) == Exit.OK
    (folder,) = (tmp_path / "runs" / "bounded" / "federation").glob("fedavg-*")
    trained = json.loads(next((tmp_path / "runs" / "bounded" / "train").glob("*/fedavg.json")).read_text())
    outcome = load_outcome(DiskFolder(folder), trained["train_run"])
    assert outcome is not None and outcome.round == 4 and not outcome.updates
    config = check(made)
    start = initial_parameters(config.train.methods["fedavg"], config.task_of("fedavg"), seed=config.seed)
    way = torch.cat([(outcome.state.tensors[f"model/{name}"] - value).flatten() for name, value in start.items()])
    assert bound < float(way.norm()) <= 3 * bound * (1 + 1e-4)
    page = (tmp_path / "runs" / "bounded" / "report.html").read_text()
    assert "shortens its own update to a norm of 0.01" in page and "binds no attacker" in page


def test_the_pooled_baseline_has_no_sum_to_hide_in(tmp_path: Path, monkeypatch: Any) -> None:
    made = settings(name="pooled")
    made |= {"pooling": "allowed", "privacy": "none"}
    for site in made["sites"].values():
        site["policy"] = {"secure_sum": {"hospitals": 3}, "pooling": True}
    made["train"]["methods"] = {"fedavg": {"name": "fedavg"}, "pooled": {"name": "central"}}
    (tmp_path / "pooled.yaml").write_text(yaml.safe_dump(made))
    monkeypatch.chdir(tmp_path)
    assert main(["pooled.yaml"]) == Exit.OK
    (trained,) = (tmp_path / "runs" / "pooled" / "train").glob("*/pooled.json")
    assert json.loads(trained.read_text())["rounds"] == made["train"]["schedule"]["rounds"]


# A coordinator that asks for more.

IMAGES = Slices(size=16, spacing_mm=4.0)
TASK = Task(Mlp(hidden=()), (1, 16, 16), 2)
KEYS = {name: make_key_pair(random.Random(name).randbytes).public for name in ("b", "c")}


class Site:
    """A hospital whose policy wants sums over three, and a coordinator that says to it what it likes."""

    def __init__(self, folder: Path, policy: Policy | None = None) -> None:
        policy = policy or Policy(public=("counts",), secure_sum=SumsOnly(hospitals=3))
        source = PhantomSource(scanner="P", patients=12, seed=1, slices=4)
        self.hospital = Hospital(
            "a", folder, SiteSettings(source=source, policy=policy), lambda: "2026-01-01T00:00:00Z"
        )
        asked = {"images": to_plain(IMAGES), "split": to_plain(Split()), "seed": 0, "independent": True}
        self.cohort = str(self.ask("ingest", message=Message({}, asked)).facts["cohort"])
        self.public = ""

    def ask(self, request: str, round_: int = 0, message: Message | None = None) -> Message:
        return make_worker(self.hospital)(Call("r/x", round_, request, {}), message or Message())

    def introduce(self, **changes: Any) -> Message:
        facts: dict[str, Any] = {
            "label": "x",
            "algorithm": {"name": "fedsgd"},
            "model": {"name": "mlp", "hidden": []},
            "inputs": [1, 16, 16],
            "classes": 2,
            "work": {"optimizer": "sgd", "lr": 1.0, "steps": 1, "epochs": None, "augment": "none"},
            "seed": 0,
            "cohort": self.cohort,
            "privacy": None,
            "secure_sum": True,
        }
        answer = self.ask("introduce", message=Message({}, {**facts, **changes}))
        self.public = str(answer.facts.get("key", ""))
        return answer

    def train(self, keys: dict[str, str] | None, scale: float = 1.0) -> Message:
        start = {name: scale * value for name, value in initial_parameters(FedSGD(), TASK, seed=0).items()}
        asked = {} if keys is None else {"keys": keys}
        tensors = {**prefixed("model", start), **prefixed("mean", start)}
        return self.ask("train", 1, Message(tensors, {"algorithm": {"steps": 0}, "best": None, **asked}))


def code_of(work: Any) -> str:
    with pytest.raises(Refused) as caught:
        work()
    return caught.value.code


def test_a_policy_that_wants_sums_is_asked_for_nothing_else(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert code_of(lambda: site.introduce(secure_sum=False)) == "policy_secure_sum"
    site.introduce()
    assert code_of(lambda: site.train({"a": site.public, "b": KEYS["b"]})) == "policy_secure_sum"
    assert set(site.train({"a": site.public, **KEYS}).tensors) == {MASKED}


def test_where_the_policy_names_signers_a_coordinators_own_keys_are_refused(tmp_path: Path) -> None:
    identities = {name: random.Random(f"identity {name}").randbytes(32) for name in KEYS}
    signers = {name: verification_key(identity) for name, identity in identities.items()}
    site = Site(tmp_path, Policy(public=("counts",), secure_sum=SumsOnly(hospitals=3, signers=signers)))
    site.introduce()
    forged = {"a": site.public, **KEYS}
    assert code_of(lambda: site.train(forged)) == "policy_secure_sum"
    signed = {name: sign_key(KEYS[name], identity, run="r/x", site=name) for name, identity in identities.items()}
    assert set(site.train({"a": site.public, **signed}).tensors) == {MASKED}


def test_a_hidden_reply_is_never_sent_in_the_open(tmp_path: Path) -> None:
    """Not without keys, not with another key of its own, not with keys that hide nothing."""
    site = Site(tmp_path, Policy(public=("counts",)))
    site.introduce()
    low_order = "01" + "00" * 31
    for keys in (None, {}, KEYS, {**KEYS, "a": KEYS["b"]}, {"a": site.public}, {"a": site.public, "b": low_order}):
        assert code_of(lambda keys=keys: site.train(keys)) == "malformed_keys"
    assert code_of(lambda: site.train({"a": site.public, "b": "short"})) == "malformed_keys"


def test_a_model_of_one_hospital_does_not_leave_a_run_of_sums(tmp_path: Path) -> None:
    """fedper's head stays at home; asked for the whole model, the hospital refuses."""
    site = Site(tmp_path)
    site.introduce(algorithm={"name": "fedper"})
    question = Message({}, {"train_run": "r/x", "checkpoint": "latest", "best": None})
    assert code_of(lambda: site.ask("export", message=question)) == "policy_secure_sum"
    other = Site(tmp_path / "other")
    other.introduce()
    assert code_of(lambda: other.ask("export", message=question)) == "no_model"


def test_a_hospital_that_was_told_something_else_hides_by_other_masks(tmp_path: Path) -> None:
    """A coordinator that lets the others learn nothing, or from another model, would know their part of the sum."""
    terms = list[Any]()

    def keep_terms(*given: Any, **named: Any) -> Message:
        terms.append(named["terms"])
        return hide_reply(*given, **named)

    slow = {"algorithm": {"name": "fedsgd", "lr": 1.0}}
    facts: list[dict[str, Any]] = [{}, {}, {"work": {"lr": 1e-9}}, {"seed": 1}, slow]
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(training, "hide_reply", keep_terms)
        for number, each in enumerate(facts):
            site = Site(tmp_path / str(number))
            site.introduce(**each)
            site.train({"a": site.public, **KEYS})
        other_model = Site(tmp_path / "model")
        other_model.introduce()
        other_model.train({"a": other_model.public, **KEYS}, scale=2.0)
    assert terms[0] == terms[1] and all(each != terms[0] for each in terms[2:]) and len(terms) == len(facts) + 1


def test_one_update_is_masked_for_one_set_of_hospitals(tmp_path: Path) -> None:
    """Asked again with fewer hospitals, it repeats its words, so that no difference of two sums is one update."""
    site = Site(tmp_path)
    site.introduce()
    more = {"d": make_key_pair(random.Random("d").randbytes).public}
    first = site.train({"a": site.public, **KEYS, **more}).tensors[MASKED]
    assert torch.equal(site.train({"a": site.public, **KEYS}).tensors[MASKED], first)


def test_shared_noise_needs_the_number_of_hospitals_that_it_was_planned_for(tmp_path: Path) -> None:
    private = {"clip": 1.0, "noise": 3.0, "views": 1, "hospitals": 4}
    site = Site(tmp_path)
    assert code_of(lambda: site.introduce(privacy=private, secure_sum=False)) in (
        "malformed_opening",
        "policy_secure_sum",
    )
    site.introduce(privacy=private)
    assert code_of(lambda: site.train({"a": site.public, **KEYS})) == "malformed_keys"


@pytest.mark.parametrize("name", ["scaffold", "fedsld", "cusfl"])
def test_a_hospital_does_not_say_alone_what_was_to_be_hidden(tmp_path: Path, name: str) -> None:
    """Whatever the coordinator's own checks allow: methods that need more of a reply than a mean, or speak first."""
    site = Site(tmp_path)
    changed: dict[str, Any] = {"algorithm": {"name": name}}
    assert code_of(lambda: site.introduce(**changed)) == "policy_secure_sum"


def test_shared_noise_is_for_sums_of_gradients_alone(tmp_path: Path) -> None:
    private = {"clip": 1.0, "noise": 3.0, "views": 1, "hospitals": 3}
    site = Site(tmp_path)
    assert code_of(lambda: site.introduce(privacy=private, algorithm={"name": "fedavg"})) == "malformed_opening"


def test_a_round_that_left_is_not_hidden_anew_after_a_restore(tmp_path: Path) -> None:
    """The same masks on another update would give away the difference of the two."""
    site = Site(tmp_path)
    site.introduce()
    keys = {"a": site.public, **KEYS}
    site.train(keys)
    site.hospital.conversation("r/x").remove("train-1")
    assert code_of(lambda: site.train(keys)) == "stale_round"


def test_shared_noise_in_the_open_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, Policy(public=("counts",)))
    private = {"clip": 1.0, "noise": 3.0, "views": 1, "hospitals": 4}
    assert code_of(lambda: site.introduce(privacy=private, secure_sum=False)) == "malformed_opening"
