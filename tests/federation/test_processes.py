"""Simulated sites in processes of their own: what a crash, a stop and an end of the run do to them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from federation import processes
from federation.processes import Processes, run_alongside
from privacy.message import Call, Message
from privacy.release.gate import Refused

CALL = Call("run", 1, "train", {})


def hired(asked, tell):
    """Sites that each say in which process they are, and how it is."""

    def process(call, message):
        time.sleep(float(message.facts.get("seconds", 0.0)))
        if message.facts.get("holds"):  # Python's lock, for minutes
            re.match("(a+)+$", "a" * 40 + "b")
        return Message({}, {"process": os.getpid()})

    def crash(call, message):
        os.kill(os.getpid(), signal.SIGKILL)

    def until_stopped(call, message):
        for _ in range(1000):
            if asked():
                raise Refused("stopped")
            time.sleep(0.02)
        return Message()

    def signalled(call, message):
        """Ctrl-C reaches all processes of a terminal, and a machine that goes down signals all."""
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return Message({"x": torch.ones(3)}, {"still": "here"})

    def umask(call, message):
        now = os.umask(0)
        os.umask(now)
        return Message({}, {"umask": now})

    sites = {"a": process, "b": process, "c": process}
    return {**sites, "crash": crash, "until_stopped": until_stopped, "signalled": signalled, "umask": umask}


SITES = ("a", "b", "c", "crash", "until_stopped", "signalled", "umask")


def lives_on(path, seconds=60.0):
    """Writes down its process; and, where it is asked to end, that it could clear up."""
    try:
        path.write_text(str(os.getpid()))
        time.sleep(seconds)
        path.with_suffix(".done").touch()
    finally:
        path.with_suffix(".cleared").touch()


def fails(path):
    path.touch()
    raise RuntimeError("nobody is told")


def killed(path):
    path.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def deaf(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    lives_on(path)


def written(path, seconds=30.0):
    """What stands in a file, once it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not (path.exists() and path.read_text()):
        time.sleep(0.02)
    return path.read_text()


def alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(number: int, seconds: float = 20.0) -> bool:
    """Whether a process ends in time; one that does not is killed, so that it does not go on after the test."""
    until = time.monotonic() + seconds
    while alive(number) and time.monotonic() < until:
        time.sleep(0.05)
    if not alive(number):
        return True
    os.kill(number, signal.SIGKILL)
    return False


def test_sites_work_at_the_same_time_in_no_more_processes_than_asked_for():
    engine = Processes(hired, SITES, 2)
    said = engine.ask(CALL, dict.fromkeys("abc", Message({}, {"seconds": 0.3})))
    found = {reply.facts["process"] for reply in said.replies.values()}
    assert len(found) == 2 and os.getpid() not in found
    again = engine.ask(CALL, {"a": Message()}).replies["a"].facts["process"]
    assert again in found, "a process is kept for the next question"
    engine.close()
    assert all(gone(number) for number in found)
    assert engine.ask(CALL, {"a": Message()}).replies, "a closed engine starts new processes"
    engine.close()


def test_a_process_that_dies_takes_one_answer_along_and_is_replaced():
    told = []
    engine = Processes(hired, SITES, 2, log=lambda *what: told.append(what))
    answers = engine.ask(CALL, dict.fromkeys(["a", "b", "crash"], Message()))
    assert answers.missing == {"crash": "failed"} and list(answers.replies) == ["a", "b"]
    ((site, text),) = told
    assert site == "crash" and "exit code" in text and "train" in text
    assert list(engine.ask(CALL, dict.fromkeys("ab", Message())).replies) == ["a", "b"]
    engine.close()


def test_an_idle_process_that_died_is_replaced():
    engine = Processes(hired, SITES, 1)
    first = engine.ask(CALL, {"a": Message()}).replies["a"].facts["process"]
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    for _ in range(2):  # a pipe may take a question that nobody reads any more; then it is asked again
        answers = engine.ask(CALL, {"a": Message()})
    assert answers.replies["a"].facts["process"] != first
    engine.close()


def test_a_stop_reaches_sites_that_work():
    began = time.monotonic()
    engine = Processes(hired, SITES, 1, stopping=lambda: time.monotonic() - began > 0.5)
    assert engine.ask(CALL, {"until_stopped": Message()}).missing == {"until_stopped": "stopped"}
    engine.close()


