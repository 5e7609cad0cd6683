"""Large questions and answers between machines: the same bits, few at a time, and no memory that grows with sites."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import pytest
import torch

import federation.remote
from federation import wire
from federation.engine import InProcess, Worker
from federation.flare import COORDINATOR, ClientApp, Proxy, build_collector
from federation.flare import build_reach as flare_reach
from federation.remote import CARRIED, READY, UNKNOWN, Reach, Remote, Unreachable
from pipelines.runs.replies import SMALL, make_reply_store
from privacy.message import Call, Message, to_bytes

CALL = Call("run", 1, "train", {})
STATUS = Path("/proc/self/status")
SITES = tuple(f"s{number:02d}" for number in range(12))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation.remote, "SMALL", 1000)


def message(size: int, seed: int = 0) -> Message:
    return Message({"model/w": torch.randn(size, generator=torch.Generator().manual_seed(seed))}, {"seed": seed})


def doubled(call: Call, asked: Message) -> Message:
    return Message({name: 2 * one for name, one in asked.tensors.items()}, {**asked.facts, "round": call.round})


def reach(worker: Worker, around: Callable[[Reach], Reach] = lambda plain: plain) -> Reach:
    client = ClientApp(worker, lambda: COORDINATOR)
    return around(lambda key, question, wait_s, timeout_s: client.answer(key, question, wait_s))


@pytest.mark.parametrize("sizes", [(10, 10), (5000, 10), (10, 5000), (5000, 5000)])
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_replies_are_those_of_one_process_and_worked_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], seconds: float
) -> None:
    monkeypatch.setattr(federation.remote, "WAIT_S", 0.03)
    asked, answered = sizes
    count: list[int] = []

    def work(call: Call, said: Message) -> Message:
        count.append(1)
        time.sleep(seconds)
        seed = said.facts["seed"]
        assert isinstance(seed, int)
        return doubled(call, message(answered, seed))

    messages = {site: message(asked, seed) for seed, site in enumerate(SITES)}
    far = Remote({site: reach(work) for site in SITES}, SITES, keep=make_reply_store(tmp_path, print)).ask(
        CALL, messages
    )
    assert len(count) == len(SITES) and not far.missing and not list(tmp_path.iterdir())
    near = InProcess(dict.fromkeys(SITES, work)).ask(CALL, messages)
    assert {s: to_bytes(one) for s, one in far.replies.items()} == {s: to_bytes(o) for s, o in near.replies.items()}


def test_a_large_answer_waits_at_the_hospital_until_it_is_fetched() -> None:
    client = ClientApp(doubled, lambda: COORDINATOR)
    question = wire.build_question(CALL, message(5000))
    key = hashlib.sha256(question).hexdigest()
    assert wire.read_answer(client.answer(key, question, 5.0)) == READY
    said = wire.read_answer(client.answer(key, b"", 0.0))
    assert isinstance(said, Message) and to_bytes(said) == to_bytes(doubled(CALL, message(5000)))


def test_few_large_ones_are_on_their_way_at_a_time_and_small_ones_do_not_wait() -> None:
    lock, now, most = threading.Lock(), {"large": 0, "small": 0}, {"large": 0, "small": 0}

    def counted(plain: Reach) -> Reach:
        def call(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
            said = plain(key, question, wait_s, timeout_s)
            kind = "large" if max(len(question), len(said if isinstance(said, bytes) else b"")) > 1000 else "small"
            with lock:
                now[kind] += 1
                most[kind] = max(most[kind], now[kind])
            time.sleep(0.02)
            with lock:
                now[kind] -= 1
            return said

        return call

    for size in (5000, 10):
        messages = {site: message(size, seed) for seed, site in enumerate(SITES)}
        assert not Remote({site: reach(doubled, counted) for site in SITES}, SITES).ask(CALL, messages).missing
    assert most["large"] <= CARRIED < most["small"]


def test_who_is_not_there_keeps_no_turn_from_the_others() -> None:
    """More hospitals than there are turns answer nothing for as long as they may; the rest is done meanwhile."""

    def dead(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        assert not question, "nothing large is sent to one that gave no sign of life"
        time.sleep(timeout_s)
        raise Unreachable

    ended: dict[str, float] = {}

    def noted(site: str) -> Worker:
        def work(call: Call, asked: Message) -> Message:
            ended[site] = time.monotonic() - begun
            return doubled(call, asked)

        return work

    gone = SITES[: CARRIED + 1]
    reached = {site: dead if site in gone else reach(noted(site)) for site in SITES}
    begun = time.monotonic()
    answers = Remote(reached, SITES, silence_s=3.0).ask(CALL, {site: message(5000) for site in SITES})
    assert answers.missing == dict.fromkeys(gone, "gone") and set(answers.replies) == set(SITES) - set(gone)
    assert max(ended.values()) < 3.0


@pytest.mark.parametrize("lost", range(6))
def test_a_lost_call_is_made_again_wherever_it_was(lost: int) -> None:
    count, calls = [0], [0]

    def work(call: Call, asked: Message) -> Message:
        count[0] += 1
        return doubled(call, asked)

    def lossy(plain: Reach) -> Reach:
        def call(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
            said, calls[0] = plain(key, question, wait_s, timeout_s), calls[0] + 1
            if calls[0] == lost:
                raise Unreachable  # it came, and its answer did not
            return said

        return call

    answers = Remote({"a": reach(work, lossy)}, ("a",)).ask(CALL, {"a": message(5000)})
    assert to_bytes(answers.replies["a"]) == to_bytes(doubled(CALL, message(5000))) and count == [1]


@pytest.mark.parametrize("always", [READY, UNKNOWN])
def test_a_hospital_that_says_the_same_for_ever_is_malformed(always: str) -> None:
    said = wire.code_answer(always)
    answers = Remote({"a": lambda *_: said}, ("a",)).ask(CALL, {"a": message(5000)})
    assert answers.missing == {"a": "malformed"}


def test_a_late_one_is_late_while_it_waits_for_its_turn() -> None:
    def slow(plain: Reach) -> Reach:
        def call(key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
            time.sleep(0.5 if question else 0.0)
            return plain(key, question, wait_s, timeout_s)

        return call

    engine = Remote({site: reach(doubled, slow) for site in SITES}, SITES, silence_s=0.6)
    answers = engine.ask(CALL, {site: message(5000) for site in SITES}, deadline_s=0.8)
    assert set(answers.missing.values()) == {"late"}, "to wait for a turn is not silence"


def test_a_reply_that_cannot_be_kept_has_the_code_of_the_coordinators_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lines: list[str] = []
    engine = Remote({"a": reach(doubled)}, ("a",), keep=make_reply_store(tmp_path / "file", lines.append))
    assert engine.ask(CALL, {"a": message(SMALL)}).missing == {"a": "disk"}
    assert "cannot wait in" in lines[0]


PROGRAM = """
import hashlib, os, sys, threading
from pathlib import Path
import torch
from federation import wire
from federation.remote import READY, UNKNOWN, WORKING, Remote
from pipelines.runs.replies import make_reply_store
from privacy.message import Call, Message

