"""What the coordinator notices: nothing in honest federations of any method, and updates that are far too large."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import methods
import small_clip
from consilium.testing import testbed
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.notices import (
    FEWEST,
    LARGEST,
    add_updates,
    find_outliers,
    measure_updates,
    use_released_counts,
)
from federation.outcome import load_outcome, save_outcome
from federation.rounds import Schedule
from privacy.dp.access import Rows, Split
from privacy.message import Call, Message
from tests.laws.test_sums import task_of

NAMES = ("a", "b", "c", "d", "e")
ADAM = Work(lr=0.01, batch=8, epochs=1)
SGD = Work(optimizer="sgd", lr=0.05, batch=8, epochs=1)
PATIENTS = {"quantity": (8, 8, 16, 40, 160)}
"""Training rows of hospitals, twenty times as many at the largest as at the smallest; elsewhere 24 each."""


def table_of(algorithm: Algorithm, partition: str, place: int) -> Mapping[Split, Rows]:
    """A hospital's patients: of the same number and kind at all, of other numbers, other means, or other classes."""
    n = PATIENTS.get(partition, (24,) * 5)[place]
    shift = 1.5 * place - 3 if partition == "means" else 0.0
    if algorithm.name in methods.ON_PROMPTS:
        rows = testbed.make_table(10 + place, n=n, d=small_clip.task().inputs[0], shift=shift)
    elif algorithm.name in ("feddg", "fedavg_turns"):
        return testbed.make_scenes(10 + place, n=max(4, n // 4), shift=shift / 10)
    else:
        rows = testbed.make_table(10 + place, n=n, shift=shift)
    if partition != "classes":
        return rows
    train, random = rows["train"], torch.Generator().manual_seed(place)
    kept = torch.rand(len(train.y), generator=random) < torch.where(train.y == place % 2, 1.0, 0.15)
    return {**rows, "train": Rows(train.x[kept], train.y[kept], train.patient[kept])}


@pytest.mark.repeats(8)
@pytest.mark.parametrize("partition", ["alike", "quantity", "means", "classes"])
@pytest.mark.parametrize(("algorithm", "work"), methods.with_work(methods.ALL, ADAM, SGD))
def test_no_honest_hospital_is_named_whatever_the_method_and_the_patients(algorithm, work, partition):
    splits = {name: table_of(algorithm, partition, place) for place, name in enumerate(NAMES)}
    counts = {name: {split: len(rows.y) for split, rows in each.items()} for name, each in splits.items()}
    hospitals = testbed.make_federation(algorithm, splits, task=task_of(algorithm), work=work)
    options = {"task": task_of(algorithm), "work": work, "schedule": Schedule(rounds=5), "counts": counts}
    outcome = testbed.train(algorithm, hospitals, **options)
    assert find_outliers(outcome.updates) == (), outcome.updates


def reply_of(values: list[float], n: int = 5) -> Message:
    tensors = {"model/w": torch.tensor(values[:3]), "model/norm.running_mean": torch.tensor(values[3:])}
    return Message(tensors, {"algorithm": {"n": n}, "n": 0, "loss": None})


VECTORS = st.lists(st.lists(st.floats(-9, 9, width=32), min_size=5, max_size=5), min_size=4, max_size=7)


@given(VECTORS)
def test_sizes_and_cosines_are_those_of_a_literal_computation(vectors):
    replies = {f"s{k}": reply_of(values) for k, values in enumerate(vectors)}
    sent = {site: reply_of([1.0, 1.0, 1.0, 2.0, 2.0]) for site in replies}
    updates = [[x - 1 for x in values[:3]] for values in vectors]
    center = [sorted(column)[(len(vectors) - 1) // 2] for column in zip(*updates, strict=True)]
    norms, statistics_ = [math.hypot(*u) for u in updates], [math.dist(v[3:], (2, 2)) for v in vectors]
    for k, update in enumerate(measure_updates(replies, sent, {}).values()):
        for size, values in ((update.size, norms), (update.statistics, statistics_)):
            middle = statistics.median(values)
            assert size == pytest.approx(values[k] / middle if middle else 0.0, rel=1e-5, abs=1e-6)
        length = norms[k] * math.hypot(*center)
        dot = sum(x * c for x, c in zip(updates[k], center, strict=True))
        assert update.cosine == pytest.approx(dot / length if length else 0.0, abs=1e-5)


@dataclass
class Poisoned:
    """An engine in which hospital e multiplies its update from the second round on."""

    inner: InProcess
    times: float
    sites: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.sites = self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        if call.request != "train" or call.round < 2:
            return answers
        reply, sent = answers.replies["e"], messages["e"]
        tensors = {n: sent.tensors[n] + self.times * (v - sent.tensors[n]) for n, v in reply.tensors.items()}
        return Answers({**answers.replies, "e": Message(tensors, reply.facts)}, answers.missing)


def run(times: float, names: tuple[str, ...] = NAMES, folder: Any = None) -> Any:
    splits = {name: table_of(FedAvg(), "alike", place) for place, name in enumerate(names)}
    hospitals = testbed.make_federation(FedAvg(), splits, task=task_of(FedAvg()), work=SGD)
    options = {"task": task_of(FedAvg()), "work": SGD, "schedule": Schedule(rounds=4), "folder": folder}
    return testbed.train(FedAvg(), hospitals, engine=Poisoned(InProcess(hospitals), times), **options)


@pytest.mark.parametrize("times", [100.0, -10.0, -100.0])
def test_a_hospital_that_multiplies_its_updates_is_named_with_its_rounds(times):
    (strange,) = find_outliers(run(times).updates)
    assert strange.site == "e" and strange.rounds[0] == 2 and strange.times > LARGEST and strange.n == 0


def test_what_stays_within_the_limits_is_not_noticed():
    """The limits are no defence: they are said on the page, and an update turned round has an honest size."""
    assert find_outliers(run(-1.0).updates) == ()


def test_nobody_is_judged_among_fewer_than_four():
    names = ("a", "b", "e")
    assert len(names) < FEWEST and find_outliers(run(100.0, names).updates) == ()


def test_a_hospital_with_more_patients_may_step_as_much_further():
    sent = {name: Message({"model/w": torch.zeros(2)}) for name in NAMES}
    size = dict.fromkeys(NAMES, 1.0) | {"e": 12.0}
    facts = {"algorithm": {}, "n": 0}
    replies = {name: Message({"model/w": torch.tensor([size[name], 0.0])}, facts) for name in NAMES}
    patients = {name: {"train": 10} for name in NAMES}
    assert measure_updates(replies, sent, patients)["e"].size == pytest.approx(12.0)
    assert measure_updates(replies, sent, patients | {"e": {"train": 60}})["e"].size == pytest.approx(2.0)
    assert measure_updates(replies, sent, patients | {"e": {"train": 1}})["e"].size == pytest.approx(12.0)


def test_a_released_number_stands_in_for_one_that_a_reply_says():
    parts = {"a": Message({}, {"n": 7, "more": 1}), "b": Message({}, {"n": 9}), "c": Message({}, {})}
    used = use_released_counts(parts, {"a": {"train": 5}, "c": {"train": 3}})
    assert [dict(used[site].facts) for site in "abc"] == [{"n": 5, "more": 1}, {"n": 9}, {}]


def test_records_survive_a_restart_and_those_of_numbers_that_agree_say_nothing_of_them():
    folder = testbed.MemoryFolder()
    outcome = run(100.0, folder=folder)
    assert load_outcome(folder, "law").updates == outcome.updates  # type: ignore[union-attr]
    assert all("n" not in record for series in outcome.updates.values() for record in series.values())
    reply = reply_of([0.0] * 5, n=8)
    updates = measure_updates(
        {"a": reply, "b": reply}, {"a": reply, "b": reply}, {"a": {"train": 8}, "b": {"train": 5}}
    )
    records = add_updates({}, updates, 3)
    assert "n" not in records["a"]["3"] and records["b"]["3"]["n"] == 8  # type: ignore[index,operator]
    assert [(each.site, each.n, each.rounds) for each in find_outliers(records)] == [("b", 8, (3,))]


def test_outcomes_without_records_are_written_as_before():
    folder, outcome = testbed.MemoryFolder(), run(1.0)
    assert b"updates" in _written(folder, outcome)
    assert b"updates" not in _written(folder, type(outcome)(outcome.state, outcome.merged, {}, {}, round=1))


def _written(folder: testbed.MemoryFolder, outcome: Any) -> bytes:
    save_outcome(folder, "law", outcome)
    return folder.read("state")
