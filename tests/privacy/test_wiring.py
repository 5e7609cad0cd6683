"""The wiring of privacy, from data access to the plan: what is done is what is booked, and nobody can ask around it.

Most tests here were written because a fault that was put in by hand was found by no other.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from asking import trained_method
from fixed_bytes import bytes_of
from torch import nn

from consilium.testing import testbed
from evaluation.scale import LEVELS, tree_levels
from evaluation.votes import BINS, bins_from, class_votes, split_noise
from federation.descent import Work
from federation.engine import Answers
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import QuorumLost, Schedule
from pipelines.coordinator import check
from pipelines.coordinator.run import make_world
from pipelines.coordinator.spaces import SiteCohort
from pipelines.coordinator.spending import (
    at_cut,
    count_steps,
    epsilon_after,
    plan_method,
    replace_mechanisms,
    total_cost,
)
from pipelines.coordinator.stages.audit import SAMPLING, STEPS, _ask_attacks, audit_mechanism
from pipelines.data.cohort import Cohort
from pipelines.data.sources import TableSource
from pipelines.hospital import attacks as attack
from pipelines.hospital import training as learn
from pipelines.hospital.hospital import Hospital, write_cohort_file
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.released_counts import count_once
from pipelines.hospital.released_scores import ScoreNoise, add_noise_to_scores
from pipelines.hospital.statement import build_own_statement, list_left
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.ingest import INGEST, Ingest
from pipelines.runs.stopping import Stop
from pipelines.runs.store import short_digest
from pipelines.settings.config import Config
from pipelines.settings.load import apply_own_policies
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.attacks import audit as auditing
from privacy.dp.access import Batch, Rows
from privacy.dp.accounting import by_split, compute_cost
from privacy.dp.dpsgd import private_gradient
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Gaussian,
    Part,
    PoissonSampled,
    SelfComposed,
    compose_events,
    describe_event,
    parse_event,
)
from privacy.dp.events import parse_or_non_private as known_event
from privacy.dp.modules import find_unfit_parts
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import BUDGET, Refused, find_unaffordable, release_reply
from privacy.release.policy import Budget, Most, Policy
from privacy.release.statement_markdown import render_markdown

COUNTS = Declared("counts")
QUIET = Protection(clip=1e2, sampling=0.5, views=2, noise=0.0, cut="c")
DELTA = 1e-5


class Weights(nn.Module):
    """<w, x>: the gradient of a row is the row, so a noiseless gradient says who was drawn and with what."""

    def __init__(self, m: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w, self.drop = nn.Parameter(torch.zeros(m)), nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(x) @ self.w


def inner(forward, batch):
    return forward(batch.x)


def known(sizes=(1, 2, 3), copies=1) -> Rows:
    """Row i is the i-th unit vector; patients have these many rows each, and their rows stand apart."""
    patient = torch.repeat_interleave(torch.arange(len(sizes) * copies), torch.tensor(sizes).repeat(copies))
    mixed = torch.randperm(len(patient), generator=torch.Generator().manual_seed(0))
    return Rows(torch.eye(len(patient)), (patient % 2)[mixed], patient[mixed])


def added(access, rows: Rows, *, full: bool = False, aux=None, objective=inner):
    """(sum of clipped gradients of the drawn patients) / what data access divides by."""
    return access.gradient(Weights(len(rows.y)), objective, access.draw(full=full), aux).gradient["w"]


# Data access


def test_a_full_draw_is_every_row_of_everybody_as_it_is_divided_by_all_and_booked_as_no_sample():
    rows = known()
    access = open_private(
        {"train": rows},
        replace(QUIET, noise=0.0),
        counts=COUNTS,
        augment=lambda x, y, generator: (torch.zeros_like(x), y),
    )
    found = added(access, rows, full=True)
    assert found == pytest.approx(1.0 / torch.bincount(rows.patient)[rows.patient] / 3)
    assert compose_events(access.events) == compose_events(
        [COUNTS, Part("c", "train", PoissonSampled(1.0, Gaussian(0.0)))]
    )


def test_each_patient_is_drawn_with_q_alone_and_shows_k_views_that_change():
    rows, p = known(copies=2), replace(QUIET, sampling=0.3, views=2)
    access = open_private({"train": rows}, p, source=bytes_of(3))
    found = torch.stack([added(access, rows) for _ in range(300)]) * 0.3 * 6
    seen = torch.zeros(300, 6).index_add_(1, rows.patient, found)
    assert set(seen.round(decimals=4).flatten().tolist()) == {0.0, 1.0}
    assert seen.mean(dim=0) == pytest.approx(torch.full((6,), 0.3), abs=0.1)
    assert torch.corrcoef(seen.T).fill_diagonal_(0.0).abs().max() < 0.25
    assert set(found.round(decimals=4).flatten().tolist()) == {0.0, 0.5, 1.0}, "two views, of one row or of two"
    even = found.mean(dim=0) / 0.3 * torch.bincount(rows.patient)[rows.patient]
    assert even == pytest.approx(torch.ones(len(rows.y)), abs=0.5)


def test_augmentation_follows_from_a_state_of_its_own_for_every_draw():
    states = []

    def noted(x, y, generator):
        states.append(bytes(generator.get_state().tolist()))
        return x, y

    rows = known()
    for _ in range(2):
        torch.manual_seed(0)
        access = open_private({"train": rows}, replace(QUIET, sampling=1.0), augment=noted)
        for _ in range(2):
            added(access, rows)
    assert len(set(states)) == 4


@pytest.mark.chance(6e-10, "one of 7 patients misses one of 3 sets in 60 draws: 21 (2/3)^60")
def test_patients_get_sets_of_aux_at_random():
    rows = Rows(torch.eye(7), torch.zeros(7, dtype=torch.long), torch.arange(7))
    access = open_private({"train": rows}, QUIET)
    aux = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)

    def drawn() -> tuple[float, ...]:
        found = added(access, rows, full=True, aux=aux, objective=lambda f, b: f(b.x) * b.aux[:, 0])
        return tuple((7 * found).round().tolist())

    draws = [drawn() for _ in range(60)]
    assert {value for draw in draws for value in draw} == {1.0, 2.0, 3.0}
    assert len(set(draws)) > 40, "neither the same nor in turn"
    assert all(len({draw[place] for draw in draws}) == 3 for place in range(7)), "each patient by itself"
    with pytest.raises(ValueError, match=r"aux must be \(A, 2, ...\)"):
        added(access, rows, aux=torch.zeros(3, 1, 1))


def test_dropout_differs_between_patients_and_needs_more_than_a_seed_of_64_bits():
    rows = Rows(torch.ones(12, 3), torch.zeros(12, dtype=torch.long), torch.arange(12))
    draw = bytes_of(5)
    found = []
    for _ in range(2):
        access = open_private({"train": rows}, QUIET, source=lambda n: bytes(8) if n == 8 else draw(n))
        module = Weights(3, dropout=0.5)
        found.append(access.gradient(module, inner, access.draw(full=True)).gradient["w"])
    assert not torch.equal(*found), "the eight bytes of the seed were the same"
    assert not set((found[0] * 12).round().tolist()) <= {0.0, 24.0}, "one mask for all patients"


def test_every_new_module_is_checked_before_its_gradient():
    rows = known()
    access = open_private({"train": rows}, QUIET)
    added(access, rows)
    both = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), Weights(6))
    with pytest.raises(ValueError, match="BatchNorm1d mixes the examples"):
        access.gradient(both, inner, access.draw())


def test_a_network_of_which_nothing_is_trained_is_told_so():
    assert find_unfit_parts(nn.Linear(2, 2).requires_grad_(False)) == [
        "the network has no parameter to train; use another one"
    ]


def test_parameters_that_are_not_trained_have_no_gradient_and_no_part_in_the_clip():
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    module[0].requires_grad_(False)
    views = Batch(torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    (patient,) = patient_gradients(module, lambda f, b: f(b.x)[:, 0], [views])
    assert set(patient) == {"1.weight", "1.bias"}


def wide(dropout: float) -> tuple[Weights, Rows]:
    """600 rows of 200 patients that stand apart: more than are measured at a time."""
    g = torch.Generator().manual_seed(1)
    patient = torch.randint(200, (600,), generator=g)
    module = Weights(5, dropout)
    module.w.data = torch.randn(5, generator=g)
    return module, Rows(torch.randn(600, 5, generator=g), torch.zeros(600, dtype=torch.long), patient)


def test_a_measure_is_of_patients_whose_rows_stand_apart_and_leaves_the_mode_as_it_was():
    module, rows = wide(0.5)
    p = replace(QUIET, validation_noise=0.0, loss_bound=100.0)
    access = open_private({"train": known(), "validation": rows}, p)
    found = [access.measure(module, lambda f, b: f(b.x) ** 2, "validation") for _ in range(2)]
    values = (rows.x @ module.w.detach()) ** 2
    wanted = torch.stack([values[rows.patient == one].mean() for one in rows.patient.unique()]).mean()
    assert found == pytest.approx([float(wanted)] * 2, rel=1e-5) and module.training


def test_noise_of_a_measure_and_of_shares_is_what_is_booked():
    p = replace(QUIET, validation_noise=1.5, loss_bound=4.0, counts_noise=0.25)
    rows = Rows(torch.eye(60), torch.arange(60) % 2, torch.arange(60))
    access = open_private({"train": rows, "validation": rows}, p, source=bytes_of(2))
    module = Weights(60)
    means = torch.tensor([access.measure(module, lambda f, b: f(b.x) + 2.0, "validation") for _ in range(400)])
    assert float(means.std()) == pytest.approx(1.5 * 2.0 / 60, rel=0.15)
    shares = torch.stack([access.shares(2) for _ in range(400)])
    assert float((shares[:, 0] - shares[:, 1]).std()) == pytest.approx(0.25 * 2**0.5 / 60, rel=0.15)


def test_shares_are_of_training_patients_booked_on_their_split_and_never_zero():
    rows = Rows(torch.zeros(6, 1), torch.tensor([1, 0, 1, 0, 0, 1]), torch.tensor([7, 3, 7, 3, 5, 7]))
    access = open_private({"train": rows}, replace(QUIET, counts_noise=0.0))
    assert access.shares(3).tolist() == pytest.approx([2 / 4, 1 / 4, 1 / 4])
    assert access.events == [Part("c", "train", Gaussian(0.0))]


def test_sizes_are_of_their_split_and_a_split_that_is_not_there_is_empty():
    access = open_private({"train": known(), "validation": known(copies=2)}, QUIET)
    assert [access.size(split) for split in ("train", "validation", "test")] == [3, 6, 0], "patients, not rows"


def test_settings_without_meaning_are_refused_one_by_one():
    for wrong in (
        {"sampling": 0.0},
        {"sampling": 1.1},
        {"noise": -0.1},
        {"noise": math.inf},
        {"clip": math.inf},
        {"loss_bound": 0.0},
        {"loss_bound": math.nan},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Protection(**wrong)


def test_what_is_rehearsed_has_everything_that_is_booked_without_computing():
    class Told(Local):
        def introduce(self, site):
            site.shares()
            return super().introduce(site)

        def complaints(self, module, work, private):
            return []

    task, work = testbed.make_task(), Work(epochs=3)
    p = replace(QUIET, noise=1.0, validation_noise=2.0, counts_noise=5.0)
    seen = rehearse_events(Told(), task, work, initial_parameters(Told(), task, seed=0), p)
    assert seen.introduction == Part("c", "train", Gaussian(5.0))
    assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.5, Gaussian(1.0))), 6)
    assert seen.validation == Part("c", "validation", Gaussian(2.0))


def test_noise_follows_its_source_and_no_generator_of_torch():
    params = {"w": nn.Parameter(torch.zeros(4))}
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        found.append(private_gradient(params, [], clip=1.0, noise=1.0, expected=1.0, source=bytes_of(seed))["w"])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


# The gate

CALL = Call("run", 3, "train", {})


def let(ledger, event, policy=None, *, call=CALL, reply=b"abc", replay=False, recipient="coordinator", commit=""):
    """The ledger's last line after a release, refused or not."""
    code, book_ = None, ledger / "ledger.jsonl"
    more = {"replay": replay, "commit": commit, "recipient": recipient, "now": "2026-01-01T00:00:00Z"}
    try:
        release_reply(
            reply, describe_event(event), forms=None, call=call, policy=policy or Policy(), ledger=book_, **more
        )
    except Refused as refused:
        code = refused.code
    last = list(ledgers.read_lines(book_))[-1]
    assert last["refused"] == code, "what was refused stands there with its code, and nothing else"
    return last


