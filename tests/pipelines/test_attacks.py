"""A coordinator that cheats: whatever it asks, a hospital with a budget tells nothing that its ledger does not charge.

Each test is an attack that once worked.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from federation.models.mlp import Mlp
from federation.task import Task
from pipelines.data.images import Slices
from pipelines.hospital import worker as way_in
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.learning import Split
from pipelines.settings.sites import SiteSettings
from privacy.dp.access import Rows
from privacy.dp.accounting import compute_cost
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

BUDGET = Policy(budget=Budget(epsilon=4.0), public=("counts",))
IMAGES = Slices(size=16, spacing_mm=4.0)
PRIVATE = {"clip": 1.0, "sampling": 1.0, "views": 2, "noise": 8.0, "validation_noise": None}
NETWORK = Task(Mlp(hidden=(2,)), (1, 16, 16), 2).network().state_dict()


class Site:
    """A hospital, and a coordinator that says to it what it likes."""

    def __init__(self, folder: Path, policy: Policy = BUDGET, home: str | None = None) -> None:
        source = PhantomSource(scanner="P", patients=12, seed=1, slices=4)
        settings = SiteSettings(source=source, policy=policy, home=home)
        self.hospital = Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")

    def ask(self, request: str, run: str, round_: int = 0, merged: int = 0, message: Message | None = None) -> Message:
        call = Call(run, round_, request, {"a": merged} if merged else {})
        return make_worker(self.hospital)(call, message or Message())

    def code(self, *arguments, **options) -> str:
        with pytest.raises(Refused) as caught:
            self.ask(*arguments, **options)
        return caught.value.code

    def ingest(self, run: str = "r/ingest", **changes: Json) -> Message:
        asked = {"images": to_plain(IMAGES), "split": to_plain(Split()), "seed": 0, "independent": True, **changes}
        return self.ask("ingest", run, message=Message({}, asked))

    def introduced(self, cohort: str, run: str = "r/x", **changes: Json) -> None:
        said: dict[str, Json] = {
            "label": "x",
            "algorithm": {"name": "local"},
            "model": {"name": "mlp", "hidden": [2]},
            "inputs": [1, 16, 16],
            "classes": 2,
            "work": {"optimizer": "sgd", "lr": 1.0, "steps": 1, "epochs": None, "augment": "none"},
            "seed": 0,
            "cohort": cohort,
            "privacy": PRIVATE,
            "evaluation_noise": 50.0,
        }
        self.ask("introduce", run, message=Message({}, {**said, **changes}))

    def train(self, round_: int, merged: int, run: str = "r/x", request: str = "train") -> Message:
        start = Message({f"model/{name}": value for name, value in NETWORK.items()}, {"algorithm": {}, "best": None})
        return self.ask(request, run, round_, merged, start)

    def export(self, run: str = "r/x") -> Message:
        facts: dict[str, Json] = {"train_run": run, "checkpoint": "latest", "best": None}
        return self.ask("export", "r/export", message=Message({}, facts))

    @property
    def spent(self) -> float:
        return compute_cost(ledgers.spent_events(ledgers.read_lines(self.hospital.ledger)), 1e-5).epsilon


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(tmp_path / "a")


def cohort_of(site: Site) -> str:
    return str(site.ingest().facts["cohort"])


def test_a_run_within_a_run_has_no_name(site):
    cohort = cohort_of(site)
    with pytest.raises(Refused, match="malformed_run"):
        site.introduced(cohort, run="r/x/sub")
    with pytest.raises(Refused, match="malformed_run"):
        site.introduced(cohort, run="r")


def refused_often(site: Site, code: str) -> None:
    """Rounds whose replies are refused: what was learnt in them is not used, however often it is said to be merged."""
    for round_ in range(1, 4):
        with pytest.raises(Refused, match=code if round_ == 1 else f"{code}|unpaid_memory|no_memory"):
            site.train(round_, round_ - 1)
    assert site.spent == 0
    with pytest.raises(Refused, match=r"unpaid_memory|no_memory"):
        site.train(4, 1, request="finish")
    with pytest.raises(Refused, match=r"no_model|unpaid_memory"):
        site.export()
    assert site.spent == 0


def test_what_was_learnt_in_a_refused_round_is_not_used(tmp_path):
    site = Site(tmp_path / "a", replace(BUDGET, max_bytes=1200))
    site.introduced(cohort_of(site), algorithm={"name": "fedavg"})
    refused_often(site, "policy_bytes")


def test_a_policy_that_grew_stricter_holds_for_what_was_planned_before(tmp_path):
    """Its counts were told before it had a budget: it trains after it has told those that it will repeat."""
    site = Site(tmp_path / "a", Policy())
    cohort = cohort_of(site)
    strict = Site(tmp_path / "a", Policy(budget=Budget(epsilon=4.0)))
    with pytest.raises(Refused, match="no_counts"):
        strict.introduced(cohort)
    assert strict.spent == 0


def test_work_that_was_committed_and_not_booked_is_charged_even_if_it_looks_like_an_old_reply(tmp_path, monkeypatch):
    """A run's folder is deleted, its ledger lives on; killed between commit and line, the site answers as before."""
    home, folder = str(tmp_path / "home"), tmp_path / "a"
    spent = []
    for again in (False, True):
        site = Site(folder, home=home)
        site.introduced(cohort_of(site))
        if again:
            with monkeypatch.context() as patch:

                def killed(*arguments, **options):
                    raise KeyboardInterrupt

                patch.setattr(way_in, "release_reply", killed)
                with pytest.raises(KeyboardInterrupt):
                    site.train(1, 0)
        site.train(1, 0)
        spent.append(site.spent)
        shutil.rmtree(folder)
    assert spent[1] > 1.2 * spent[0]


