"""Settings of methods as attacks: what never ends, what fills the memory, what goes to others unasked, who pays twice.

Each test is an attack that once worked, or the law that keeps the next one out.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

import methods
import small_clip
from consilium.testing import testbed
from federation.algorithm import recipient_of
from federation.descent import Work
from federation.engine import Answers
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.parameters import count_values, read_parameters
from federation.rounds import Schedule
from federation.sizes import PARAMETERS, count_network_values
from federation.task import Task
from personalize.apple import Apple
from personalize.fedfomo import FedFomo
from personalize.heurfedamp import HeurFedAMP
from personalize.pgfed import PGFed
from pipelines.data.images import Slices
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.statement import build_own_statement, describe_contents
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.leaving import left_in
from pipelines.requests.train import SILENT, SILENT_SAYS
from pipelines.settings.config import Config
from pipelines.settings.sites import SiteSettings
from privacy.dp import access_limit
from privacy.dp.accounting import compute_cost
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import COORDINATOR, SITES, Budget, Policy

PAYS = Policy(budget=Budget(epsilon=4.0), public=("counts",))
OPEN = Policy(recipients=(COORDINATOR, SITES))
PRIVATE: dict[str, Json] = {"clip": 1.0, "sampling": 0.5, "views": 2, "noise": 8.0, "validation_noise": None}
NETWORK = Task(Mlp(hidden=(2,)), (1, 16, 16), 2).network().state_dict()
STEP: dict[str, Json] = {"optimizer": "sgd", "lr": 0.01, "steps": 1, "epochs": None, "augment": "none"}


class Site:
    """A hospital that has read its patients, and a coordinator that says to it what it likes."""

    def __init__(self, hospital: Hospital, cohort: str) -> None:
        self.hospital, self.cohort, self.runs = hospital, cohort, itertools.count()

    def under(self, policy: Policy, **settings: Any) -> Site:
        """The same hospital with another policy."""
        assert self.hospital.settings is not None
        made = Site(
            replace(self.hospital, settings=replace(self.hospital.settings, policy=policy, **settings)), self.cohort
        )
        made.runs = self.runs
        return made

    def ask(self, request: str, run: str, round_: int, message: Message) -> Message:
        return make_worker(self.hospital)(Call(run, round_, request, {}), message)

    def introduced(self, **changes: Json) -> str:
        run = f"r/x{next(self.runs)}"
        said: dict[str, Json] = {"label": "x", "algorithm": {"name": "fedavg"}, "seed": 0, "cohort": self.cohort}
        said |= {"model": {"name": "mlp", "hidden": [2]}, "inputs": [1, 16, 16], "classes": 2, "work": STEP}
        said |= {"privacy": PRIVATE, "evaluation_noise": 50.0}
        self.ask("introduce", run, 0, Message({}, {**said, **changes}))
        return run

    def train(self, run: str, sent: Message) -> Message:
        return self.ask("train", run, 1, Message(sent.tensors, {"algorithm": dict(sent.facts), "best": None}))

    def code(self, **changes: Json) -> str:
        with pytest.raises(Refused) as caught:
            self.introduced(**changes)
        return caught.value.code

    @property
    def lines(self) -> list[dict[str, Json]]:
        return [dict(line) for line in ledgers.read_lines(self.hospital.ledger)]

    @property
    def log(self) -> str:
        return (self.hospital.root / "log.txt").read_text()


@pytest.fixture(scope="module")
def hospital(tmp_path_factory) -> Site:
    settings = SiteSettings(source=PhantomSource(scanner="P", patients=12, seed=1, slices=4), policy=Policy())
    made = Hospital("a", tmp_path_factory.mktemp("methods") / "a", settings, lambda: "2026-01-01T00:00:00Z")
    split = {"train": 0.5, "validation": 0.15, "test": 0.35}
    images = to_plain(Slices(size=16, spacing_mm=4.0))
    asked: dict[str, Json] = {"images": images, "split": split, "seed": 0, "independent": True}
    cohort = make_worker(made)(Call("r/ingest", 0, "ingest", {}), Message({}, asked)).facts["cohort"]
    return Site(made, str(cohort))


ENDLESS = [
    {"algorithm": {"name": "fedrep", "head_epochs": 5000}},
    {"algorithm": {"name": "fedrep", "body_epochs": 5000}},
    {"algorithm": {"name": "pfedme", "K": 5000}},
    {"algorithm": {"name": "pfedme", "K": 60}, "work": {**STEP, "steps": 60}},
    {"work": {**STEP, "steps": 5000}},
]


@pytest.mark.parametrize("change", ENDLESS)
@pytest.mark.parametrize("policy", [PAYS, Policy()])
def test_a_private_round_that_hardly_ends_is_refused_before_a_patient_is_looked_at(
    hospital, policy, change, monkeypatch
):
    monkeypatch.setattr(access_limit, "LOOKS", 100)
    site = hospital.under(policy)
    before = len(site.lines)
    assert site.code(**change) == "malformed_opening"
    (line,) = site.lines[before:]
    assert line["refused"] == "malformed_opening" and line["bytes"] == 0
    assert compute_cost(ledgers.spent_events([line]), 1e-5).epsilon == 0
    assert "100 times" in site.log.splitlines()[-1]


@pytest.mark.parametrize("privacy", [PRIVATE, None])
@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": {"name": "fedrep", "head_epochs": 10**9}},
        {"algorithm": {"name": "fedrep", "head_steps": 10**9, "body_steps": 1}},
        {"algorithm": {"name": "pfedme", "K": 10**9}},
        {"work": {**STEP, "steps": 10**9}},
        {"work": {**STEP, "steps": None, "epochs": 10**9}},
    ],
)
def test_numbers_beyond_all_reason_are_refused_at_once_also_without_protection(hospital, privacy, change):
    assert hospital.code(privacy=privacy, **change) == "malformed_opening"
    assert "1000000000" in hospital.log.splitlines()[-1]


def test_what_ends_is_not_refused(hospital):
    for change in ({"algorithm": {"name": "fedrep"}}, {"algorithm": {"name": "pfedme"}, "work": {**STEP, "lr": 0.05}}):
        assert hospital.introduced(**change)


WIDE: list[dict[str, Json]] = [
    {"algorithm": {"name": "cusfl", "depth": 1, "projection": 10**5}},
    {"algorithm": {"name": "cusfl", "depth": 1, "projection": 10**6}},
    {"model": {"name": "mlp", "hidden": [10**6, 10**6]}},
    {"model": {"name": "mlp", "hidden": [2**62, 2**62]}},
    {"model": {"name": "cnn", "widths": [80000, 80000]}},
    {"model": {"name": "cam", "widths": [8, 8, 8, 80000]}},
    {"model": {"name": "resnet18", "width": 80000}},
    {"model": {"name": "mlp", "hidden": [1] * 100_000}},
    {"inputs": [1, 10**5, 10**5]},
    {"inputs": [10**12]},
    {"inputs": [1, -16, 16]},
]


@pytest.mark.parametrize("privacy", [PRIVATE, None])
@pytest.mark.parametrize("change", WIDE)
def test_a_network_that_would_fill_the_memory_is_refused_before_it_is_built(hospital, privacy, change):
    assert hospital.code(privacy=privacy, **change) in ("malformed_opening", "malformed_message")


MODELS = [
    (Mlp(hidden=(6,)), (4,)),
    (Cnn(widths=(8, 16)), (1, 16, 16)),
    (Cam(widths=(16, 16, 16, 16), norm="group"), (1, 32, 32)),
    (ResNet18(width=8, small=True), (3, 16, 16)),
]


@pytest.mark.parametrize(("model", "inputs"), MODELS, ids=[model.name for model, _ in MODELS])
def test_what_is_counted_without_building_is_what_would_be_built_for_every_method(model, inputs):
    task = Task(model, inputs, 2)
    for algorithm in methods.ALL:
        state = torch.get_rng_state()
        counted = count_network_values(algorithm, task)
        assert torch.equal(state, torch.get_rng_state()), "counting draws no random number"
        assert counted == count_values(read_parameters(algorithm.network(task))), algorithm.name
        assert 0 < counted < PARAMETERS


class Overheard(testbed.SerializingEngine):
    """An engine that keeps what each site said and got."""

    def __init__(self, hospitals):
        super().__init__(hospitals)
        self.said: list[tuple[str, torch.Tensor]] = []
        self.handed: set[tuple[str, str]] = set()

    def ask(self, call: Call, messages, *, deadline_s=None) -> Answers:
        for site, message in messages.items():
            for value in message.tensors.values():
                self.handed |= {(other, site) for other, heard in self.said if other != site and _same(heard, value)}
        answers = super().ask(call, messages, deadline_s=deadline_s)
        own = [(site, value) for site, reply in answers.replies.items() for value in reply.tensors.values()]
        self.said += [
            (site, value)
            for site, value in own
            if value.numel() >= 8 and not any(_same(value, other) for name, other in own if name != site)
        ]
        return answers


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are one, up to a factor."""
    if one.shape != other.shape or not one.is_floating_point():
        return False
    a, b = one.double().flatten(), other.double().flatten()
    size = float(a.norm() * b.norm())
    return size > 0 and abs(float(a @ b)) / size > 1 - 1e-9