def peak():
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

def hospital(value):  # holds nothing: what is measured is the coordinator's
    state = {"known": False}
    def reach(key, question, wait_s, timeout_s):
        if question:
            state["known"] = True
        if not state["known"]:
            return wire.code_answer(UNKNOWN)
        if question or wait_s:
            return wire.code_answer(READY if wait_s else WORKING)
        return wire.answer(lambda call, asked: Message({"w": torch.full((2**21,), value)}), SENT)
    return reach

CALL = Call("run", 1, "train", {})
SENT = wire.build_question(CALL, Message())
model = Message({"w": torch.zeros(2**21)})
def ask(count):
    sites = [f"s{number}" for number in range(count)]
    reached = {site: hospital(float(number)) for number, site in enumerate(sites)}
    remote = Remote(reached, sites, keep=make_reply_store(Path(sys.argv[1]), print))
    answers = remote.ask(CALL, dict.fromkeys(sites, model))
    assert not answers.missing
    return answers
ask(4)
before = peak()
answers = ask(32)
grown = peak() - before
mean = sum(reply.tensors["w"][:1] for reply in answers.replies.values()) / 32
assert float(mean) == 15.5, mean
print(grown)
"""


@pytest.mark.skipif(not STATUS.exists(), reason="the most memory that a process held is told by Linux alone")
def test_the_most_memory_that_is_held_does_not_grow_with_hospitals(tmp_path: Path) -> None:
    """4, then 32 hospitals, 8 MiB to and from each, in a process whose allocator gives back at once what is freed."""
    frugal: Mapping[str, str] = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    line = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=frugal)
    assert float(done.stdout) < 50, "of 28 x 8 = 224 MiB, each way"


def test_what_flare_leaves_behind_is_collected_by_its_bytes() -> None:
    """Objects that refer to each other and hold what was sent, as FLARE's tasks do."""

    class Task:
        def __init__(self, sent: bytes) -> None:
            self.sent, self.itself = sent, self

    class Littering:
        def __call__(self, *, timeout: float) -> Littering:
            return self

        def answer(self, key: str, question: bytes, wait_s: float) -> bytes:
            left.append(weakref.ref(Task(question)))
            return b"x" * 10

    left: list[weakref.ref[Task]] = []
    call = flare_reach(cast(Proxy, Littering()), build_collector(100 * 1000))
    gc.disable()
    try:
        most = 0
        for _ in range(1000):
            call("", b"q" * 990, 0.0, 1.0)
            most = max(most, sum(one() is not None for one in left[-200:]))
    finally:
        gc.enable()
    assert 50 < most <= 101, "100 calls of 1000 bytes, there and back, and the one that collects"