def allowing(events, delta, **more) -> Policy:
    """A budget of just what these events cost, at once or one by one."""
    budget = Budget(epsilon=compute_cost(events, delta).epsilon, delta=delta)
    return Policy(budget=budget, most=Most(release=budget.epsilon), public=("counts",), **more)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_a_budget_lasts_for_what_it_was_counted_for_at_its_own_delta_and_for_nothing_more(tmp_path, delta):
    one = Part("c", "train", Gaussian(2.0))
    policy = allowing([one, one], delta)
    calls = [Call("run", round_, "train", {}) for round_ in range(4)]
    said = [let(tmp_path, one, policy, call=call) for call in calls]
    assert [line["refused"] for line in said] == [None, None, BUDGET, BUDGET]
    other = Part("c", "validation", Gaussian(2.0))
    assert let(tmp_path, other, policy)["refused"] is None, "other patients pay"
    assert let(tmp_path, NON_PRIVATE, policy)["refused"] == BUDGET
    assert let(tmp_path, Composed((COUNTS, NOTHING)), policy)["refused"] is None, "it costs nothing"


def test_a_refused_line_charges_nothing_and_says_what_was_withheld(tmp_path):
    event, policy = Part("c", "train", Gaussian(1.0)), Policy(budget=Budget(epsilon=0.1), public=())
    line = let(tmp_path, event, policy)
    assert (parse_event(line["event"]), parse_event(line["withheld"]), line["bytes"]) == (NOTHING, event, 0)
    assert "withheld" not in let(tmp_path, NOTHING, policy)