HANDING = [
    *methods.ALL,
    Apple(M=1),
    Apple(cores="independent"),
    FedFomo(M=1),
    HeurFedAMP(xi=0.0, sigma=1e4),
    PGFed(slopes="each"),
    PGFed(slopes="each", eta_2=0.0),
    PGFed(eta_2=0.0),
]


@pytest.mark.parametrize("algorithm", HANDING, ids=lambda one: repr(one).replace(" ", ""))
def test_a_method_that_hands_a_sites_tensors_to_others_says_so(algorithm):
    work = Work(optimizer="sgd", lr=0.05, batch=8)
    on_tables = not algorithm.complaints(
        algorithm.network(testbed.make_task()), work, False
    )  # others need images, or masks
    task, make = (testbed.make_task(), testbed.make_table) if on_tables else (testbed.dense_task(), testbed.make_scenes)
    if algorithm.name in methods.ON_PROMPTS:
        task, make = small_clip.task(), small_clip.table
    sites = {name: make(number, shift=0.3 * number) for number, name in enumerate("abc")}
    hospitals = testbed.make_federation(algorithm, sites, task=task, work=work)
    engine = Overheard(hospitals)
    testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=3), engine=engine)
    assert bool(engine.said) == (algorithm.name not in SILENT)
    if engine.handed:
        assert recipient_of(algorithm) == SITES, f"{algorithm.name} hands on {engine.handed}"