def test_a_model_that_was_paid_for_leaves_at_no_further_cost(site):
    site.introduced(cohort_of(site))
    site.train(1, 0)
    site.train(2, 1, request="finish")
    before = site.spent
    assert before > 0
    assert site.export().tensors
    assert site.spent == before


@pytest.mark.repeats(3)
@pytest.mark.parametrize(
    "change",
    [
        {"clip": 1e39},
        {"clip": 7.1e-46},
        {"loss_bound": 1.7e308},
        {"noise": 1e300},
        {"noise": math.nan},
        {"validation_noise": -1.0},
        {"views": 10**9},
        {"sampling": 1e-300},
    ],
)
def test_numbers_beyond_all_bounds_are_refused(site, change):
    cohort = cohort_of(site)
    finite = {name: value for name, value in change.items() if value == value}
    with pytest.raises(ValueError, match="must be in"):
        Protection(**{**PRIVATE, **change})
    if finite:
        with pytest.raises(Refused, match="malformed_opening"):
            site.introduced(cohort, privacy={**PRIVATE, **finite})


@pytest.mark.parametrize("scale", [1e18, 1e25, 1e37])
def test_a_gradient_whose_norm_overflows_is_left_out_and_the_sum_is_finite(scale):
    rows = Rows(torch.ones(4, 3) * torch.tensor([[1.0], [scale], [1.0], [1.0]]), torch.zeros(4).long(), torch.arange(4))
    access = open_private({"train": rows}, Protection(clip=1e2, sampling=1.0, views=1, noise=0.0))
    module = torch.nn.Linear(3, 1)

    def loss(forward, batch):
        return (forward(batch.x) * 1e3)[:, 0]

    gradient = access.gradient(module, loss, access.draw(full=True)).gradient
    total = torch.cat([g.flatten() for g in gradient.values()])
    assert bool(total.isfinite().all()) and float(total.norm()) <= 1e4


def test_a_network_that_does_not_fit_the_patients_is_refused_before_it_sees_one(site):
    cohort = cohort_of(site)
    for change in ({"classes": 1}, {"classes": 3}, {"inputs": [1, 8, 8]}, {"evaluation_noise": math.inf}):
        with pytest.raises(Refused, match="malformed_opening"):
            site.introduced(cohort, **{name: "inf" if value == math.inf else value for name, value in change.items()})


def test_failures_are_told_a_few_times_and_then_nothing_is(tmp_path, monkeypatch):
    site = Site(tmp_path / "a", replace(BUDGET, max_failures=2))
    site.introduced(cohort_of(site))

    def failing(*arguments, **options):
        raise RuntimeError("a patient made it fail")

    monkeypatch.setattr(way_in.learn, "answer_training_call", failing)
    start = Message({f"model/{name}": value for name, value in NETWORK.items()}, {"algorithm": {}, "best": None})
    codes = [site.code("train", "r/x", round_, message=start) for round_ in range(1, 6)]
    assert codes == ["failed", "failed", "failed", "too_many_failures", "too_many_failures"]
    assert site.code("survey", "r/survey") == "too_many_failures"


def test_counts_are_told_of_one_cohort_and_one_division_only(site):
    site.ingest()
    for number, change in enumerate(
        (
            {"seed": 1},
            {"split": {"train": 0.998, "validation": 0.002, "test": 0.0}},
            {"images": {**to_plain(IMAGES), "spacing_mm": 3.9}},
            {"independent": False},
        )
    ):
        with pytest.raises(Refused, match="another_cohort"):
            site.ingest(f"r/ingest-{number}", **change)
    assert site.ingest("r/again").facts["splits"]


def test_nobody_outside_can_tell_where_a_known_patient_comes(tmp_path):
    from pipelines.data.split import split_patients

    names = {f"P{number}": 0 for number in range(200)}
    shares = {"train": 0.5, "validation": 0.2, "test": 0.3}
    one, other = (
        split_patients(names, fractions=shares, seed=0, independent=True, key=key) for key in (b"1" * 32, b"2" * 32)
    )
    assert 0.2 < sum(one[name] == other[name] for name in names) / 200 < 0.6


def test_a_lost_ledger_is_not_begun_anew(site):
    site.introduced(cohort_of(site))
    site.train(1, 0)
    ledger = site.hospital.ledger
    ledger.unlink()
    ledger.with_suffix(".head").unlink()
    assert site.code("survey", "r/survey") == "lost_ledger"
    assert not ledger.exists()


def test_finishing_does_not_make_a_round_that_can_be_trained_again(site):
    site.introduced(cohort_of(site))
    site.train(1, 0)
    site.train(2, 1, request="finish")
    before = site.spent
    assert site.hospital.conversation("r/x").has("train-1")
    site.train(1, 0)
    assert site.spent == before, "it was sent again, not trained again"


def test_a_private_opening_does_not_make_a_plain_model_free(tmp_path):
    site = Site(tmp_path / "a", Policy(public=("counts",)))
    cohort = cohort_of(site)
    site.introduced(cohort, privacy=None)
    site.train(1, 0)
    site.train(2, 1, request="finish")
    opening = {"label": "x", "algorithm": {"name": "local"}, "model": {"name": "mlp", "hidden": [2]}}
    opening |= {"inputs": [1, 16, 16], "classes": 2, "work": {}, "seed": 0, "privacy": PRIVATE, "evaluation_noise": 9.0}
    facts: dict[str, Json] = {
        "label": "x",
        "train_run": "r/x",
        "checkpoint": "latest",
        "best": None,
        "cohort": cohort,
        "copies": 0,
        "opening": opening,
    }
    site.ask("evaluate", "r/score", message=Message({}, facts))
    *_, line = ledgers.read_lines(site.hospital.ledger)
    assert line["event"] == {"kind": "non_private"}
