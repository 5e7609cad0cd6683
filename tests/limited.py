"""Runs of the command line in a copy of this process, under limits of the operating system that nothing can evade."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from pipelines.run import main

UNLIMITED = resource.RLIM_INFINITY
CRASHED = 99  # an exit code that no command has


class Ended(NamedTuple):
    """The exit code of a process, a signal as its negative number; and all that it said on stdout and stderr."""

    code: int
    said: str


def in_copy(work: Callable[[], int]) -> Ended:
    """Work in a forked copy of this process. An exception that reaches its end is `CRASHED`, with the traceback."""
    sys.stdout.flush()
    sys.stderr.flush()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        _end_with(work, writes)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = os.waitpid(child, 0)[1]
    return Ended(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), said)


def _end_with(work: Callable[[], int], handle: int) -> NoReturn:
    code = CRASHED
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def in_files_of(largest: int, argv: Sequence[str]) -> Ended:
    """A command that can write no file beyond `largest` bytes, as on a disk that is full there."""

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, UNLIMITED))
        return main(list(argv))

    return in_copy(work)


def in_no_more_memory(work: Callable[[], int], *, more: int = 0, seconds: int = 60) -> Ended:
    """Work in a copy of this process that gets no more than `more` bytes beyond what it has, and is ended by SIGALRM if
    it takes too long. What was freed can be used again.
    """

    def limited() -> int:
        faulthandler.disable()  # a library that crashes is no news here
        signal.alarm(seconds)
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + more, UNLIMITED))
        return work()

    return in_copy(limited)