def test_only_the_same_reply_to_the_same_call_that_left_before_is_free(tmp_path):
    one = Part("c", "train", Gaussian(2.0))
    policy = allowing([one], DELTA)
    assert let(tmp_path, one, policy, call=CALL)["again"] is False
    same = let(tmp_path, one, policy, replay=True)
    assert (same["again"], same["refused"], parse_event(same["event"])) == (True, None, one)
    for change in (
        {"replay": False},
        {"replay": True, "reply": b"other"},
        {"replay": True, "call": Call("run", 4, "train", {})},
        {"replay": True, "call": Call("other", 3, "train", {})},
        {"replay": True, "call": Call("run", 3, "finish", {})},
    ):
        line = let(tmp_path, one, policy, **change)
        assert (line["refused"], line["again"]) == (BUDGET, False), change
    assert (
        compute_cost(ledgers.spent_events(ledgers.read_lines(tmp_path / "ledger.jsonl")), DELTA).epsilon
        == policy.budget.epsilon
    )


def test_a_commit_that_has_a_name_is_free_only_once_that_name_was_paid(tmp_path):
    one = Part("c", "train", Gaussian(2.0))
    policy = allowing([one], DELTA)
    assert let(tmp_path, one, Policy(max_bytes=2), commit="first")["refused"] == "policy_bytes"
    assert let(tmp_path, one, policy, commit="first", replay=True)["again"] is False, "it had not left"
    assert let(tmp_path, one, policy, commit="first", replay=True)["again"] is True
    made_anew = let(tmp_path, one, policy, commit="second", replay=True)
    assert (made_anew["again"], made_anew["refused"]) == (False, BUDGET), "the same bytes, from patients looked at anew"
    assert let(tmp_path, one, policy, commit="first")["refused"] == BUDGET, "no replay is not free"


def test_what_was_refused_before_has_not_left(tmp_path):
    one, narrow = Part("c", "train", Gaussian(2.0)), Policy(max_bytes=2)
    assert let(tmp_path, one, narrow)["refused"] == "policy_bytes"
    assert let(tmp_path, one, allowing([Gaussian(1e3)], DELTA), replay=True)["refused"] == BUDGET
    assert let(tmp_path, one, Policy(max_bytes=3), replay=True)["again"] is False
    late = let(tmp_path, one, narrow, replay=True)
    assert (late["refused"], late["again"]) == ("policy_bytes", False), "a policy that changed holds for replays too"


@pytest.mark.parametrize(
    ("policy", "more", "code"),
    [
        (Policy(requests=("survey",)), {}, "policy_request"),
        (Policy(recipients=()), {}, "policy_recipient"),
        (Policy(), {"recipient": "sites"}, "policy_recipient"),
        (Policy(), {"recipient": "friend"}, "policy_recipient"),
        (Policy(public=()), {}, "policy_public"),
        (Policy(budget=Budget(epsilon=9.0)), {}, "policy_public"),
        (Policy(budget=Budget(epsilon=9.0), public=("counts",)), {}, None),
        (Policy(public=("counts",)), {}, None),
        (Policy(), {}, None),
        (Policy(max_bytes=3), {}, None),
    ],
)
@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: Composed((NOTHING, e)), lambda e: Part("c", "train", e)])
def test_each_word_of_a_policy_is_asked_and_what_is_declared_is_found_inside_other_events(
    tmp_path, policy, more, code, wrap
):
    assert let(tmp_path, wrap(COUNTS), policy, **more)["refused"] == code


def test_an_event_that_cannot_be_read_is_the_dearest_and_a_failure_may_always_be_told():
    policy = Policy(budget=Budget(epsilon=9.0), public=())
    for events in ([known_event({"kind": "magic"})], [NOTHING, Gaussian(1e-3)]):
        refusal = find_unaffordable(policy, Path("no-ledger"), events, "r/x")
        assert refusal is not None and refusal.code == BUDGET
    assert find_unaffordable(policy, Path("no-ledger"), [Declared("failure")], "r/x") is None
    for wrong in ({"epsilon": math.inf}, {"epsilon": 0.0}, {"epsilon": 1.0, "delta": 0.0}, {"epsilon": 1, "delta": 1}):
        with pytest.raises(ValueError, match="must be"):
            Budget(**wrong)
    with pytest.raises(ValueError, match="images leave without any guarantee"):
        Policy(budget=Budget(epsilon=1.0), pooling=True)


# The hospital

PUBLIC = ("counts",)
PROTECTED = Protection(sampling=0.5, views=2, noise=4.0, validation_noise=4.0, cut="a cut that the coordinator made up")
SPENT = Part("c", "train", Gaussian(4.0))


def hospital(folder, policy=None, *, recipe=None, **own) -> tuple[Hospital, str]:
    """A hospital of 24 patients with two lines of a table each, and its cohort."""
    settings = SiteSettings(
        source=PhantomSource(scanner="P", patients=4), policy=policy or Policy(public=PUBLIC), **own
    )
    made = Hospital("a", folder / "a", settings, lambda: "2026-01-01T00:00:00Z")
    g = torch.Generator().manual_seed(0)
    patient = torch.arange(24).repeat_interleave(2)
    x = torch.randn(48, 4, generator=g)
    empty = torch.zeros(48, 0, dtype=torch.uint8)
    cohort = Cohort(
        images=x,
        labels=(x[:, 0] > 0).long(),
        patient=patient,
        position=torch.zeros(48),
        lesion=empty,
        gland=empty.clone(),
        split=(patient % 3).to(torch.int8),
        patients=tuple(f"p{number:02}" for number in range(24)),
        recipe={"images": {"kind": "features", "normalize": "none"}, "independent": True, "cut": "real"}
        if recipe is None
        else recipe,
    )
    if made.policy.budget is not None:
        count_once(made, Call("r/first", 0, "ingest", {}), cohort, {})
    return made, short_digest(write_cohort_file(made.scratch(), cohort, made.key()))


