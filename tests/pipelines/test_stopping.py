from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipelines.runs.stopping import HOLDER, LockedError, RunLock, Stop, Stopped, safe_stop

ROOT = Path(__file__).parents[2]


def test_nobody_asked():
    stop = Stop()
    stop.check()
    assert not stop.is_requested


def test_a_request_is_told_at_the_next_check():
    stop = Stop()
    stop.request("SIGTERM")
    stop.request("SIGINT")
    assert stop.is_requested
    with pytest.raises(Stopped, match="safe point: SIGTERM"):
        stop.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_the_handlers_come_back(number, capfd):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with safe_stop() as stop:
        assert not stop.is_requested
        signal.raise_signal(number)
        assert stop.is_requested
        with pytest.raises(Stopped, match=signal.Signals(number).name):
            stop.check()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert "next safe point" in capfd.readouterr().err


def test_only_the_second_ctrl_c_ends_at_once():
    with safe_stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_nest():
    with safe_stop() as outer:
        with safe_stop() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert inner.is_requested
        assert not outer.is_requested
        signal.raise_signal(signal.SIGTERM)
        assert outer.is_requested


def test_handlers_come_back_after_a_failure():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="x"), safe_stop():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with safe_stop() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.is_requested
    finally:
        signal.signal(signal.SIGINT, before)


def test_outside_the_main_thread_only_a_request_asks():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with safe_stop() as stop:
            seen.append(signal.getsignal(signal.SIGTERM) is before)
            stop.request("somebody")
            seen.append(stop.is_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, True]


def test_a_second_run_in_the_folder_is_refused_and_told_who_works_there(tmp_path):
    with RunLock(tmp_path / "run"):
        with pytest.raises(LockedError, match=f"process {os.getpid()} on .* since 20"), RunLock(tmp_path / "run"):
            pytest.fail("two runs in one folder")
        with RunLock(tmp_path / "other"):
            pass
    with RunLock(tmp_path / "run"):
        pass
    assert not (tmp_path / "run" / HOLDER).exists()


def test_the_lock_is_let_go_after_a_failure(tmp_path):
    with pytest.raises(ValueError, match="x"), RunLock(tmp_path):
        raise ValueError("x")
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_holder_that_said_nothing_is_still_a_holder(tmp_path, text):
    with RunLock(tmp_path):
        (tmp_path / HOLDER).write_text(text)
        with pytest.raises(LockedError, match="just started or ended"), RunLock(tmp_path):
            pytest.fail("two runs in one folder")


HOLD = """
import sys, time
from pathlib import Path
from pipelines.runs.stopping import RunLock, Stopped, safe_stop
with RunLock(Path(sys.argv[1])), safe_stop() as stop:
    print("ready", flush=True)
    try:
        while True:
            time.sleep(0.01)
            stop.check()
    except Stopped:
        print("stopped", flush=True)
        sys.exit(8)
"""


def holding(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_another_process_holds_the_folder_until_it_stops(tmp_path):
    with holding(tmp_path) as process:
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == process.pid
        with pytest.raises(LockedError, match=f"process {process.pid} "), RunLock(tmp_path):
            pytest.fail("two runs in one folder")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 8
    with RunLock(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path):
    with holding(tmp_path) as process:
        process.kill()
        process.wait(timeout=20)
    assert (tmp_path / HOLDER).exists()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["pid"] == os.getpid()


MANY = """
import sys, time
from pathlib import Path
from pipelines.runs.stopping import LockedError, RunLock
folder, until = Path(sys.argv[1]), time.monotonic() + 2
print("ready", flush=True)
sys.stdin.readline()
while time.monotonic() < until:
    try:
        with RunLock(folder, tidy=True):
            (folder / "inside").mkdir()  # fails if another one is inside
            (folder / "inside").rmdir()
            print("in")
    except LockedError:
        pass
"""


def test_a_lock_that_is_removed_at_the_end_lets_one_in_at_a_time(tmp_path):
    with RunLock(tmp_path / "one", tidy=True), pytest.raises(LockedError), RunLock(tmp_path / "one", tidy=True):
        pytest.fail("two runs in one folder")
    assert list((tmp_path / "one").iterdir()) == []
    command = [sys.executable, "-c", MANY, str(tmp_path / "many")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n", timeout=60) for process in processes]
    assert [error for _, error in told] == ["", "", ""]
    assert sum(out.count("in") for out, _ in told) > 20


def test_work_stops_within_a_moment_of_the_signal(tmp_path):
    with holding(tmp_path) as process:
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)
    assert process.returncode == 8
    assert time.monotonic() - begun < 10
