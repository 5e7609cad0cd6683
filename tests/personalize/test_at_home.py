"""A method at each hospital alone is what it would be in a run of that hospital, and nothing leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import methods
from consilium.testing import private, testbed
from consilium.testing.runs import ADAM, SCHEDULE, SGD, TABLES
from federation.algorithm import recipient_of
from federation.alone import Alone
from federation.as_begun import AsBegun
from federation.conversation import load_newest_memory
from federation.descent import Site
from federation.fedavg import FedAvg
from federation.local import Local
from federation.participant import NOTES
from federation.rehearsal import initial_parameters, rehearse_forms
from personalize import NamedAlgorithm
from personalize.at_home import AtHome, method_itself
from personalize.cusfl import CusFL
from personalize.fedrep import FedRep
from personalize.fenda import Fenda
from personalize.moments import Moments
from personalize.pfedmoap import PFedMoAP
from pipelines.models.size_limits import REPEATS, find_size_problems
from privacy.dp.access import open_access
from privacy.dp.events import compose_events
from privacy.dp.protection import Protection
from privacy.message import Call, Message, as_mapping
from privacy.settings_error import SettingsError

READ: TypeAdapter[Any] = TypeAdapter(NamedAlgorithm)
AT_HOME_ALREADY = (Alone, AsBegun, AtHome, Local)
INTRODUCED_BY_CHANCE = {"apple", "feddg"}
"""Methods that draw numbers when they introduce themselves; at home they do so in the first round, by its seed."""
LEARNT_FROM_OTHERS = [
    pytest.param(one, id=one.name)
    for one in methods.fit(testbed.make_task())
    if not isinstance(one, AT_HOME_ALREADY) and one.name not in INTRODUCED_BY_CHANCE
]


PRIVATELY = [
    pytest.param(one, id=one.name)
    for one in methods.private()
    if not isinstance(one, AT_HOME_ALREADY) and one.name not in INTRODUCED_BY_CHANCE
]


def train_at_home_and_alone(method, work, protection: Protection | None = None, sites=TABLES.sites):
    """Hospital -> the same hospital after a federation of `AtHome`, and after a run of its own."""
    pairs: dict[str, list[testbed.Hospital]] = {name: [] for name in sites}
    for algorithm, runs in ((AtHome(of=method), [sites]), (method, [{name: sites[name]} for name in sites])):
        for splits in runs:
            made = testbed.make_federation(algorithm, splits, task=TABLES.task, work=work)
            hospitals = {name: replace(hospital, protection=protection) for name, hospital in made.items()}
            testbed.train(algorithm, hospitals, task=TABLES.task, work=work, schedule=SCHEDULE)
            for name, hospital in hospitals.items():
                pairs[name].append(hospital)
    return pairs


@pytest.mark.repeats(12)
@pytest.mark.parametrize("method", LEARNT_FROM_OTHERS)
def test_its_models_are_those_of_a_run_of_one_hospital_to_the_last_bit(method):
    pairs = train_at_home_and_alone(method, methods.work_of(method, ADAM, SGD))
    for name, (at_home, alone) in pairs.items():
        found, expected = testbed.newest_model(at_home), testbed.newest_model(alone)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found), name


@pytest.mark.repeats(6)
@pytest.mark.parametrize("method", PRIVATELY)
def test_patients_pay_for_it_what_they_pay_in_a_run_of_one_hospital(method):
    sites = {name: TABLES.sites[name] for name in ("a", "b")}
    for at_home, alone in train_at_home_and_alone(method, private.SGD, private.NOISED, sites).values():
        assert compose_events(at_home.events) == compose_events(alone.events)


@given(method=st.sampled_from([param.values[0] for param in LEARNT_FROM_OTHERS]))
@settings(max_examples=20)
def test_nothing_leaves_and_nothing_comes_after_the_common_start(method):
    algorithm, work = AtHome(of=method), methods.work_of(method, ADAM, SGD)
    initial = initial_parameters(algorithm, TABLES.task, seed=0)
    forms = rehearse_forms(algorithm, TABLES.task, work, initial)
    assert not forms.introduction.tensors and not forms.introduction.facts["algorithm"]
    assert not forms.reply.tensors and not forms.reply.facts["algorithm"]
    state = algorithm.start(initial, {})
    assert algorithm.send(state, "a", Call("r", 2, "train", {"a": 1})) == Message()
    assert algorithm.merge(state, {"a": Message()}) is state
    assert recipient_of(algorithm) == "coordinator"


def test_fedavg_at_home_is_local_training():
    local, at_home = ({}, {})
    for algorithm, models in ((Local(), local), (AtHome(of=FedAvg()), at_home)):
        hospitals = testbed.make_federation(algorithm, TABLES.sites, task=TABLES.task, work=ADAM)
        testbed.train(algorithm, hospitals, task=TABLES.task, work=ADAM, schedule=SCHEDULE)
        models |= {name: testbed.newest_model(hospital) for name, hospital in hospitals.items()}
    for name, model in at_home.items():
        assert all(torch.equal(model[key], local[name][key]) for key in model)


def test_notes_of_the_method_are_kept_for_the_hospitals_page():
    method = CusFL(depth=1)
    pairs = train_at_home_and_alone(method, methods.work_of(method, ADAM, SGD))
    for at_home, alone in pairs.values():
        notes = [as_mapping(load_newest_memory(one.disk).facts.get(NOTES)) for one in (at_home, alone)]
        assert notes[0] and notes[0] == notes[1]


def test_a_hospital_whose_replies_were_all_lost_has_the_common_start():
    algorithm = AtHome(of=Fenda())
    initial = initial_parameters(algorithm, TABLES.task, seed=0)
    access = open_access(TABLES.sites["a"], batch=5, seed=0, balance=False)
    received = algorithm.send(algorithm.start(initial, {}), "a", Call("r", 3, "finish", {}))
    params = algorithm.model(Site("a", TABLES.task, ADAM, access), received, Message())
    assert all(torch.equal(params[key], initial[key]) for key in initial)


@pytest.mark.parametrize("name", ["local", "central", "local_svm", "local_ridge", "as_begun", "at_home"])
def test_a_method_that_learns_from_nobody_is_refused(name):
    of = {"name": name, "of": {"name": "fenda"}} if name == "at_home" else {"name": name}
    with pytest.raises(ValueError, match=f"of.*learns from others, and {name} does not"):
        READ.validate_python({"name": "at_home", "of": of})


@pytest.mark.parametrize(
    "of",
    [
        {"name": "zero_shot"},
        {"name": "moments", "others_gram": 0.0, "others_classes": 0.0},
        {"name": "dp_head", "others": 0.0, "rounds": 1},
    ],
    ids=lambda of: of["name"],
)
def test_a_method_whose_settings_keep_it_at_home_is_refused_too(of):
    with pytest.raises(ValueError, match=f"learns from others, and {of['name']} does not"):
        READ.validate_python({"name": "at_home", "of": of})


@pytest.mark.parametrize("of", ["fenda", Fenda, None, {"name": "fenda"}], ids=str)
def test_from_python_a_method_is_asked_for_in_words(of):
    with pytest.raises(SettingsError, match=r"of must be a method with its settings, as Fenda\(\), found"):
        AtHome(of=of)


def test_what_a_method_promises_of_its_rounds_and_losses_holds_at_home():
    moments = AtHome(of=Moments())
    assert moments.rounds == 1 and AtHome(of=Fenda()).rounds is None
    assert moments.needs_classes == Moments.needs_classes and moments.without_loss == Moments.without_loss
    assert method_itself(moments) == Moments() and method_itself(Fenda()) == Fenda()


def test_limits_on_settings_hold_for_the_method_at_home():
    too_many = FedRep(head_steps=REPEATS + 1, body_steps=1)
    assert find_size_problems(too_many, TABLES.task, SGD) == [f"head_steps must be <= {REPEATS}, found {REPEATS + 1}"]
    assert find_size_problems(AtHome(of=too_many), TABLES.task, SGD) == [
        f"of.head_steps must be <= {REPEATS}, found {REPEATS + 1}"
    ]


def test_prompts_are_refused_at_home_as_elsewhere():
    found = find_size_problems(AtHome(of=PFedMoAP(d=4, heads=2)), TABLES.task, SGD)
    assert found and "learns prompts of a frozen CLIP" in found[0]