TASK, WORK = testbed.make_task(), Work(lr=0.05, epochs=2)


def said(cohort: str, privacy: Protection | None = PROTECTED, **changes) -> dict:
    """The opening of a run, as a coordinator says it."""
    return {
        "label": "mine",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(Mlp(hidden=(6,))),
        "inputs": [4],
        "classes": 2,
        "work": to_plain(WORK),
        "seed": 0,
        "cohort": cohort,
        "privacy": None if privacy is None else to_plain(privacy),
        "evaluation_noise": 0.0 if privacy is None else 7.0,
        **changes,
    }


MODEL = {f"model/{name}": value for name, value in TASK.network().state_dict().items()}


def asked(own: Hospital, request: str, round_: int = 0, tensors=None, run: str = "r/x", **facts):
    """The reply, or the code of the refusal; and the ledger's last line."""
    answer = None
    merged = {"a": round_ - 1} if round_ > 1 else {}
    try:
        answer = make_worker(own)(Call(run, round_, request, merged), Message(tensors or {}, facts))
    except Refused as refused:
        answer = refused.code
    return answer, list(ledgers.read_lines(own.ledger))[-1]


def rounds(own: Hospital, cohort: str, last: int, **more):
    asked(own, "introduce", **said(cohort, **more))
    for round_ in range(1, last + 1):
        answer, line = asked(own, "train", round_, MODEL, algorithm={}, best=None)
    return answer, line


def finished(own: Hospital, round_: int):
    return asked(own, "finish", round_, MODEL, algorithm={}, best=None)


def test_a_private_round_books_the_hospitals_own_cut_and_work_and_what_was_told(tmp_path):
    own, cohort = hospital(tmp_path, work={"epochs": 3})
    _, one = rounds(own, cohort, 1)
    step = Part("real", "train", PoissonSampled(0.5, Gaussian(4.0)))
    assert parse_event(one["event"]) == compose_events([COUNTS, SelfComposed(step, 6)])
    _, two = asked(own, "train", 2, MODEL, algorithm={}, best=None)
    validation = Part("real", "validation", Gaussian(4.0))
    assert compose_events([parse_event(two["event"])]) == compose_events([COUNTS, validation, SelfComposed(step, 6)])
    assert compose_events([parse_event(finished(own, 3)[1]["event"])]) == compose_events([COUNTS, validation])
    facts = {"train_run": "r/x", "checkpoint": "latest", "best": None}
    assert parse_event(asked(own, "export", run="r/e", **facts)[1]["event"]) == NOTHING, "its training is booked"


def test_a_plain_round_and_a_plain_model_are_non_private(tmp_path):
    own, cohort = hospital(tmp_path)
    assert parse_event(rounds(own, cohort, 1, privacy=None)[1]["event"]) == NON_PRIVATE
    finished(own, 2)
    facts = {"train_run": "r/x", "checkpoint": "latest", "best": None}
    assert parse_event(asked(own, "export", run="r/e", **facts)[1]["event"]) == NON_PRIVATE
    scored = {**facts, "label": "mine", "cohort": cohort, "copies": 2}
    assert parse_event(asked(own, "evaluate", run="r/s", **scored)[1]["event"]) == NON_PRIVATE


@pytest.mark.parametrize(
    "change",
    [
        {"independent": False},
        {"independent": 1},
        {"images": {"kind": "features", "normalize": "site"}},
        {"images": {"kind": "features", "normalize": "pooled"}},
    ],
)
def test_patients_who_depend_on_each_other_are_neither_learnt_from_nor_scored_privately(tmp_path, change):
    recipe = {"images": {"kind": "slices"}, "independent": True, "cut": "real", **change}
    own, cohort = hospital(tmp_path, recipe=recipe)
    assert asked(own, "introduce", **said(cohort))[0] == "dependent_patients"
    facts = {"train_run": "r/x", "label": "mine", "checkpoint": "latest", "best": None, "copies": 2, "cohort": cohort}
    bare = {name.removeprefix("model/"): value for name, value in MODEL.items()}
    assert asked(own, "evaluate", run="r/s", tensors=bare, **facts, opening=said(cohort))[0] == "dependent_patients"


def committed(own: Hospital, run: str = "r/x") -> list[str]:
    return own.conversation(run).names()


def test_what_is_too_dear_is_not_even_worked_on(tmp_path):
    """Refused before, not at the gate: a memory that patients shaped would outlive the refusal."""
    tight = Policy(budget=Budget(epsilon=0.2), public=PUBLIC)
    own, cohort = hospital(tmp_path, tight)
    answer, line = rounds(own, cohort, 1)
    assert answer == BUDGET and "withheld" not in line and parse_event(line["event"]) == Declared("failure")
    before = committed(own)
    assert asked(own, "train", 1, MODEL, algorithm={}, best=None)[0] == BUDGET
    assert committed(own) == before


def test_the_pre_check_knows_validation_the_ledger_and_runs_without_protection(tmp_path):
    dear = replace(PROTECTED, noise=50.0, validation_noise=1.0)
    own, cohort = hospital(tmp_path, Policy(budget=Budget(epsilon=3.0), public=PUBLIC))
    assert rounds(own, cohort, 1, privacy=dear)[1]["refused"] is None
    answer, line = asked(own, "train", 2, MODEL, algorithm={}, best=None)
    assert answer == BUDGET and "withheld" not in line, "the validation of round 1 is too dear"
    reply, line = finished(own, 2)
    assert reply.facts["loss"] is None and reply.facts["n"] == 0, "everybody finishes, without what is too dear"
    assert parse_event(line["event"]) == COUNTS
    answer, line = asked(own, "introduce", run="r/plain", **said(cohort, privacy=None))
    assert answer == BUDGET and "withheld" not in line
    answer, line = asked(own, "introduce", run="r/y", **said(cohort))
    assert not isinstance(answer, str)
    used = Part("real", "train", Gaussian(0.9))
    ledgers.append_line(
        own.ledger, {"event": describe_event(used), "refused": None, "again": False, "bytes": 1, "request": "x"}
    )
    answer, line = asked(own, "train", 1, MODEL, run="r/y", algorithm={}, best=None)
    assert answer == BUDGET and "withheld" not in line, "what stands in the ledger counts"


