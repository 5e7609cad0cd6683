"""`policy: {require: privacy}`: a hospital insists on patient-level privacy, whatever is left of its budget."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from torch import Tensor

from federation.models.mlp import Mlp
from federation.task import Task
from pipelines.coordinator.permissions import Permissions, find_refused_requests, permissions_from
from pipelines.coordinator.spending import foresee_refusals
from pipelines.data.images import Slices
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.remote.preflight import list_promises
from pipelines.requests.survey import Surveyed
from pipelines.settings.config import Config
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    SelfComposed,
    describe_event,
)
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.form import read_form
from privacy.release.gate import Refused, find_unaffordable, release_reply
from privacy.release.policy import Budget, Most, Policy

BUDGET: dict[str, Json] = {"epsilon": 200.0}
REQUIRES = Policy(require="privacy", public=("counts",), budget=Budget(epsilon=200.0))
NOISED = PoissonSampled(0.1, Gaussian(2.0))
BARE: list[Event] = [
    NON_PRIVATE,
    Gaussian(0.0),
    Laplace(0.0),
    PoissonSampled(0.5, Gaussian(0.0)),
    Part("c", "train", NON_PRIVATE),
    Part("c", "train", SelfComposed(Gaussian(0.0), 3)),
    Composed((NOISED, Declared("counts"), NON_PRIVATE)),
]
COVERED: list[Event] = [NOTHING, Declared("counts"), NOISED, Part("c", "test", Laplace(1.0)), SelfComposed(NOISED, 9)]


@pytest.mark.parametrize("event", BARE)
def test_what_no_finite_epsilon_bounds_is_refused_whatever_the_budget(event, tmp_path):
    for events in ([event], [NOISED, event]):
        refusal = find_unaffordable(REQUIRES, Path("no-ledger"), events, "r/x")
        assert refusal is not None and refusal.code == "policy_privacy"
    ledger = tmp_path / "ledger.jsonl"
    place = {"policy": REQUIRES, "ledger": ledger, "recipient": "coordinator", "now": "", "replay": False}
    with pytest.raises(Refused, match="policy_privacy"):
        release_reply(b"x", describe_event(event), forms=None, call=Call("r/x", 1, "train", {}), **place)
    with pytest.raises(Refused, match="policy_privacy"):
        release_reply(b"x", {"kind": "of tomorrow"}, forms=None, call=Call("r/x", 2, "train", {}), **place)
    assert all(line["refused"] == "policy_privacy" and line["bytes"] == 0 for line in ledgers.read_lines(ledger))
    assert find_unaffordable(Policy(), Path("no-ledger"), [event], "r/x") is None


@pytest.mark.parametrize("event", COVERED)
def test_what_a_finite_epsilon_bounds_leaves(event):
    assert find_unaffordable(REQUIRES, Path("no-ledger"), [event], "r/x") is None


def test_who_requires_privacy_says_by_name_what_is_public():
    assert not replace(REQUIRES, public=None).declares("counts") and REQUIRES.declares("counts")
    with pytest.raises(ValueError, match="a budget promises one"):
        replace(REQUIRES, pooling=True)


class Site:
    """A hospital that requires privacy, and has read its patients."""

    def __init__(self, folder: Path) -> None:
        settings = SiteSettings(source=PhantomSource(scanner="P", patients=12, seed=1, slices=4), policy=REQUIRES)
        self.hospital = Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")
        said: dict[str, Json] = {"images": to_plain(Slices(size=16, spacing_mm=4.0)), "split": to_plain(Split())}
        facts = self.ask("ingest", "r/ingest", facts={**said, "seed": 0, "independent": True}).facts
        self.cohort = str(facts["cohort"])

    def ask(self, request: str, run: str, round_: int = 0, *, facts: dict[str, Json], tensors=None) -> Message:
        return make_worker(self.hospital)(Call(run, round_, request, {}), Message(tensors or {}, facts))

    def opening(self, privacy: Json) -> dict[str, Json]:
        return {
            "label": "x",
            "algorithm": {"name": "fedavg"},
            "model": {"name": "mlp", "hidden": [2]},
            "inputs": [1, 16, 16],
            "classes": 2,
            "work": {"optimizer": "sgd", "lr": 1.0, "steps": 1, "epochs": None, "augment": "none"},
            "seed": 0,
            "cohort": self.cohort,
            "privacy": privacy,
            "evaluation_noise": 5.0 if privacy else 0.0,
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    return Site(tmp_path_factory.mktemp("requires") / "a")


SCALE: dict[str, Json] = {"scale": {"low": 0.0, "high": 3.0}, "seed": 0, "copies": 1}
DP_SCORE: dict[str, Json] = {
    "score": {"release": "dp", "components": 5, "epsilon": 1.0, "delta": 1e-5},
    "prior": "prostate_adc",
    "images": 8,
}
EXACT: dict[str, Json] = {"score": {"release": "exact", "components": 5}, "prior": "prostate_adc", "images": 8}


def test_training_synthesis_and_scores_without_noise_are_refused_before_a_patient_is_looked_at(site, monkeypatch):
    from pipelines.hospital import synthesis as imitate
    from pipelines.hospital import training as learn

    for module, name in ((learn, "data_access"), (imitate, "access_to"), (imitate, "score_site")):
        monkeypatch.setattr(module, name, looked)
    asked = [
        ("introduce", site.opening(None)),
        ("introduce", site.opening({"clip": 1.0, "sampling": 0.5, "views": 2, "noise": 0.0})),
        ("synthesize", {"cohort": site.cohort, **SCALE, "synthesis": {"name": "wgan_gp", "epsilon": None}}),
        ("score", {"cohort": site.cohort, **SCALE, **EXACT}),
    ]
    for number, (request, facts) in enumerate(asked):
        with pytest.raises(Refused) as caught:
            site.ask(request, f"r/refused-{number}", facts=facts)
        assert caught.value.code == "policy_privacy", request


NOISY: Json = {"clip": 1.0, "sampling": 0.5, "views": 2, "noise": 1.0, "validation_noise": 4.0}


def test_a_reply_above_a_cap_is_refused_before_a_patient_is_looked_at(site, monkeypatch):
    from pipelines.hospital import benchmark as compared
    from pipelines.hospital import scoring
    from pipelines.hospital import synthesis as imitate
    from pipelines.hospital import training as learn

    network = Task(Mlp(hidden=(2,)), (1, 16, 16), 2).network().state_dict()
    start = {f"model/{name}": value for name, value in network.items()}
    chosen: dict[str, Json] = {"train_run": "r/c", "checkpoint": "latest", "best": None, "copies": 2, "label": "x"}
    asked: list[tuple[str, dict[str, Json], Mapping[str, Tensor]]] = [
        ("train", {"algorithm": {}, "best": None}, start),
        ("evaluate", {**chosen, "cohort": site.cohort, "opening": site.opening(NOISY)}, network),
        ("score", {"cohort": site.cohort, **SCALE, **DP_SCORE}, {}),
        (
            "synthesize",
            {"cohort": site.cohort, **SCALE, "synthesis": {"name": "dp_wgan_gp", "epsilon": 3.0, "delta": 1e-5}},
            {},
        ),
    ]
    settings, past = site.hospital.settings, ledgers.spent_events(ledgers.read_lines(site.hospital.ledger))
    for cap in ("release", "run", "total"):
        least = compute_cost(past, 1e-5).epsilon + 0.01
        wide = Budget(epsilon=least if cap == "total" else 200.0)
        most = None if cap == "total" else Most(**{"release": 0.01, "run": 0.01} if cap == "run" else {cap: 0.01})
        policy = replace(REQUIRES, budget=wide, most=most)
        site_ = replace(site.hospital, settings=replace(settings, policy=policy))
        make_worker(site_)(Call("r/c", 0, "introduce", {}), Message({}, site.opening(NOISY)))
        with monkeypatch.context() as blind:
            for module, name in (
                (learn, "data_access"), (imitate, "access_to"), (imitate, "score_site"), (scoring, "rows_of"),
                (compared, "all_rows"),
            ):  # fmt: skip
                blind.setattr(module, name, looked)
            for number, (request, facts, tensors) in enumerate(asked):
                call = Call("r/c" if request == "train" else f"r/{cap}-{number}", int(request == "train"), request, {})
                with pytest.raises(Refused) as caught:
                    make_worker(site_)(call, Message(tensors, facts))
                assert caught.value.code == "budget", (cap, request, caught.value.__cause__)
    assert (
        compute_cost(ledgers.spent_events(ledgers.read_lines(site.hospital.ledger)), 1e-5).epsilon
        == compute_cost(past, 1e-5).epsilon
    )


def looked(*arguments, **options):
    raise AssertionError("a patient was looked at")


def test_a_private_run_passes_and_all_of_it_has_an_epsilon(site):
    how: Json = {"clip": 1.0, "sampling": 0.5, "views": 2, "noise": 4.0, "validation_noise": 4.0}
    network = Task(Mlp(hidden=(2,)), (1, 16, 16), 2).network().state_dict()
    start = {f"model/{name}": value for name, value in network.items()}
    site.ask("introduce", "r/x", facts=site.opening(how))
    site.ask("train", "r/x", 1, facts={"algorithm": {}, "best": None}, tensors=start)
    make_worker(site.hospital)(Call("r/x", 2, "finish", {"a": 1}), Message(start, {"algorithm": {}, "best": None}))
    chosen: dict[str, Json] = {"train_run": "r/x", "checkpoint": "latest", "best": None}
    scored = site.ask("evaluate", "r/score", facts={**chosen, "label": "x", "cohort": site.cohort, "copies": 10})
    assert scored.tensors and site.ask("export", "r/export", facts=chosen).tensors
    told = site.ask("audit", "r/audit", facts={**chosen, "cohort": site.cohort})
    assert told.facts == {"found": None}, "what an attack found stays here"
    assert 0 < compute_cost(ledgers.spent_events(ledgers.read_lines(site.hospital.ledger)), 1e-5).epsilon < 100


def settings(**changes) -> dict:
    plain = copy.deepcopy(BASE)
    plain["sites"]["a"]["policy"] = {"require": "privacy", "public": ["counts"], "budget": BUDGET}
    return {**plain, **changes}


def load(plain: dict) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(plain), environment={}), Config)


def test_check_and_the_survey_say_it_before_anything_is_learnt(site):
    with pytest.raises(ConfigError, match="without a finite epsilon"):
        load(settings())
    plain = copy.deepcopy(BASE)
    config = load(plain)
    reply = read_form(Surveyed, site.ask("survey", "r/survey", facts={}))
    said = permissions_from(reply)
    assert said.private and not permissions_from(replace(reply, private=False)).private
    (found,) = [text for text in find_refused_requests(config, {"a": said}) if "epsilon" in text]
    assert "privacy: {epsilon: ...}" in found
    assert find_refused_requests(config, {"a": Permissions(said.requests, None)}) == []
    assert any("requires privacy" in text for text in list_promises(REQUIRES))


def test_a_cap_that_a_run_will_meet_is_told_before_it_with_all_that_it_would_cost(tmp_path):
    policy, event = Policy(budget=Budget(epsilon=8.0), most=Most(release=1.5, run=1.5)), Gaussian(3.0)
    ledger = tmp_path / "ledger.jsonl"
    place = {"policy": policy, "ledger": ledger, "recipient": "coordinator", "now": "", "replay": False}
    release_reply(b"x", describe_event(event), forms=None, call=Call("one/x", 0, "train", {}), **place)

    def ahead(run: str, events: list[Event], **releases: Event) -> list[str]:
        each = {name: [one] for name, one in releases.items()}
        found = foresee_refusals(policy, ledger, run=run, releases=each, events=events)
        return [text.partition(" would")[0] for text in found]

    assert compute_cost([event], 1e-5).epsilon < 1.5 < compute_cost([event] * 2, 1e-5).epsilon
    assert ahead("other", [event], train=event) == []
    assert ahead("one", [event], train=event) == ["runs named one"]
    assert ahead("other", [event] * 2, train=event) == ["runs named other"]
    assert ahead("other", [Gaussian(2.0)], train=Gaussian(2.0)) == ["one reply of train", "runs named other"]
    assert ahead("other", [event] * 40, train=event) == ["runs named other", "all that ever left"]


def test_a_hospitals_statement_is_in_its_own_words(site):
    """A coordinator that speaks of unit, δ, audits, dates or runs is refused; its title is marked, and inert."""
    assert site.hospital.settings is not None
    policy = replace(REQUIRES, unit="eye", budget=Budget(epsilon=200.0, delta=1e-7))
    real = replace(site.hospital, settings=replace(site.hospital.settings, policy=policy), simulation=False)
    audit: Json = {"claimed": 1.0, "bound": 0.0, "canaries": 9, "steps": 9, "delta": 0.5, "confidence": 0.99}
    said: dict[str, Json] = {
        "unit": "cadaver<b>",
        "delta": 0.9,
        "audit": audit,
        "date": "1999-01-01",
        "run": "other-run",
    }
    page: dict[str, Json] = {"title": "<script>x</script>", "cohort": site.cohort, "reference": None, "copies": 3}
    facts = {**page, "methods": [], "spaces": []}
    for name, value in said.items():
        with pytest.raises(Refused, match="unknown_setting"):
            make_worker(real)(Call("r/page", 0, "report", {}), Message({}, {**facts, name: value}))
    stated = make_worker(real)(Call("r/page", 0, "report", {}), Message({}, facts)).facts["statement"]
    assert isinstance(stated, dict)
    assert (stated["unit"], stated["delta"], stated["audit"]) == ("simulated eye", 1e-7, None)
    text, markdown = ((real.root / name).read_text() for name in ("report.html", "statement.md"))
    assert "<script>x" not in text and "title given by the coordinator" in text
    for word in ("cadaver", "1999", "other-run", "0.9 ", "99 %"):
        assert word not in markdown
    assert "1999-01" not in text and "other-run" not in text


@pytest.mark.parametrize("unit", ["", "a" * 41, "a|b", "<b>", "eye\n", " eye", "1"])
def test_what_a_patient_is_called_is_a_word_or_two(unit):
    with pytest.raises(ValueError, match=r"unit"):
        Policy(unit=unit)
