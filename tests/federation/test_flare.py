"""The engine over FLARE, without FLARE: lost calls, long work, hospitals that are gone, callers who may not ask."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest
from nvflare.collab.api.exceptions import RunAborted

import federation.remote
from federation import wire
from federation.flare import COORDINATOR, ClientApp, build_reach
from federation.remote import OURS, UNKNOWN, WORKING, Remote
from flare_in_process import InProcessProxy, flare
from privacy.message import Call, Message
from privacy.release.gate import Refused

CALL = Call("run", 1, "train", {})


class Counted:
    """Counts how often it is asked to work; works for `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.asked, self.seconds = 0, seconds

    def __call__(self, call: Call, message: Message) -> Message:
        self.asked += 1
        time.sleep(self.seconds)
        return Message({}, {"round": call.round})


def key_of(question: bytes) -> str:
    return hashlib.sha256(question).hexdigest()


def test_who_is_not_the_coordinator_gets_no_work_done():
    worker = Counted()
    question = wire.build_question(CALL, Message())
    for caller in ("other_hospital", "Server", ""):
        said = ClientApp(worker, lambda caller=caller: caller).answer(key_of(question), question, 1.0)
        assert wire.read_answer(said) == "not_the_coordinator"
    assert worker.asked == 0


def test_a_question_is_worked_on_once_however_often_it_comes():
    worker = Counted(0.2)
    client = ClientApp(worker, lambda: COORDINATOR)
    question = wire.build_question(CALL, Message())
    assert wire.read_answer(client.answer(key_of(question), question, 0.0)) == WORKING
    assert wire.read_answer(client.answer(key_of(question), question, 0.01)) == WORKING
    said = wire.read_answer(client.answer(key_of(question), b"", 5.0))
    assert isinstance(said, Message) and said.facts == {"round": 1}
    assert wire.read_answer(client.answer(key_of(question), b"", 5.0)) == said, (
        "an answer that was lost can be had again"
    )
    assert worker.asked == 1


def test_a_key_without_its_question_is_unknown():
    client = ClientApp(Counted(), lambda: COORDINATOR)
    assert wire.read_answer(client.answer("0" * 64, b"", 0.0)) == UNKNOWN
    assert wire.read_answer(client.answer("0" * 64, wire.build_question(CALL, Message()), 0.0)) == UNKNOWN


def test_questions_wait_for_each_other():
    busy, most = [0], [0]

    def worker(call: Call, message: Message) -> Message:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        time.sleep(0.05)
        busy[0] -= 1
        return Message()

    client = ClientApp(worker, lambda: COORDINATOR)
    questions = [wire.build_question(CALL._replace(round=number), Message()) for number in range(4)]
    threads = [threading.Thread(target=client.answer, args=(key_of(q), q, 5.0)) for q in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_calls_that_are_lost_are_made_again_and_the_work_is_done_once():
    worker = Counted()
    near = InProcessProxy(ClientApp(worker, lambda: COORDINATOR), lost=2)
    answers = Remote({"a": build_reach(near)}, ("a",), silence_s=30.0).ask(CALL, {"a": Message()})
    assert answers.replies["a"].facts == {"round": 1} and not answers.missing
    assert worker.asked == 1 and set(near.timeouts) == {30.0}


def test_a_hospital_without_a_sign_of_life_is_gone():
    near = InProcessProxy(ClientApp(Counted(), lambda: COORDINATOR), lost=10**6)
    begun = time.monotonic()
    told: list[str] = []
    clients = {"a": build_reach(near), "b": build_reach(InProcessProxy(ClientApp(Counted(), lambda: COORDINATOR)))}
    engine = Remote(clients, ("c", "b", "a"), silence_s=0.2, on_gone=told.append)
    answers = engine.ask(CALL, {site: Message() for site in "abc"})
    assert answers.missing == {"a": "gone", "c": "gone"} and list(answers.replies) == ["b"]
    assert sorted(told) == ["a", "c"] and engine.sites == ("a", "b", "c")
    assert time.monotonic() - begun < 20


def test_silence_adds_up_over_questions_with_short_deadlines_until_a_sign_of_life():
    near, told = InProcessProxy(ClientApp(Counted(), lambda: COORDINATOR), lost=10**6), list[str]()
    engine = Remote({"a": build_reach(near)}, ("a",), silence_s=1.0, on_gone=told.append)

    def ask(round_: int) -> str:
        answers = engine.ask(CALL._replace(round=round_), {"a": Message()}, deadline_s=0.4)
        return answers.missing.get("a", "answered")

    assert [ask(1), ask(2)] == ["late", "late"] and not told
    near.lost = 0
    assert ask(3) == "answered"
    near.lost = 10**6
    assert [ask(4), ask(5), ask(6)] == ["late", "late", "gone"] and told == ["a"]


def test_long_work_is_not_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(federation.remote, "WAIT_S", 0.05)
    worker = Counted(1.0)
    answers = flare({"a": worker}, silence_s=0.2).ask(CALL, {"a": Message()})
    assert list(answers.replies) == ["a"] and worker.asked == 1


def test_who_is_late_is_missing_and_can_be_asked_for_the_next_round():
    worker = Counted(0.4)
    engine = flare({"a": worker})
    assert engine.ask(CALL, {"a": Message()}, deadline_s=0.1).missing == {"a": "late"}
    worker.seconds = 0.0
    later = engine.ask(CALL._replace(round=2), {"a": Message()}, deadline_s=30.0)
    assert later.replies["a"].facts == {"round": 2} and worker.asked == 2


def test_a_hospital_that_forgot_the_question_gets_it_again(monkeypatch: pytest.MonkeyPatch):
    """Its FLARE process began anew between two calls."""
    monkeypatch.setattr(federation.remote, "WAIT_S", 0.05)
    old, new = Counted(0.3), Counted()
    near = InProcessProxy(ClientApp(old, lambda: COORDINATOR))
    threading.Timer(0.1, lambda: setattr(near, "client", ClientApp(new, lambda: COORDINATOR))).start()
    answers = Remote({"a": build_reach(near)}, ("a",)).ask(CALL, {"a": Message()})
    assert list(answers.replies) == ["a"] and new.asked == 1


def test_a_job_that_flare_ends_is_no_hospital_that_is_gone():
    told: list[str] = []

    class Ended:
        def __call__(self, *, timeout: float) -> Ended:
            return self

        def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
            raise RunAborted("aborted")

    engine = Remote({"a": build_reach(Ended())}, ("a",), on_gone=told.append)  # type: ignore[arg-type]
    assert engine.ask(CALL, {"a": Message()}).missing == {"a": "stopped"} and not told


@pytest.mark.parametrize("code", OURS)
def test_a_hospital_cannot_say_what_the_engine_says(code: str):
    def imitating(call: Call, message: Message) -> Message:
        raise Refused(code)

    answers = flare({"a": imitating}).ask(CALL, {"a": Message()})
    assert answers.missing == {"a": "malformed"} and not answers.replies