def test_nothing_is_made_from_a_memory_whose_reply_was_refused_and_so_not_paid(tmp_path):
    own, cohort = hospital(tmp_path, Policy(budget=Budget(epsilon=50.0), public=PUBLIC, max_bytes=300))
    answer, line = rounds(own, cohort, 1, algorithm={"name": "fedper"})
    assert answer == "policy_bytes" and "withheld" in line, "trained, and then refused at the gate"
    for request in ("train", "finish"):
        assert asked(own, request, 2, MODEL, algorithm={}, best=None)[0] == "unpaid_memory"
    model = {"train_run": "r/x", "checkpoint": "latest", "best": None}
    scored = {**model, "label": "mine", "copies": 2, "cohort": cohort}
    for request, facts in {"evaluate": scored, "export": model, "audit": {**model, "cohort": cohort}}.items():
        assert asked(own, request, run="r/other", **facts)[0] == "unpaid_memory"
    assert compute_cost(ledgers.spent_events(ledgers.read_lines(own.ledger)), DELTA).epsilon == 0


def test_the_pre_check_counts_the_steps_of_this_run_at_this_hospital(tmp_path):
    step = Part("real", "train", PoissonSampled(0.5, Gaussian(4.0)))
    two_epochs = [SelfComposed(step, 4)]
    for epochs, refused in ((2, None), (3, BUDGET)):
        own, cohort = hospital(tmp_path / str(epochs), allowing(two_epochs, DELTA), work={"epochs": epochs})
        line = rounds(own, cohort, 1)[1]
        assert (line["refused"], "withheld" in line) == (refused, False)


def test_the_pre_check_charges_patients_of_the_hospitals_own_splits(tmp_path):
    used = Part("real", "test", Gaussian(1.5))
    own, cohort = hospital(tmp_path, allowing([used], DELTA))
    asked(own, "introduce", **said(cohort))
    ledgers.append_line(
        own.ledger, {"event": describe_event(used), "refused": None, "again": False, "bytes": 1, "request": "x"}
    )
    assert asked(own, "train", 1, MODEL, algorithm={}, best=None)[1]["refused"] is None, "patients in training pay less"


def test_a_model_without_protection_is_not_scored_as_if_it_had_some(tmp_path):
    own, cohort = hospital(tmp_path)
    rounds(own, cohort, 1, privacy=None)
    finished(own, 2)
    facts = {"train_run": "r/x", "label": "mine", "checkpoint": "latest", "best": None, "copies": 2, "cohort": cohort}
    line = asked(own, "evaluate", run="r/s", **facts, opening=said(cohort))[1]
    assert parse_event(line["event"]) == NON_PRIVATE, "its noise hides test patients, and nobody in training"


def test_a_plain_run_does_not_finish_under_a_budget_that_came_later(tmp_path):
    own, cohort = hospital(tmp_path)
    rounds(own, cohort, 1, privacy=None)
    assert own.settings is not None
    strict = replace(own, settings=replace(own.settings, policy=Policy(budget=Budget(epsilon=9.0), public=PUBLIC)))
    assert finished(strict, 2)[0] == "no_counts"
    count_once(strict, Call("r/first", 0, "ingest", {}), cohort_of(strict, cohort), {})
    answer, line = finished(strict, 2)
    assert answer == BUDGET and "withheld" not in line


def test_an_opening_is_read_strictly_and_methods_are_known_by_what_they_are(tmp_path):
    own, cohort = hospital(tmp_path, Policy(public=PUBLIC, algorithms=("mine", "local")))
    assert asked(own, "introduce", **said(cohort))[0] == "policy_algorithm", "a label is only a name"
    loose = {**to_plain(PROTECTED), "trust_me": True}
    assert asked(own, "introduce", **{**said(cohort), "privacy": loose})[0] == "malformed_opening"
    assert asked(own, "introduce", **said(cohort, algorithm={"name": "local"}))[1]["refused"] is None
    for name, of in (("mine", "fenda"), ("at_home", "fedavg"), ("at_home", "fenda")):
        limited, its_cohort = hospital(tmp_path / f"{name}-{of}", Policy(public=PUBLIC, algorithms=(name, "fedavg")))
        answer = asked(limited, "introduce", **said(its_cohort, algorithm={"name": "at_home", "of": {"name": of}}))
        assert (answer[0] == "policy_algorithm") == ((name, of) != ("at_home", "fedavg"))
    assert asked(own, "train", 1, MODEL, run="r/unknown")[0] == "not_introduced"


def test_what_a_method_says_at_first_is_non_private_unless_data_access_booked_it(tmp_path, monkeypatch):
    own, cohort = hospital(tmp_path)
    reply = Message({"mean": torch.ones(3)}, {"algorithm": {}})
    monkeypatch.setattr(learn, "answer_training_call", lambda *_, **options: (reply, Message()))
    monkeypatch.setattr(learn.rehearsed, "check_reply", lambda *_, **options: None)
    assert parse_event(asked(own, "introduce", **said(cohort))[1]["event"]) == NON_PRIVATE


def test_data_access_of_a_run_is_private_counts_as_the_hospital_declares_and_augments_as_asked(tmp_path):
    own, cohort = hospital(tmp_path)
    start = learn.parse_opening(own, said(cohort))
    start = replace(start, work=replace(start.work, augment="flip"))
    access = learn.data_access(own, cohort_of(own, cohort), start, 0)
    assert (access.counts, access.protection.cut, access.augment is not None) == (COUNTS, "real", True)
    silent, cohort = hospital(tmp_path / "b", Policy(public=()))
    assert learn.data_access(silent, cohort_of(silent, cohort), start, 0).counts == NON_PRIVATE


def test_images_that_are_pooled_are_non_private(tmp_path):
    own, cohort = hospital(tmp_path, Policy(pooling=True, public=PUBLIC))
    assert parse_event(asked(own, "pool", cohort=cohort)[1]["event"]) == NON_PRIVATE


