"""Rates over rounds, clipping, weight decay by kind of parameter, and an early end, beside torch's own."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import methods
from consilium.testing import testbed
from federation.descent import Rate, Site, Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.outcome import Outcome
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from federation.task import Task
from privacy.dp.access import open_access

TASK = testbed.make_task()
PLAIN = Work(optimizer="sgd", lr=0.1, batch=8, epochs=1)
RATES = [Rate(), Rate(name="cosine"), Rate(name="polynomial"), Rate(name="cosine", warmup=3, floor=0.1)]


@given(st.integers(1, 40), st.sampled_from(RATES))
def test_a_rate_rises_in_the_warm_up_falls_after_it_and_is_never_0(rounds, rate):
    factors = [rate.factor(round_, rounds) for round_ in range(1, rounds + 1)]
    assert all(0 < factor <= 1 for factor in factors)
    warm, rest = factors[: rate.warmup], factors[rate.warmup :]
    assert warm == sorted(warm) and rest == sorted(rest, reverse=True)
    assert not rest or rest[0] == 1.0


@pytest.mark.parametrize(
    ("rate", "theirs"),
    [
        (
            Rate(name="cosine", floor=0.1),
            lambda sgd: torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=12, eta_min=0.05),
        ),
        (Rate(name="polynomial"), lambda sgd: torch.optim.lr_scheduler.PolynomialLR(sgd, total_iters=12, power=0.9)),
        (Rate(), lambda sgd: torch.optim.lr_scheduler.ConstantLR(sgd, factor=1.0)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_rates_are_those_of_torch(rate, theirs):
    sgd = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = theirs(sgd)
    for round_ in range(1, 13):
        assert 0.5 * rate.factor(round_, 12) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        sgd.step()
        scheduler.step()


def test_a_constant_rate_is_the_same_work():
    assert PLAIN.at_round(7, 9) is PLAIN
    assert replace(PLAIN, rate=Rate(name="cosine")).at_round(1, 9).lr == PLAIN.lr


def site_of(work: Work, splits: Any = None) -> Site:
    return Site("a", TASK, work, open_access(splits or testbed.make_table(1), batch=work.batch, seed=3))


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("decay_on", ["all", "weights"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_descent_is_torchs_with_clipping_and_groups(optimizer, decay_on, clip_norm):
    work = replace(
        PLAIN, optimizer=optimizer, weight_decay=0.3, decay_on=decay_on, clip_norm=clip_norm, epochs=None, steps=5
    )
    torch.manual_seed(0)
    module = TASK.network()
    theirs = copy.deepcopy(module)
    site_of(work).descend(module, TASK.objective)
    kinds = {True: [], False: []}
    for p in theirs.parameters():
        kinds[decay_on == "all" or p.dim() > 1].append(p)
    groups = [{"params": kinds[True], "weight_decay": 0.3}, {"params": kinds[False], "weight_decay": 0.0}]
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    rule, draws = kind([group for group in groups if group["params"]], lr=work.lr), site_of(work)
    for _ in range(5):
        gradient = draws.gradient(theirs, TASK.objective, draws.draw())
        for name, p in theirs.named_parameters():
            p.grad = gradient[name].clone()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        rule.step()
    for ours, other in zip(module.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(ours, other, atol=1e-6)


RATE = Rate(name="cosine", warmup=1)


@pytest.mark.repeats(8)
@pytest.mark.parametrize(
    ("algorithm", "work"),
    methods.with_work([m for m in methods.ALL if m.name not in {*methods.ON_PROMPTS, "feddg", "fedavg_turns"}],
                      Work(lr=0.01, batch=8, epochs=1), PLAIN),
)  # fmt: skip
def test_every_method_takes_the_rate_of_the_round(algorithm, work):
    """As if the learning rate in the settings were changed by hand before each round."""

    def train(by_hand: bool) -> Outcome:
        splits = {name: testbed.make_table(seed) for seed, name in enumerate("abc")}
        settings = work if by_hand else replace(work, rate=RATE)
        hospitals = testbed.make_federation(algorithm, splits, task=TASK, work=settings)

        def set_rate(outcome: Outcome) -> None:
            for hospital in hospitals.values():
                hospital.rounds = 4
                if by_hand:
                    hospital.work = replace(work, lr=work.lr * RATE.factor(outcome.round + 1, 4))

        schedule = Schedule(rounds=4)
        return testbed.train(algorithm, hospitals, task=TASK, work=settings, schedule=schedule, between=set_rate)

    assert testbed.are_equal(train(False).state.tensors, train(True).state.tensors)


def test_a_method_whose_equations_need_plain_sgd_refuses_clipping():
    clipped = replace(PLAIN, clip_norm=1.0)
    assert Scaffold().complaints(TASK.network(), PLAIN, False) == []
    assert "clip_norm" in Scaffold().complaints(TASK.network(), clipped, False)[0]


# An early end.


def run(lr: float, *, patience: int | None, folder: Any = None, stop_after: int | None = None) -> list[Outcome]:
    """The outcome before each round and at the end. stop_after: the round after which the coordinator is killed."""
    splits = {name: testbed.make_table(seed) for seed, name in enumerate("abc")}
    work, outcomes = replace(PLAIN, lr=lr), list[Outcome]()
    task = Task(Mlp(hidden=()), (4,), 2)
    hospitals = testbed.make_federation(FedAvg(), splits, task=task, work=work)

    def watch(outcome: Outcome) -> None:
        outcomes.append(outcome)
        if outcome.round == stop_after:
            raise KeyboardInterrupt

    options = {"task": task, "work": work, "schedule": Schedule(rounds=9, patience=patience)}
    try:
        last = testbed.train(FedAvg(), hospitals, between=watch, folder=folder, **options)
    except KeyboardInterrupt:
        last = testbed.train(FedAvg(), hospitals, between=outcomes.append, folder=folder, **options)
    assert all(hospital.trained <= 9 for hospital in hospitals.values())
    return [*outcomes, last]


def test_training_ends_once_the_loss_was_no_lower_for_so_many_rounds():
    outcomes = run(40.0, patience=2)
    last = outcomes[-1]
    trained = max(last.merged.values())
    assert trained < 9 and last.best is not None
    assert trained - 1 - last.best == 2  # the model of the last round is scored when training has ended
    assert last.round == 10 and testbed.are_equal(last.state.tensors, outcomes[-2].state.tensors)
    longer = run(40.0, patience=None)
    assert max(longer[-1].merged.values()) == 9
    assert testbed.are_equal(longer[trained].state.tensors, last.state.tensors)


def test_a_run_that_improves_takes_all_its_rounds():
    assert max(run(0.05, patience=3)[-1].merged.values()) == 9


def test_a_resumed_run_ends_where_the_other_does():
    whole, resumed = run(40.0, patience=2)[-1], run(40.0, patience=2, folder=testbed.MemoryFolder(), stop_after=2)[-1]
    assert testbed.are_equal(whole.state.tensors, resumed.state.tensors) and whole.totals == resumed.totals


def test_engines_hear_of_no_round_after_the_end():
    asked = []

    class Listening(InProcess):
        def ask(self, call: Any, messages: Any, *, deadline_s: float | None = None) -> Any:
            asked.append((call.request, call.round))
            return super().ask(call, messages, deadline_s=deadline_s)

    splits = {name: testbed.make_table(seed) for seed, name in enumerate("abc")}
    work, task = replace(PLAIN, lr=40.0), Task(Mlp(hidden=()), (4,), 2)
    hospitals = testbed.make_federation(FedAvg(), splits, task=task, work=work)
    schedule = Schedule(rounds=9, patience=1)
    testbed.train(FedAvg(), hospitals, task=task, work=work, schedule=schedule, engine=Listening(hospitals))
    rounds = [round_ for request, round_ in asked if request == "train"]
    assert rounds == [*range(1, len(rounds) + 1)] and len(rounds) < 9 and asked[-1] == ("finish", 10)