def test_who_gets_what_methods_are_told():
    every = {one.name for one in methods.ALL if recipient_of(one) == SITES}
    assert every == {"apple", "feddg", "fedfomo", "heurfedamp", "pfedmoap"}
    assert recipient_of(PGFed()) == recipient_of(PGFed(slopes="each", eta_2=0.0)) == COORDINATOR
    assert recipient_of(PGFed(slopes="each")) == recipient_of(PGFed(name="pgfedmo", slopes="each")) == SITES


TO_ALL: list[dict[str, Json]] = [
    {"name": "apple"},
    {"name": "fedfomo"},
    {"name": "heurfedamp"},
    {"name": "pgfed", "slopes": "each"},
]


@pytest.mark.parametrize("algorithm", TO_ALL, ids=lambda one: one["name"])
def test_a_hospital_that_never_spoke_of_other_sites_hands_them_nothing(hospital, algorithm):
    before = len(hospital.lines)
    assert hospital.code(algorithm=algorithm, privacy=None) == "policy_recipient"
    (line,) = hospital.lines[before:]
    assert (line["refused"], line["bytes"]) == ("policy_recipient", 0)
    told = hospital.log.splitlines()[-1]
    assert str(algorithm["name"]) in told and "recipients: [coordinator, sites]" in told


@pytest.mark.parametrize("algorithm", TO_ALL, ids=lambda one: one["name"])
def test_what_goes_to_all_sites_is_booked_and_stated_so(hospital, algorithm):
    site = hospital.under(OPEN)
    before = len(site.lines)
    run = site.introduced(algorithm=algorithm, privacy=None)
    plain = site.introduced(privacy=None)
    assert [line["recipient"] for line in site.lines[before:]] == [SITES, COORDINATOR]
    own = describe_contents(site.hospital, site.lines[before:])
    assert f"handed on to all other sites ({run})" in own["introduce"]
    assert "other sites" not in own["train"]
    only = [line for line in site.lines[before:] if line["run"] == run]
    assert describe_contents(site.hospital, only)["introduce"].endswith("handed on to all other sites")
    stated = build_own_statement(site.hospital, site.lines[before:])
    assert "handed on to all other sites" in str(stated) and plain != run


@pytest.mark.parametrize("algorithm", [{"name": "local"}, {"name": "at_home", "of": {"name": "fedavg"}}], ids=str)
def test_what_methods_at_home_reply_is_stated_as_losses_and_not_as_parameters(hospital, algorithm):
    site = hospital.under(OPEN)
    runs = [site.introduced(algorithm=one, privacy=None) for one in (algorithm, {"name": "fedavg"})]
    lines = [*site.lines, *({"request": "train", "run": run} for run in runs)]
    alone, both = ([line for line in lines if line["run"] in some] for some in (runs[:1], runs))
    assert describe_contents(site.hospital, alone)["train"] == SILENT_SAYS
    assert (
        describe_contents(site.hospital, both)["train"]
        == "parameters of the method, validation loss, number of examples"
    )
    assert left_in("a", "train", SILENT_SAYS, "none").brief == "validation losses"