def test_a_private_score_is_a_noised_histogram_of_test_patients_at_the_noise_of_the_plan(tmp_path):
    own, cohort = hospital(tmp_path)
    rounds(own, cohort, 1)
    finished(own, 2)
    facts = {"train_run": "r/x", "label": "mine", "checkpoint": "latest", "best": None, "copies": 2, "cohort": cohort}
    reply, line = asked(own, "evaluate", run="r/s", **facts)
    how = split_noise(7.0, 2)
    told = Composed((SelfComposed(Gaussian(how.scale), LEVELS), Gaussian(how.own)))
    assert compose_events([parse_event(line["event"])]) == compose_events([COUNTS, Part("real", "test", told)])
    assert compute_cost([told], 1e-5).epsilon == pytest.approx(compute_cost([Gaussian(7.0)], 1e-5).epsilon, rel=1e-6)
    assert set(reply.tensors) == {"noised", "scale"} and reply.facts["noise"] == 7.0 and reply.facts["patients"] == 8
    test = torch.arange(24) % 3 == 2
    whose = cohort_of(own, cohort)
    labels = whose.labels[test[whose.patient]]
    owners = whose.patient[test[whose.patient]]
    assert reply.facts["class_patients"] == [len(owners[labels == one].unique()) for one in (0, 1)]


