"""Stop a run at a safe point, and lock its folder against other runs."""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from filelock import FileLock, Timeout

from privacy.pickled import reduce_error

LOCK = ".lock"
HOLDER = ".lock.json"
WORDS = "\nstopping at the next safe point; Ctrl-C again ends at once, and loses the work since the last one\n"


class Stopped(Exception):
    """The run stopped at a safe point on request. `command` resumes it from there."""

    def __init__(self, reason: str, command: str = "") -> None:
        self.reason, self.command = reason, command
        text = f"stopped at a safe point: {reason}"
        super().__init__(f"{text}; to go on:\n{command}" if command else text)

    __reduce__ = reduce_error


class LockedError(RuntimeError):
    """Another run uses the same folder."""


@dataclass(frozen=True)
class Stop:
    """A request to stop the run. Long tasks call `check` at points where all their work is saved."""

    _reasons: list[str] = field(default_factory=list)

    @property
    def is_requested(self) -> bool:
        """Whether a stop was requested."""
        return bool(self._reasons)

    def request(self, reason: str) -> None:
        """Request a stop."""
        self._reasons.append(reason)

    def check(self) -> None:
        """Stop here if requested.

        Raises:
            Stopped: a stop was requested.
        """
        if self._reasons:
            raise Stopped(self._reasons[0])


@contextmanager
def safe_stop() -> Iterator[Stop]:
    """SIGTERM and the first Ctrl-C request a stop; the second Ctrl-C raises KeyboardInterrupt at once.

    Earlier handlers are restored at the end. A signal that the process ignores (`nohup`, a job in the background) stays
    ignored. Outside the main thread, where Python allows no handlers, only `request` can stop the run.
    """
    stop = Stop()
    earlier_handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                earlier_handlers[number] = signal.signal(number, _make_handler(stop))
    try:
        yield stop
    finally:
        for signal_number, handler in earlier_handlers.items():
            signal.signal(signal_number, signal.SIG_DFL if handler is None else handler)


def _make_handler(stop: Stop) -> Callable[[int, FrameType | None], None]:
    """A signal handler that requests a stop, and raises KeyboardInterrupt at the second Ctrl-C."""
    interrupts: list[int] = []

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and interrupts:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            interrupts.append(number)
        stop.request(signal.Signals(number).name)
        with suppress(OSError):  # os.write, because the signal may have interrupted a print
            os.write(2, WORDS.encode())

    return handle_signal


@dataclass(frozen=True)
class RunLock:
    """Lets only one run use a folder: `with RunLock(root): ...`. The system releases the lock of a killed run.

    tidy: whether the lock's file is removed at the end, for folders whose files are passed on; a run's folder keeps it
    as its mark. It is removed while the lock is held; a process that locks a removed file tries again (filelock 4).
    name: of the lock's file, for other things than runs that one process does at a time.

    Raises (on entering):
        LockedError: another run uses it; the message names its process, machine and start.
    """

    root: Path
    tidy: bool = False
    name: str = LOCK
    _locks: list[FileLock] = field(default_factory=list, repr=False, compare=False)

    def __enter__(self) -> RunLock:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / self.name, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise LockedError(_describe_holder(self.root, self.name)) from None
        self._locks.append(lock)
        holder = {"pid": os.getpid(), "host": platform.node(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        (self.root / f"{self.name}.json").write_text(json.dumps(holder), encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self.root / f"{self.name}.json").unlink(missing_ok=True)
        if self.tidy:
            (self.root / self.name).unlink(missing_ok=True)
        self._locks.pop().release()


def _describe_holder(root: Path, name: str) -> str:
    """A sentence on the process that holds a folder's lock."""
    try:
        holder = json.loads((root / f"{name}.json").read_text(encoding="utf-8"))
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it has just started or ended
        who = "another process (it has just started or ended)"
    return (
        f"{root} is in use by {who}; wait for it, stop it (kill -TERM, it stops at a safe point), or use another folder"
    )