def test_signals_to_all_processes_end_no_work():
    engine = Processes(hired, SITES, 1)
    reply = engine.ask(CALL, {"signalled": Message()}).replies["signalled"]
    assert reply.facts == {"still": "here"} and torch.equal(reply.tensors["x"], torch.ones(3))
    engine.close()


def test_files_are_for_their_owner_as_in_the_first_process():
    before = os.umask(0o027)
    try:
        engine = Processes(hired, SITES, 1)
        assert engine.ask(CALL, {"umask": Message()}).replies["umask"].facts == {"umask": 0o027}
        engine.close()
    finally:
        os.umask(before)


def test_what_keep_refuses_is_missing_with_its_code():
    def full(call, reply):
        raise Refused("disk")

    engine = Processes(hired, SITES, 1, keep=full)
    assert engine.ask(CALL, {"a": Message()}).missing == {"a": "disk"}
    engine.close()


def test_an_engine_that_nobody_has_any_more_ends_its_processes():
    engine = Processes(hired, SITES, 1)
    number = engine.ask(CALL, {"a": Message()}).replies["a"].facts["process"]
    del engine
    assert gone(number)


@pytest.mark.parametrize("count", [0, -1])
def test_no_processes_at_all_are_refused(count):
    with pytest.raises(ValueError, match=f"at least 1, found {count}"):
        Processes(hired, SITES, count)


def test_work_beside_ends_with_the_block_and_can_clear_up(tmp_path):
    path = tmp_path / "process"
    with run_alongside(partial(lives_on, path)):
        number = int(written(path))
        assert number != os.getpid()
        os.kill(number, signal.SIGINT)  # as Ctrl-C, which reaches all processes of a terminal
        time.sleep(0.1)
        assert alive(number)
    assert not alive(number)
    assert path.with_suffix(".cleared").exists() and not path.with_suffix(".done").exists()


def test_work_beside_that_will_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE_S", 0.1)
    path = tmp_path / "process"
    with run_alongside(partial(deaf, path)):
        number = int(written(path))
    assert not alive(number)


def test_work_beside_that_is_done_or_fails_or_dies_or_cannot_begin_is_nobodys_trouble(tmp_path, capfd):
    for work in (partial(lives_on, seconds=0.0), fails, killed):
        path = tmp_path / getattr(work, "__name__", "done")
        with run_alongside(partial(work, path)):
            until = time.monotonic() + 30
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(0.2)
        assert path.exists()
    with run_alongside(lambda: None):  # it cannot be sent
        pass
    with pytest.raises(ValueError, match="of the block"), run_alongside(partial(lives_on, tmp_path / "other")):
        raise ValueError("of the block")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "how",
    [
        "ends",
        pytest.param("killed", marks=pytest.mark.slow),  # the last case is this one, and harder
        "interrupted",
        "killed at work that holds Python's lock",
    ],
)
def test_with_the_first_process_all_others_and_work_beside_end(tmp_path, how):
    """However it ends: a killed run begins again on the same folders."""
    script, path = tmp_path / "script.py", tmp_path / "process"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            from functools import partial
            from pathlib import Path
            sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
            from federation.processes import Processes, run_alongside
            from privacy.message import Call, Message
            from test_processes import SITES, hired, lives_on, written

            if __name__ == "__main__":
                with run_alongside(partial(lives_on, Path({str(path)!r}))):
                    written(Path({str(path)!r}))
                    engine = Processes(hired, SITES, 1)
                    call = Call("run", 1, "train", {{}})
                    print(engine.ask(call, {{"a": Message()}}).replies["a"].facts["process"], flush=True)
                    if {how!r} != "ends":
                        facts = {{"holds": True}} if "lock" in {how!r} else {{"seconds": 60.0}}
                        engine.ask(call, {{"a": Message({{}}, facts)}})
            """
        )
    )
    quiet = subprocess.DEVNULL
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=quiet, text=True) as first:
        number, beside = int(first.stdout.readline()), int(written(path))
        time.sleep(0.3)
        if how.startswith("killed"):
            first.kill()
        elif how == "interrupted":
            first.send_signal(signal.SIGINT)
        first.wait(30)
    assert gone(number) and gone(beside)
    assert path.with_suffix(".cleared").exists() == (not how.startswith("killed"))
