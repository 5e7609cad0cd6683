"""Numbered exit codes. `docs/reference/exit-codes.md` says what to do about each.

A run that is stopped by Ctrl-C or SIGTERM exits with 8, not with 130 or 143, to show a scheduler that all work is saved
and that the same command resumes it. 130 is reserved for the second Ctrl-C, which saves nothing.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console


class Exit(enum.IntEnum):
    """The exit codes of the process."""

    OK = 0  # the command did everything
    CONFIG = 2  # the settings or the command line are wrong; argparse uses the same number
    DATA = 3  # the data cannot be used: files missing, too many studies rejected
    SITE = 4  # a site refused or failed, or fewer sites answered than the quorum
    FAILED = 5  # a stage failed for another reason: a bug, or an unexpected error
    LOCKED = 6  # another run uses the same folder
    DISK = 7  # the disk is full, or an artifact cannot be read or written
    STOPPED = 8  # stopped on request at a safe point; nothing is lost
    MEMORY = 9  # not enough memory
    INTERRUPTED = 130  # ended by a second Ctrl-C; work since the last safe point is lost


def exit_code(error: BaseException, *, also: Mapping[type[BaseException], Exit] | None = None) -> Exit:
    """The exit code of an exception; for a failed stage that of its cause.

    An exception of a library that was raised from an error of the system has that error's code.

    also: exceptions of other packages and their codes; the first match wins, before those defined here.
    """
    # Imported here because they import pydantic, which a command's help does not need.
    from pipelines.loader.document import ConfigError
    from pipelines.runs.runner import SelectionError, StageFailed
    from pipelines.runs.stopping import LockedError, Stopped
    from pipelines.runs.store import ArtifactError
    from privacy.formats import LaterVersion
    from privacy.system_errors import classify_failure

    if isinstance(error, StageFailed):
        return exit_code(error.cause, also=also)
    codes: dict[type[BaseException], Exit] = {
        **(also or {}),
        ConfigError: Exit.CONFIG,
        SelectionError: Exit.CONFIG,
        LockedError: Exit.LOCKED,
        Stopped: Exit.STOPPED,
        KeyboardInterrupt: Exit.INTERRUPTED,
        ArtifactError: Exit.DISK,
        LaterVersion: Exit.CONFIG,
    }
    code_of_failure = {"disk": Exit.DISK, "memory": Exit.MEMORY, "failed": Exit.FAILED}[classify_failure(error)]
    return next((code for kind, code in codes.items() if isinstance(error, kind)), code_of_failure)


def end_process(main: Callable[[], int]) -> NoReturn:
    """End this process with a command's exit code, even if the command's output cannot be written.

    stdout and stderr may go to a file on a full disk; Python would then print a traceback and exit with 1.
    """
    try:
        code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, MemoryError) as error:  # commands catch most of their own errors
        code = report_uncaught_error(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python would try once more, and complain
    sys.exit(code)


def report_uncaught_error(error: OSError | MemoryError) -> int:
    """Write an error that a command did not catch to stderr, if that is possible; return its exit code."""
    code = Exit.MEMORY if isinstance(error, MemoryError) or error.errno == errno.ENOMEM else Exit.DISK
    with suppress(OSError):
        sys.stderr.write(f"{str(error) or 'there is not enough memory'}\n")
    return int(code)


def print_error(words: str, code: Exit, console: Console, *, as_json: bool, error: BaseException | None = None) -> int:
    """Print why a command ends, with --json also as JSON; returns the code. error: see `error_facts`."""
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        facts = {} if error is None else error_facts(error)
        print(json.dumps({"exit": int(code), "name": code.name, "error": words, **facts}))  # noqa: T201 - the output
    return int(code)


def error_facts(error: BaseException) -> dict[str, object]:
    """An error as JSON facts. `stage`: the stage of a run that it ended, or null. `sites`: the code of each hospital
    that did not answer. `to_go_on`: the command that resumes the run, or null.
    """
    cause = getattr(error, "cause", error)
    missing, command = getattr(cause, "missing", {}), getattr(error, "command", None)
    sites = {str(site): str(code) for site, code in missing.items()} if isinstance(missing, dict) else {}
    return {"stage": getattr(error, "stage", None), "sites": sites, "to_go_on": command}


def format_trace(error: BaseException) -> str:
    """An error's traceback without messages, which may quote a patient: files, lines and types only."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    parts = [
        f"{''.join(traceback.format_tb(link.__traceback__))}{type(link).__name__}{_system_error_text(link)}"
        for link in reversed(links)
    ]
    return "\nwhich led to\n".join(["", *parts])


def _system_error_text(error: BaseException) -> str:
    """`: ` and the system's description of an OSError; empty for other errors."""
    return f": {error.strerror}" if isinstance(error, OSError) else ""
