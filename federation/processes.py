"""An engine that simulates sites in several processes of this machine, so that all processor cores are used; and
`run_alongside`, which does other work in one more process.

The reply of a simulated site depends only on its folder and the question, so it is the same, bit for bit, in every
process. Each process has workers for all sites and takes the next waiting question; questions and replies are sent as
the bytes of `federation.wire`. If a process dies, only the answer of its site is lost, and a new process replaces it.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import signal
import sys
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, TypeAlias

from federation import wire
from federation.engine import Answers, Worker, report_answer
from privacy.message import Call, Message
from privacy.release.gate import Refused

Tell: TypeAlias = Callable[[Any], None]
"""Takes a progress message, in a form on which sender and display agree; picklable."""
Hire: TypeAlias = Callable[[Callable[[], bool], Tell], Mapping[str, Worker]]
"""hire(is_stopping, send_progress) -> the workers of all sites, called in a new process. Must be picklable, and defined
in a module that can be imported."""
Keep: TypeAlias = Callable[[Call, Message], Message]
"""keep(call, reply) -> the reply to hand on; it may raise Refused."""
POLL_S = 0.2
PATIENCE_S = 10.0  # for a process that was asked to end


class _Process(NamedTuple):
    process: ForkServerProcess
    line: Connection


class Processes:
    """All sites on this machine, `count` of them at a time, each in its own process.

    hire: see `Hire`. sites: their names. count: the number of processes, which start with the first question. stopping:
    whether the run was asked to stop; working sites are informed. keep: see `Keep`. log: takes a site and the reason
    why its process ended. told: takes a site and its progress. preload: modules imported once for all processes.
    """

    def __init__(
        self,
        hire: Hire,
        sites: Sequence[str],
        count: int,
        *,
        stopping: Callable[[], bool] = lambda: False,
        keep: Keep = lambda call, reply: reply,
        log: Callable[[str, str], None] = lambda site, text: logging.getLogger(__name__).error("%s: %s", site, text),
        told: Callable[[str, Any], None] = lambda site, progress: None,
        preload: Sequence[str] = (),
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, found {count}")
        self._hire, self._sites, self._count = hire, tuple(sorted(sites)), count
        self._stopping, self._keep, self._log, self._on_progress = stopping, keep, log, told
        self._context: ForkServerContext = get_context("forkserver")
        self._context.set_forkserver_preload([__name__, *preload])
        self._stop_event: Event = self._context.Event()
        self._idle: list[_Process] = []
        # Runs when this engine is no longer referenced; at the latest at exit, before multiprocessing waits for its
        # processes, whose SIGTERM they ignore.
        atexit.register(weakref.finalize(self, _end_processes, self._idle))

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return self._sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`. `unknown_site` and `failed` are codes of this engine, the rest are the sites' own.
        deadline_s: limits the working time of each site, without the time in which it waits for a process.
        """
        answer_by_site: dict[str, Message | str] = {
            site: "unknown_site" for site in messages if site not in self._sites
        }
        waiting = [site for site in sorted(messages, reverse=True) if site in self._sites]
        working: dict[Connection, tuple[str, _Process]] = {}
        try:
            while waiting or working:
                while waiting and len(working) < self._count:
                    site = waiting.pop()
                    worker = self._send_question(site, call, messages[site])
                    working[worker.line] = (site, worker)
                if self._stopping():
                    self._stop_event.set()
                ready = wait([*working], timeout=POLL_S)
                for line in [line for line in working if line in ready]:
                    site, worker = working[line]
                    answer = self._receive_answer(site, worker, call, deadline_s)
                    if answer is not None:
                        answer_by_site[site] = answer
                        del working[line]
                        report_answer(site)
        finally:
            for _, worker in working.values():  # interrupted: these answers are not needed any more
                _end_process(worker, at_once=True)
        replies = {site: answer_by_site[site] for site in sorted(answer_by_site)}
        return Answers(
            {site: answer for site, answer in replies.items() if isinstance(answer, Message)},
            {site: answer for site, answer in replies.items() if isinstance(answer, str)},
        )

    def close(self) -> None:
        """End all processes. A later question starts new ones."""
        _end_processes(self._idle)

    def _send_question(self, site: str, call: Call, message: Message) -> _Process:
        """Send the question to an idle or new process; returns the process."""
        data = wire.build_question(call.at(site), message)
        while True:
            worker = self._idle.pop() if self._idle else self._start_process()
            try:
                worker.line.send((site, data))
            except OSError:  # it ended while it was idle
                _end_process(worker, at_once=True)
                continue
            return worker

    def _start_process(self) -> _Process:
        """A new process that serves questions."""
        ours, theirs = self._context.Pipe()
        umask = os.umask(0o077)
        os.umask(umask)
        process = self._context.Process(
            target=_serve_questions,
            args=(self._hire, theirs, self._stop_event, umask),
            name="simulated sites",
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Process(process, ours)

    def _receive_answer(
        self, site: str, worker: _Process, call: Call, deadline_s: float | None
    ) -> Message | str | None:
        """The reply or code of the site; None if it only sent progress."""
        try:
            seconds, data = worker.line.recv()
        except (EOFError, OSError):
            _end_process(worker)
            self._log(
                site,
                f"{call.at(site).run} round {call.round} {call.request}: its process ended with exit code "
                f"{worker.process.exitcode}; a negative code is a signal, and -9 often means too little memory",
            )
            return "failed"
        if seconds is None:
            self._on_progress(site, data)
            return None
        self._idle.append(worker)
        if deadline_s is not None and seconds > deadline_s:
            return "late"
        answer = wire.read_answer(data)
        if isinstance(answer, str):
            return answer
        try:
            return self._keep(call, answer)
        except Refused as refused:
            return refused.code


@contextmanager
def run_alongside(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in another process during the block. At the end of the block the process ends, finished or not.

    work: must be picklable and defined in a module that can be imported. Nothing may depend on its result: if it fails,
    or no process can be started, no error is raised. It is interrupted by `SystemExit`.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    process = get_context("forkserver").Process(target=_run_work, args=(work, umask), name="beside", daemon=True)
    with suppress(Exception):  # pickling may raise any error
        process.start()
    try:
        yield
    finally:
        if process.is_alive():
            process.terminate()
            process.join(PATIENCE_S)
            process.kill()
            process.join()


def _run_work(work: Callable[[], None], umask: int) -> None:
    """The body of the process of `run_alongside`."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # SystemExit lets it remove half-written files
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals all processes
    os.umask(umask)
    _follow_parent()
    with suppress(Exception):
        work()


def _end_processes(idle: list[_Process]) -> None:
    """End all idle processes and empty the list."""
    for worker in idle:
        worker.line.close()  # so that all processes begin to end at the same time
    while idle:
        _end_process(idle.pop())


def _end_process(worker: _Process, *, at_once: bool = False) -> None:
    """End one process; at_once: without waiting for it to finish."""
    worker.line.close()
    if not at_once:
        worker.process.join(PATIENCE_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve_questions(hire: Hire, line: Connection, stop_event: Event, umask: int) -> None:
    """Answer questions until the line is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine tells of a stop; a terminal signals all processes
        signal.signal(number, signal.SIG_IGN)
    os.umask(umask)
    _follow_parent()
    workers = hire(stop_event.is_set, lambda progress: line.send((None, progress)))
    with suppress(EOFError, OSError):
        while True:
            site, data = line.recv()
            started = time.monotonic()
            answer = wire.answer(workers[site], data)
            line.send((time.monotonic() - started, answer))


def _die_with_parent(sentinel: int) -> None:
    """Have the kernel kill this process when the process of the run ends and so closes its end of this pipe.

    The signal that Linux sends to children of a process (PR_SET_PDEATHSIG) does not help: the parent is the fork
    server, which lives as long as its children.
    """
    if sys.platform == "linux":
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _follow_parent() -> None:
    """Have this process end when the run is killed: the same run may start again at once, on the same folders.

    On Linux the kernel is asked before any work begins: work that holds Python's lock would keep the thread from it.
    The thread is started without waiting: `Thread.start` hangs if memory is too short for the thread to begin.
    """
    parent = parent_process()
    if parent is not None:
        _die_with_parent(parent.sentinel)
        if wait([parent.sentinel], 0):  # it ended before the kernel was asked
            os._exit(1)
        start_new_thread(_end_with_parent, (parent.sentinel,))


def _end_with_parent(sentinel: int) -> None:
    """End this process when the process of the run ends."""
    wait([sentinel])
    os._exit(1)
