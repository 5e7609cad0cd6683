"""An engine that simulates sites in several processes of this machine, so that they use its processor cores; and
`beside`, which does other work meanwhile.

A simulated site is a function of its folder and of the question, and so gives the same reply, bit for bit, in whichever
process it works. Each process has workers for all sites and takes the next question that waits; questions and replies
cross as the bytes of `federation.wire`. A process that dies takes only its site's answer along, and is replaced.
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
from federation.engine import Answers, Worker, heard
from privacy.message import Call, Message
from privacy.release.gate import Refused

Tell: TypeAlias = Callable[[Any], None]
"""Takes progress, in a form on which those who send and who show it agree; picklable."""
Hire: TypeAlias = Callable[[Callable[[], bool], Tell], Mapping[str, Worker]]
"""Makes the sites' workers in a new process, from what tells whether the run was asked to stop, and what sends progress
to the engine. Must be picklable, and defined in a module that can be imported."""
Keep: TypeAlias = Callable[[Call, Message], Message]
"""What becomes of a reply that came; it may raise Refused."""
POLL_S = 0.2
PATIENCE_S = 10.0  # for a process that was told to end


class _Process(NamedTuple):
    process: ForkServerProcess
    line: Connection


class Processes:
    """All sites on this machine, `count` of them at a time, each in a process of its own meanwhile.

    hire: see `Hire`. sites: their names. count: of processes, which start with the first question. stopping: whether
    the run was asked to stop; it is passed on while sites work. keep: what becomes of a reply. log: takes a site and
    why its process ended. told: takes a site and its progress. preload: modules that are imported once for all.
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
        self._stopping, self._keep, self._log, self._told = stopping, keep, log, told
        self._context: ForkServerContext = get_context("forkserver")
        self._context.set_forkserver_preload([__name__, *preload])
        self._asked: Event = self._context.Event()
        self._idle: list[_Process] = []
        # Once nobody has this engine any more; at the latest before multiprocessing waits for processes at the exit,
        # and asks them to end by a signal that they ignore.
        atexit.register(weakref.finalize(self, _end_all, self._idle))

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""
        return self._sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """See `Engine.ask`. `unknown_site` and `failed` are codes of this engine, the rest are the sites' own.
        deadline_s: of each site's own work, as if it had the machine for itself.
        """
        found: dict[str, Message | str] = {site: "unknown_site" for site in messages if site not in self._sites}
        waiting = [site for site in sorted(messages, reverse=True) if site in self._sites]
        working: dict[Connection, tuple[str, _Process]] = {}
        try:
            while waiting or working:
                while waiting and len(working) < self._count:
                    site = waiting.pop()
                    one = self._begun(site, call, messages[site])
                    working[one.line] = (site, one)
                if self._stopping():
                    self._asked.set()
                ready = wait([*working], timeout=POLL_S)
                for line in [line for line in working if line in ready]:
                    site, one = working[line]
                    said = self._heard(site, one, call, deadline_s)
                    if said is not None:
                        found[site] = said
                        del working[line]
                        heard(site)
        finally:
            for _, one in working.values():  # interrupted: nobody waits for these answers
                _end(one, at_once=True)
        replies = {site: found[site] for site in sorted(found)}
        return Answers(
            {site: said for site, said in replies.items() if isinstance(said, Message)},
            {site: said for site, said in replies.items() if isinstance(said, str)},
        )

    def close(self) -> None:
        """End all processes. A later question starts new ones."""
        _end_all(self._idle)

    def _begun(self, site: str, call: Call, message: Message) -> _Process:
        """A process that works on the question."""
        data = wire.question(call.at(site), message)
        while True:
            one = self._idle.pop() if self._idle else self._started()
            try:
                one.line.send((site, data))
            except OSError:  # it ended while it had nothing to do
                _end(one, at_once=True)
                continue
            return one

    def _started(self) -> _Process:
        ours, theirs = self._context.Pipe()
        umask = os.umask(0o077)
        os.umask(umask)
        process = self._context.Process(
            target=_serve, args=(self._hire, theirs, self._asked, umask), name="simulated sites", daemon=True
        )
        process.start()
        theirs.close()
        return _Process(process, ours)

    def _heard(self, site: str, one: _Process, call: Call, deadline_s: float | None) -> Message | str | None:
        """The site's reply or code; None if it goes on with its work."""
        try:
            seconds, data = one.line.recv()
        except (EOFError, OSError):
            _end(one)
            self._log(
                site,
                f"{call.at(site).run} round {call.round} {call.request}: its process ended with exit code "
                f"{one.process.exitcode}; a negative code is a signal, and -9 often means too little memory",
            )
            return "failed"
        if seconds is None:
            self._told(site, data)
            return None
        self._idle.append(one)
        if deadline_s is not None and seconds > deadline_s:
            return "late"
        said = wire.read_answer(data)
        if isinstance(said, str):
            return said
        try:
            return self._keep(call, said)
        except Refused as refused:
            return refused.code


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Work in a process of its own meanwhile, which ends with the block, done or not; at once, by `SystemExit`.

    work: must be picklable, defined in a module that can be imported, and such that nobody depends on it: where it
    fails, or no process can be had for it, nobody is told.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    process = get_context("forkserver").Process(target=_do, args=(work, umask), name="beside", daemon=True)
    with suppress(Exception):  # pickling promises no kind of error
        process.start()
    try:
        yield
    finally:
        if process.is_alive():
            process.terminate()
            process.join(PATIENCE_S)
            process.kill()
            process.join()


def _do(work: Callable[[], None], umask: int) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # what is half written is removed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals all processes
    os.umask(umask)
    start_new_thread(_end_with_parent, ())
    with suppress(Exception):
        work()


def _end_all(idle: list[_Process]) -> None:
    for one in idle:
        one.line.close()  # all begin to end
    while idle:
        _end(idle.pop())


def _end(one: _Process, *, at_once: bool = False) -> None:
    one.line.close()
    if not at_once:
        one.process.join(PATIENCE_S)
    if one.process.is_alive():
        one.process.kill()
        one.process.join()


def _serve(hire: Hire, line: Connection, asked: Event, umask: int) -> None:
    """Answer questions until the line is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine tells of a stop; a terminal signals all processes
        signal.signal(number, signal.SIG_IGN)
    os.umask(umask)
    start_new_thread(_end_with_parent, ())
    workers = hire(asked.is_set, lambda progress: line.send((None, progress)))
    with suppress(EOFError, OSError):
        while True:
            site, data = line.recv()
            begun = time.monotonic()
            said = wire.answer(workers[site], data)
            line.send((time.monotonic() - begun, said))


def _die_with_parent(sentinel: int) -> None:
    """Have the kernel kill this process when the run's own ends, which closes its end of this pipe.

    The signal that Linux sends to children of a process (PR_SET_PDEATHSIG) would not do: the parent is the fork server,
    and it lives as long as its children.
    """
    if sys.platform == "linux":
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)


def _end_with_parent() -> None:
    """A killed run's sites must not go on: the same run may begin again at once, on the same folders.

    In a thread that nobody waits for: `Thread.start` waits for ever where memory is too short for the thread to begin.
    On Linux the kernel kills besides, since a thread waits for Python's lock, which other work may hold for long.
    """
    parent = parent_process()
    if parent is not None:
        _die_with_parent(parent.sentinel)
        wait([parent.sentinel])
        os._exit(1)