@pytest.mark.chance(1e-10, "a deviation over 960 numbers is 15 % off")
def test_noise_of_a_score_is_what_is_booked_and_each_patient_adds_one(tmp_path):
    own, _ = hospital(tmp_path)
    p = torch.rand(30, 1, generator=torch.Generator().manual_seed(0))
    tested = Rows(torch.cat([1 - p, p], dim=1), torch.arange(30) % 2, torch.arange(30) // 5)
    quiet, how = add_noise_to_scores(own, tested, ScoreNoise(0.0, "c")).tensors, split_noise(3.0, 2)
    assert float(quiet["noised"].sum()) == pytest.approx(6.0)
    assert [float(level.sum()) for level in tree_levels(quiet["scale"][0].numpy())] == pytest.approx([6.0] * LEVELS)
    told = [add_noise_to_scores(own, tested, ScoreNoise(3.0, "c")).tensors for _ in range(60)]
    scale = torch.stack([one["scale"] - quiet["scale"] for one in told])
    assert float(scale.double().std()) == pytest.approx(how.scale, rel=0.02)
    y, p, who = (one.numpy() for one in (tested.y, tested.x, tested.patient))
    bins = [bins_from(one["scale"].double().numpy(), 6, [6, 6]) for one in told]  # they follow from what leaves
    exact = [(class_votes(y, p, who, edges) / 5).sum(axis=0).reshape(2, BINS) for edges in bins]
    away = torch.stack([one["noised"] - torch.from_numpy(two) for one, two in zip(told, exact, strict=True)])
    assert float(away.double().std()) == pytest.approx(how.own, rel=0.15)  # 960 numbers: 6 standard deviations


def test_a_network_that_gives_no_number_is_scored_like_any_other(tmp_path):
    own, cohort = hospital(tmp_path)
    facts = {"train_run": "r/x", "label": "mine", "checkpoint": "latest", "best": None, "copies": 2, "cohort": cohort}
    broken = {name.removeprefix("model/"): torch.full_like(value, math.nan) for name, value in MODEL.items()}
    for privacy in (PROTECTED, None):
        opening = said(cohort, privacy=privacy)
        run = "r/plain" if privacy is None else "r/private"
        line = asked(own, "evaluate", run=run, tensors=broken, **facts, opening=opening)[1]
        assert line["refused"] is None and (parse_event(line["event"]) == NON_PRIVATE) is (privacy is None)


@pytest.mark.parametrize("privacy", [PROTECTED, None])
@pytest.mark.parametrize("budget", [Budget(epsilon=99.0), None])
def test_an_attack_tells_its_result_only_where_nothing_was_promised(tmp_path, privacy, budget):
    own, cohort = hospital(tmp_path)
    rounds(own, cohort, 1, privacy=privacy)
    finished(own, 2)
    assert own.settings is not None
    now = replace(own, settings=replace(own.settings, policy=Policy(budget=budget, public=PUBLIC)))
    facts = {"train_run": "r/x", "label": "mine", "checkpoint": "latest", "best": None, "cohort": cohort}
    reply, line = asked(now, "audit", run="r/a", **facts)
    leaves = privacy is None and budget is None
    assert (reply.facts["found"] is not None, parse_event(line["event"])) == (
        leaves,
        NON_PRIVATE if leaves else NOTHING,
    )
    assert attack.read_membership(now, facts) is not None


class Attacked:
    """Sites that found something, or do not take part."""

    sites = ("a", "b")

    def ask(self, call, messages, *, deadline_s=None):
        here = {site: Message({}, {"found": {"auc": 0.5}}) for site in messages if site == "a"}
        return Answers(here, {site: "policy_request" for site in messages if site == "b"})


def test_what_an_attack_found_is_written_down_as_it_came(tmp_path):
    world = replace(make_world(config(), tmp_path, Stop()), engine=Attacked())
    cohort = SiteCohort("c", "0" * 64)
    one, two = _ask_attacks(world, trained_method(label="mine"), {"a": cohort, "b": cohort})
    assert one.site == "a" and one.reply is not None and one.reply.found == {"auc": 0.5}
    assert (two.site, two.refused, two.reply) == ("b", "policy_request", None)


def test_the_statement_is_at_the_budgets_delta_and_says_how_a_run_was_protected(tmp_path):
    budget = Budget(epsilon=99.0, delta=1e-7)
    own, cohort = hospital(tmp_path, Policy(budget=budget, public=PUBLIC))
    rounds(own, cohort, 1)
    lines = list(ledgers.read_lines(own.ledger))
    found = build_own_statement(own, lines)
    policy = Policy(budget=budget, most=Most(release=2.0, run=5.0))
    capped = replace(own, settings=replace(own.settings, policy=policy))
    assert (found.delta, found.unit) == (1e-7, "simulated patient") and found.budget is not None
    assert (found.budget.release, found.budget.run) == (99.0 / 2, 99.0)
    assert "| At most, of one release and of one run | ε = 2; ε = 5 |" in render_markdown(
        build_own_statement(capped, lines)
    )
    assert found.audit is None, "whoever audits the mechanism says so; it is no word of the hospital's"
    (run,) = found.runs
    assert (run.details.clip, run.details.views) == (PROTECTED.clip, PROTECTED.views)
    train = next(entry for entry in list_left(own, lines, delta=DELTA) if entry.request == "train")
    spent = compute_cost(ledgers.spent_events(lines), DELTA).epsilon
    assert train.messages == 1 and train.epsilon.endswith(" at δ = 1e-05")
    assert spent - 1e-12 <= float(train.epsilon.split()[0]) <= 1.01 * spent, "rounded, and never downwards"
    table = TableSource(file="t.csv", label="y")
    real = replace(own, settings=SiteSettings(source=table, policy=Policy(public=PUBLIC)))
    assert build_own_statement(real, []).unit == "patient"
    again = [
        *lines,
        {**lines[-1], "again": True},
        {**lines[-1], "refused": "x", "bytes": 0, "event": describe_event(NOTHING)},
    ]
    more = next(entry for entry in list_left(own, again, delta=DELTA) if entry.request == "train")
    assert (more.epsilon, more.messages) == (train.epsilon, 2), "sent again it costs nothing, refused it is no message"


# Who goes on


class Refusing:
    """A hospital that answers some rounds of training with a code."""

    def __init__(self, inner, codes):
        self.inner, self.codes, self.asked = inner, dict(codes), []

    def __call__(self, call, message):
        self.asked += [call.round] if call.request == "train" else []
        if call.request == "train" and call.round in self.codes:
            raise Refused(self.codes[call.round])
        return self.inner(call, message)


def federation(**codes):
    made = testbed.make_federation(
        FedAvg(), {name: testbed.make_table(ord(name)) for name in "abc"}, task=TASK, work=WORK
    )
    return {name: Refusing(inner, codes.get(name, {})) for name, inner in made.items()}


def conducted(sites, folder=None, **schedule):
    plan = Schedule(**{"rounds": 4, **schedule})
    return testbed.train(FedAvg(), sites, task=TASK, work=WORK, schedule=plan, folder=folder)


def test_only_a_spent_budget_retires_a_hospital_and_only_it_is_no_loss_to_the_quorum():
    sites = federation(a={2: "failed"}, b={2: BUDGET})
    outcome = conducted(sites, quorum=0.5)
    assert outcome.missing == ((2, "a", "failed"), (2, "b", BUDGET)) and outcome.retired_sites == {"b"}
    assert (sites["a"].asked, sites["b"].asked) == ([1, 2, 3, 4], [1, 2]) and outcome.merged == {"a": 4, "b": 1, "c": 4}
    with pytest.raises(QuorumLost, match="a: failed"):
        conducted(federation(a={2: "failed"}, b={2: BUDGET}), quorum=0.6)


def test_a_round_in_which_all_who_were_asked_retire_is_asked_of_the_others():
    codes = dict.fromkeys(range(1, 9), BUDGET)
    sites = federation(a=codes, b=codes)
    outcome = conducted(sites, participation=0.3)
    assert sites["c"].asked == [1, 2, 3, 4] and outcome.merged == {"c": 4}
    assert len(sites["a"].asked) <= 1 and len(sites["b"].asked) <= 1
    assert len(outcome.missing) == len(outcome.retired_sites) == len(sites["a"].asked + sites["b"].asked) > 0


def test_who_has_retired_is_not_asked_again_by_a_coordinator_that_starts_anew():
    folder, sites = testbed.MemoryFolder(), federation(a={2: BUDGET}, b={3: "failed"})
    with pytest.raises(QuorumLost):
        conducted(sites, folder)
    assert conducted(sites | {"b": sites["b"].inner}, folder).retired_sites == {"a"}
    assert sites["a"].asked == [1, 2]


# The plan


def settings(**changes) -> dict:
    made = copy.deepcopy(BASE) | {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    for site in made["sites"].values():
        site["policy"] = {}
    made["train"] = {"schedule": {"rounds": 3}, "methods": {"one": {"name": "fedavg"}, "two": {"name": "local"}}}
    made["evaluate"] = {"copies": 20, "public": False}
    return made | {"privacy": {"epsilon": 3.0, "delta": 1e-6, "sampling": 0.5, "views": 3, "clip": 0.7}} | changes


def checked(made: dict) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def config(**changes) -> Config:
    return checked(settings(**changes))


def gaussians(events, split: str) -> dict[float, int]:
    """noise multiplier -> how often, of one split."""
    found: dict[float, int] = {}

    def walk(event, times, inside):
        if isinstance(event, Composed):
            for one in event.events:
                walk(one, times, inside)
        elif isinstance(event, SelfComposed):
            walk(event.event, times * event.count, inside)
        elif isinstance(event, Part):
            walk(event.event, times, event.split)
        elif isinstance(event, PoissonSampled):
            walk(event.event, times, inside)
        elif inside == split:
            found[event.noise_multiplier] = found.get(event.noise_multiplier, 0) + times

    for event in events:
        walk(event, 1, None)
    return found


@pytest.mark.parametrize("public", [False, True])
def test_each_split_may_cost_the_whole_epsilon_and_wastes_none_of_it(public):
    made = config(evaluate={"copies": 20, "public": public})
    plan = plan_method(made, "one", "a")
    costs = {split: each.epsilon for (_, split), each in by_split(plan.events, 1e-6).items()}
    assert set(costs) == {"train", "validation", "test"}
    assert all(0.95 * 3.0 < epsilon <= 3.0 for epsilon in costs.values()), costs
    assert plan.cost.epsilon == max(costs.values()) and plan.cost.delta == 1e-6
    p = plan.protection
    assert gaussians(plan.events, "train") == {p.noise: 3 * 2}, "three rounds of one epoch, which is two steps"
    assert gaussians(plan.events, "validation") == {p.validation_noise: 3}
    assert gaussians(plan.events, "test") == {plan.evaluation_noise: 2 if public else 1}
    assert (p.clip, p.sampling, p.views, p.loss_bound) == (0.7, 0.5, 3, 2.0)
    assert count_steps(plan.events) == 6


def test_a_given_noise_is_used_and_the_other_splits_cost_what_training_does():
    privacy = {"noise": 1.3, "delta": 1e-6, "sampling": 0.5, "loss_bound": 5.0, "chunk": 7}
    plan = plan_method(config(privacy=privacy), "one", "a")
    assert (plan.protection.noise, plan.protection.loss_bound, plan.protection.chunk) == (1.3, 5.0, 7)
    costs = [each.epsilon for each in by_split(plan.events, 1e-6).values()]
    assert max(costs) <= 1.01 * min(costs)


def test_a_sites_own_work_is_planned_for_and_all_methods_add_up():
    made = settings()
    made["sites"]["a"]["work"] = {"epochs": 3}
    a, b = (plan_method(checked(made), "one", site) for site in ("a", "b"))
    assert (count_steps(a.events), count_steps(b.events)) == (18, 6) and a.protection.noise > b.protection.noise
    plans = [plan_method(config(), label, "b") for label in ("one", "two")]
    both = total_cost(config(), "b")
    assert both == compute_cost([event for plan in plans for event in plan.events], 1e-6)
    assert both.epsilon > 1.2 * plans[0].cost.epsilon


def test_a_method_that_asks_for_counts_pays_for_them_and_they_have_the_planned_noise(monkeypatch):
    def told(algorithm, site):
        site.shares()
        return Message()

    monkeypatch.setattr("federation.fedavg.FedAvg.introduce", told)
    privacy = {"epsilon": 3.0, "delta": 1e-6, "sampling": 0.25}  # not planned for in another test
    plan = plan_method(config(privacy=privacy), "one", "a")
    train = gaussians(plan.events, "train")
    assert train == {plan.protection.counts_noise: 1, plan.protection.noise: 12}
    costs = by_split(plan.events, 1e-6)
    assert 0.95 * 3.0 < costs["", "train"].epsilon <= 3.0


def test_events_keep_their_form_when_cut_or_noise_is_put_in():
    inner = SelfComposed(Part("", "train", PoissonSampled(0.5, Gaussian(2.0))), 3)
    event = Composed((inner, Part("", "test", Gaussian(3.0)), SelfComposed(SelfComposed(inner, 2), 5)))
    moved = SelfComposed(Part("c", "train", PoissonSampled(0.5, Gaussian(2.0))), 3)
    wanted = Composed((moved, Part("c", "test", Gaussian(3.0)), SelfComposed(SelfComposed(moved, 2), 5)))
    assert at_cut(event, "c") == wanted and count_steps([event]) == 3 + 30
    found = replace_mechanisms(event, {Gaussian(2.0): Gaussian(9.0)})
    assert gaussians([found], "train") == {9.0: 33} and gaussians([found], "test") == {3.0: 1}


def test_after_is_the_ledger_and_these_events_together(tmp_path):
    ledger, one = tmp_path / "ledger.jsonl", Part("c", "train", Gaussian(2.0))
    let(tmp_path, one)
    now, then = epsilon_after(ledger, 1e-7, [Part("c", "test", Gaussian(0.5)), one])
    assert now == compute_cost([one], 1e-7).epsilon
    assert then == compute_cost([one, one, Part("c", "test", Gaussian(0.5))], 1e-7).epsilon


def test_a_check_counts_on_top_of_the_ledger_at_the_cut_that_the_hospital_will_make(tmp_path):
    budget = {"epsilon": 8.0, "delta": 1e-9}
    made = settings(name="checked", split={"train": 0.5, "validation": 0.2, "test": 0.3}, seed=5)
    made["sites"]["a"] |= {"policy": {"budget": budget, "public": ["counts"]}, "test": ["PHANTOM-a-0001"]}
    world = make_world(checked(made), tmp_path, Stop())
    question = Ingest(images=world.config.images, split=world.config.split, seed=5, independent=True)
    cut = world.ask_one(INGEST, world.run("ingest"), "a", question).cut
    used = Part(cut, "train", Gaussian(1.5))
    own = Hospital("a", tmp_path / "sites" / "a", world.config.sites["a"], world.now)
    ledgers.append_line(
        own.ledger, {"event": describe_event(used), "refused": None, "again": False, "bytes": 1, "request": "x"}
    )
    said = check._compute_costs(world)["a"]
    plans = [plan_method(world.config, label, "a") for label in ("one", "two")]
    events = [at_cut(event, cut) for plan in plans for event in plan.events]
    assert said["spent"] == pytest.approx(compute_cost([used], 1e-9).epsilon)
    assert said["after"] == pytest.approx(compute_cost([used, *events], 1e-9).epsilon)
    enough = said["after"] <= 8.0
    assert ("MORE than" in said["words"]) is not enough and said["budget"] == 8.0


def test_the_audit_tries_the_runs_own_clipping_and_views_at_the_noise_of_its_claim(monkeypatch):
    seen = []

    def noted(protection, **_):
        seen.append(protection)
        return lambda included: lambda: torch.randn(len(included), dtype=torch.float64)

    monkeypatch.setattr(auditing, "through_private_access", noted)
    privacy = config().privacy
    found = audit_mechanism(privacy, 100)
    (p,) = seen
    assert (p.clip, p.views, p.sampling) == (0.7, 3, SAMPLING)
    spent = compute_cost([SelfComposed(PoissonSampled(SAMPLING, Gaussian(p.noise)), STEPS)], privacy.delta).epsilon
    assert spent == pytest.approx(1.0, abs=0.01) and (found["claimed"], found["steps"]) == (1.0, STEPS)
    assert audit_mechanism("none", 100) is None and audit_mechanism(privacy, 0) is None


def features(**changes) -> dict:
    made = settings(images={"kind": "features", "numbers": ["x", "y"], "normalize": "none"}, model={"name": "mlp"})
    for name, site in made["sites"].items():
        site["source"] = {"kind": "table", "file": f"{name}.csv", "columns": ["x", "y", "z"], "label": "z"}
    return made | changes


def test_everything_that_no_epsilon_covers_is_told_at_once():
    made = features(images={"kind": "features", "numbers": ["x", "y"], "normalize": "pooled"})
    made["sites"]["a"]["work"] = {"balance": True}
    made["sites"]["b"]["policy"] = {"public": []}
    made["sites"]["a"]["policy"] = {"budget": {"epsilon": 1.0}, "public": ["counts"]}
    with pytest.raises(ConfigError) as caught:
        checked(made)
    for words in (
        "images.normalize: pooled computes means from patients",
        "train.work.balance: draws by the labels of all patients",
        "sites.b.policy.public: how many patients there are must be declared",
        "sites.a.home: missing; a budget over a patient's life needs a ledger that outlives this run",
    ):
        assert words in str(caught.value), words
    assert "sites.b.home" not in str(caught.value)
    checked(features())


def test_every_hospitals_own_policy_holds_and_is_checked_with_the_run(tmp_path):
    made = settings()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made["sites"][name] |= {"home": str(tmp_path / name), "policy": {"max_bytes": 77}}
        (tmp_path / name / "policy.yaml").write_text(f"public: [counts]\nmax_bytes: {len(name) + ord(name)}\n")
    told = apply_own_policies(checked(made))
    assert [told.sites[name].policy.max_bytes for name in ("a", "b")] == [98, 99]
    (tmp_path / "b" / "policy.yaml").write_text("public: []\n")
    with pytest.raises(ConfigError, match="own policies"):
        apply_own_policies(checked(made))
    (tmp_path / "b" / "policy.yaml").write_text("budgets: 3\n")
    with pytest.raises(ConfigError, match="unknown key"):
        apply_own_policies(checked(made))
