"""Hospitals that leave and join a finished run of moments: exactly as if they had, or had not, been there."""

from __future__ import annotations

import typing

import pytest

from consilium.testing import testbed
from federation import outcome
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.engine import InProcess
from federation.membership import is_separable, regroup_sites
from federation.outcome import load_outcome
from federation.rehearsal import Forms
from federation.rounds import QuorumLost, Schedule
from personalize import AnyAlgorithm
from personalize.moments import Moments
from privacy.dp.protection import Protection
from privacy.message import Message, from_bytes, unseal_parts
from privacy.release.gate import BUDGET, Refused

HOW, WORK, TASK = Moments(radius=4.0), Work(), testbed.make_task()
TABLES = {name: testbed.make_table(k, shift=0.3 * k) for k, name in enumerate("abcd")}
NOISED = Protection(noise=2.0, validation_noise=3.0)


def crew(names, protection=None):
    made = testbed.make_federation(HOW, {name: TABLES[name] for name in names}, task=TASK, work=WORK)
    for hospital in made.values():
        hospital.protection = protection
    return made


def finished(names, protection=None):
    hospitals, folder = crew(names, protection), testbed.MemoryFolder()
    testbed.train(HOW, hospitals, task=TASK, work=WORK, schedule=Schedule(rounds=3), folder=folder)
    return hospitals, folder


def changed(hospitals, folder, *, scored=True, engine=None):
    """Regroup the run of this folder to these hospitals."""
    start = testbed.initial_parameters(HOW, TASK, seed=1)
    how = {
        "run": name_of(folder),
        "opening": {name: Message() for name in hospitals},
        "forms": testbed.rehearse_forms(HOW, TASK, WORK, start),
        "folder": folder,
        "scored": scored,
    }
    regroup_sites(engine or InProcess(hospitals), HOW, **how)


def name_of(folder):
    return str(from_bytes(unseal_parts(folder.read("state"))).facts["run"])


def models(hospitals):
    return {name: testbed.newest_model(hospital) for name, hospital in hospitals.items()}


def same(left, right):
    return left.keys() == right.keys() and all(testbed.are_equal(left[name], right[name]) for name in left)


def test_a_hospital_that_leaves_is_forgotten_bit_for_bit():
    hospitals, folder = finished("abc")
    with_c = models({name: hospitals[name] for name in "ab"})
    del hospitals["c"]
    changed(hospitals, folder)
    assert same(models(hospitals), models(finished("ab")[0]))
    assert not any(testbed.are_equal(one, models(hospitals)[name]) for name, one in with_c.items())
    assert b"site/c/" not in folder.read("state")


def test_records_of_finished_rounds_forget_who_left_too(monkeypatch):
    monkeypatch.setattr(outcome, "CHUNK", 2)  # as after many hospitals came and went
    hospitals, folder = finished("abc")
    del hospitals["c"]
    changed(hospitals, folder)
    now = load_outcome(folder, name_of(folder))
    assert "c" not in now.losses and now.totals.keys() == now.losses["a"].keys() == now.losses["b"].keys()
    assert not [name for name in folder.names() if b'"c"' in folder.read(name)]


def test_no_model_with_the_sums_of_who_left_stays_at_the_others():
    hospitals, folder = finished("abc")
    del hospitals["c"]
    changed(hospitals, folder)
    assert {name: one.models.names() for name, one in hospitals.items()} == {"a": ["3"], "b": ["3"]}


def test_a_hospital_that_joins_is_asked_alone_and_all_get_what_all_would_have_got():
    hospitals, folder = finished("ab")
    hospitals |= crew("cd")
    changed(hospitals, folder)
    assert same(models(hospitals), models(finished("abcd")[0]))
    assert {name: one.trained for name, one in hospitals.items()} == dict.fromkeys("abcd", 1)


def test_leaving_and_joining_at_once_and_coming_back():
    hospitals, folder = finished("abc")
    left = hospitals.pop("c")
    hospitals |= crew("d")
    changed(hospitals, folder)
    assert same(models(hospitals), models(finished("abd")[0]))
    changed({**hospitals, "c": left}, folder)
    assert same(models({**hospitals, "c": left}), models(finished("abcd")[0]))


def test_in_a_private_run_the_others_pay_nothing_and_their_noise_stays():
    hospitals, folder = finished("abc", NOISED)
    before = {name: list(one.events) for name, one in hospitals.items()}
    del hospitals["c"]
    hospitals |= crew("d", NOISED)
    sums = {name: load_newest_memory(hospitals[name].disk).tensors["own/gram"] for name in "ab"}
    changed(hospitals, folder, scored=False)
    assert {name: hospitals[name].events for name in "ab"} == {name: before[name] for name in "ab"}
    assert all((load_newest_memory(hospitals[name].disk).tensors["own/gram"] == sums[name]).all() for name in "ab")


def test_nothing_is_asked_where_nobody_left_or_joined_or_the_run_did_not_begin():
    hospitals, folder = finished("ab")
    files = dict(folder.files)
    changed(hospitals, folder, engine=InProcess(dict.fromkeys(hospitals)))
    assert folder.files == files
    regroup_sites(
        InProcess({}),
        HOW,
        run="none",
        opening={},
        forms=Forms(Message(), Message()),
        folder=testbed.MemoryFolder(),
        scored=True,
    )


class Away:
    """A hospital that does not answer a request."""

    def __init__(self, hospital, request, code=None):
        self.hospital, self.request, self.code = hospital, request, code

    def __call__(self, call, message):
        if call.request == self.request:
            raise Refused(self.code) if self.code else RuntimeError("away")
        return self.hospital(call, message)


@pytest.mark.parametrize("request_", ["introduce", "train", "finish"])
def test_what_was_interrupted_goes_on_and_nobody_keeps_an_earlier_answer(request_):
    hospitals, folder = finished("abc")
    del hospitals["c"]
    hospitals |= crew("d")
    with pytest.raises(QuorumLost):
        changed({**hospitals, "d": Away(hospitals["d"], request_)}, folder)
    left = {name: one for name, one in hospitals.items() if name != "b"}  # now b leaves too
    changed(left, folder)
    assert same(models(left), models(finished("ad")[0]))
    assert left["d"].trained == 1


def test_a_new_hospital_whose_budget_is_spent_stays_out_and_is_named():
    hospitals, folder = finished("ab")
    d = crew("d")["d"]
    changed({**hospitals, "d": Away(d, "train", BUDGET)}, folder)
    outcome = load_outcome(folder, name_of(folder))
    assert outcome.retired_sites == {"d"} and set(outcome.merged) == {"a", "b"}
    assert same(models(hospitals), models(finished("ab")[0]))


def test_only_moments_can_be_taken_apart():
    kinds = {kind for kind in typing.get_args(AnyAlgorithm) if hasattr(kind, "without")}
    assert kinds == {Moments} and is_separable(HOW)
