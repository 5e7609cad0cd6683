"""The contract of every engine: each asked site is answered for, by a reply or by a code, and nothing is raised."""

from __future__ import annotations

import pytest
import torch
from echoing import WORKERS, hired

from consilium.testing import testbed
from federation.engine import Eager, InProcess, listen_for_answers
from federation.processes import Processes
from flare_in_process import flare
from privacy.message import Call, Message

CALL = Call("run", 1, "train", {"a": 0})


def processes(workers):
    return Processes(hired, tuple(workers), 2)


WAYS = {"in process": InProcess, "wire": testbed.SerializingEngine, "flare": flare, "processes": processes}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def engine(request):
    return request.param(WORKERS)


def test_sites_are_sorted(engine):
    assert engine.sites == ("a", "c", "failing", "refusing", "slow")


def test_every_asked_site_is_in_exactly_one_place(engine):
    asked = [*WORKERS, "nobody"]
    for deadline in (0.1, 2.0, 20.0):  # on a busy machine the quick ones need longer too
        question = Message({}, {"deadline": deadline})
        answers = engine.ask(CALL, dict.fromkeys(asked, question), deadline_s=deadline)
        if {"a", "c"} <= set(answers.replies):
            break
    assert sorted([*answers.replies, *answers.missing]) == sorted(asked)
    assert answers.missing == {
        "failing": "failed",
        "refusing": "policy_request",
        "slow": "late",
        "nobody": "unknown_site",
    }
    assert list(answers.replies) == ["a", "c"]


def test_each_site_gets_its_own_message_and_only_who_is_asked_answers(engine):
    messages = {site: Message({"x": torch.full((2,), float(i))}, {"who": site}) for i, site in enumerate("ca")}
    answers = engine.ask(CALL, messages)
    for site, message in messages.items():
        assert torch.equal(answers.replies[site].tensors["x"], message.tensors["x"])
        assert answers.replies[site].facts == {"who": site, "round": 1, "run": "run", "runs": {}}
    assert not answers.missing
    assert engine.ask(CALL, {}).replies == {}


def test_no_text_of_a_failure_crosses_the_wall(engine):
    answers = engine.ask(CALL, {"failing": Message()})
    assert "Smith" not in repr(answers)


def test_one_request_may_belong_to_a_run_of_each_site_which_hears_of_its_own_alone(engine):
    call = CALL._replace(run="of all others", runs={"a": "run of a", "failing": "another"})
    answers = engine.ask(call, dict.fromkeys(["a", "c", "failing"], Message()))
    assert {site: (reply.facts["run"], reply.facts["runs"]) for site, reply in answers.replies.items()} == {
        "a": ("run of a", {}),
        "c": ("of all others", {}),
    }


def test_whoever_listens_hears_of_each_answer_once(engine):
    answered = []
    with listen_for_answers(answered.append):
        engine.ask(CALL, dict.fromkeys(["a", "c", "failing", "refusing"], Message()))
    engine.ask(CALL, {"a": Message()})
    assert sorted(answered) == ["a", "c", "failing", "refusing"]


def test_who_began_before_it_is_asked_answers_the_same(engine):
    asked = dict.fromkeys(["a", "c", "failing", "refusing", "nobody"], Message({}, {"who": "me"}))
    if isinstance(engine, Eager):
        engine.begin(CALL, asked)
        engine.begin(CALL, {"a": asked["a"]})
    began, again = engine.ask(CALL, asked), engine.ask(CALL, asked)
    assert {site: reply.facts for site, reply in began.replies.items()} == {
        site: reply.facts for site, reply in again.replies.items()
    }
    assert list(began.replies) == ["a", "c"] and began.missing == again.missing


def test_engines_between_machines_begin_before_they_are_asked():
    assert isinstance(flare(WORKERS), Eager) and not isinstance(InProcess(WORKERS), Eager)