def test_a_round_and_its_replay_are_booked_for_all_sites_and_the_last_loss_is_not(hospital):
    site = hospital.under(OPEN)
    run = site.introduced(algorithm={"name": "heurfedamp"}, privacy=None)
    before, sent = len(site.lines), Message({f"model/{name}": value for name, value in NETWORK.items()})
    first = site.train(run, sent)
    assert site.train(run, sent).tensors.keys() == first.tensors.keys()
    facts: dict[str, Json] = {"algorithm": {}, "best": None}
    make_worker(site.hospital)(Call(run, 2, "finish", {"a": 1}), Message(sent.tensors, facts))
    assert [(line["request"], line["recipient"], line["again"]) for line in site.lines[before:]] == [
        ("train", SITES, False),
        ("train", SITES, True),
        ("finish", COORDINATOR, False),
    ]


def test_a_policy_that_grew_stricter_stops_what_was_begun_and_what_was_committed(hospital):
    run = hospital.under(OPEN).introduced(algorithm={"name": "heurfedamp"}, privacy=None)
    sent = Message({f"model/{name}": value for name, value in NETWORK.items()})
    with pytest.raises(Refused, match="policy_recipient"):
        hospital.train(run, sent)
    assert not hospital.hospital.conversation(run).has("train-1"), "refused before it was done"
    hospital.under(OPEN).train(run, sent)
    with pytest.raises(Refused, match="policy_recipient"):
        hospital.train(run, sent)
    assert hospital.lines[-1]["bytes"] == 0


def test_what_the_coordinator_says_counts_and_not_the_sites_own_part(hospital):
    """A site that leaves its own slopes alone does not stop the coordinator from sending its gradient to all."""
    site = hospital.under(Policy(), methods={"x": {"slopes": "mean"}})
    assert site.code(algorithm={"name": "pgfed", "slopes": "each"}, privacy=None) == "policy_recipient"
    other = hospital.under(Policy(), methods={"x": {"slopes": "each"}})
    assert other.code(algorithm={"name": "pgfed"}, privacy=None) == "policy_recipient"


def test_a_policy_knows_its_recipients():
    with pytest.raises(ValueError, match=r"recipients: unknown friend; known are coordinator, sites"):
        Policy(recipients=(COORDINATOR, "friend"))
    with pytest.raises(ValueError, match="say coordinator too"):
        Policy(recipients=(SITES,))
    assert Policy().recipients == (COORDINATOR,)
    assert Policy(recipients=()).recipients == ()


TABLE: dict[str, Any] = {
    "name": "parts",
    "privacy": {"epsilon": 3.0},
    "sites": {
        "t": {
            "source": {"kind": "table", "file": "t.csv", "patient": "id", "label": "ill"},
            "policy": {"public": ["counts"]},
            "part": {"kind": "even", "of": 3, "tests": "own"},
        }
    },
    "images": {"kind": "features", "numbers": ["a", "b", "c"], "normalize": "none"},
    "split": {"train": 0.6, "validation": 0.2, "test": 0.2},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"schedule": {"rounds": 2}, "methods": {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}},
    "evaluate": {"copies": 10},
    "audit": {"membership": False},
}


def made(**changes: Any) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump({**copy.deepcopy(TABLE), **changes}), environment={}), Config)


def test_test_patients_of_every_part_cannot_be_scored_privately():
    """Each hospital would book its own epsilon for the same patients, and nobody the sum."""
    assert len(made().sites) == 3
    shared = copy.deepcopy(TABLE["sites"])
    shared["t"]["part"]["tests"] = "source"
    with pytest.raises(ConfigError) as caught:
        made(sites=shared)
    assert "sites.t-1.part.tests: source" in str(caught.value) and "say tests: own" in str(caught.value)
    assert made(sites=shared, privacy="none")


def told_of(**changes: Any) -> str:
    """What is wrong with a run's settings; nothing where they are accepted."""
    try:
        made(privacy="none", **changes)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_run_says_which_method_hands_on_what_and_what_to_do():
    train = {"schedule": {"rounds": 2}, "methods": {"mine": {"name": "apple"}, "fedavg": {"name": "fedavg"}}}
    said = told_of(train=train)
    assert "sites.t-3.policy.recipients: train.methods.mine (apple) hands" in said
    assert "say recipients: [coordinator, sites]" in said and "fedavg" not in said
    willing = copy.deepcopy(TABLE["sites"])
    willing["t"]["policy"] = {"recipients": ["coordinator", "sites"]}
    assert told_of(train=train, sites=willing) == told_of() == ""
