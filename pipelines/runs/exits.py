"""Numbered exit codes. `docs/reference/exit-codes.md` says what to do about each.

A run that was asked to stop, by Ctrl-C or SIGTERM, ends with 8 and not with 130 or 143: a scheduler can tell from it
that all work is saved and that the same command goes on. 130 is kept for the second Ctrl-C, which saves nothing.
"""

from __future__ import annotations

import enum
import json
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Exit(enum.IntEnum):
    """What the process returns to the shell."""

    OK = 0  # everything asked for is there
    CONFIG = 2  # the settings or the command line are wrong; argparse uses the same number
    DATA = 3  # the data cannot be used: files missing, too many studies rejected
    SITE = 4  # a site refused or failed, or fewer sites answered than the quorum
    FAILED = 5  # a stage failed for another reason: a bug, or something nobody thought of
    LOCKED = 6  # another run works in the same folder
    DISK = 7  # the disk is full, or an artifact cannot be read or written
    STOPPED = 8  # stopped on request at a safe point; nothing is lost
    INTERRUPTED = 130  # ended by a second Ctrl-C; work since the last safe point is lost


def exit_code(error: BaseException, *, also: Mapping[type[BaseException], Exit] | None = None) -> Exit:
    """The code of an exception; a failed stage has that of its cause.

    also: exceptions of other rooms and their codes; the first that fits wins, before those known here.
    """
    # Here, because pydantic comes with them: a command's help knows the codes and not the exceptions.
    from pipelines.loader.document import ConfigError
    from pipelines.runs.runner import SelectionError, StageFailed
    from pipelines.runs.stopping import LockedError, Stopped
    from pipelines.runs.store import ArtifactError

    if isinstance(error, StageFailed):
        return exit_code(error.cause, also=also)
    known: dict[type[BaseException], Exit] = {
        **(also or {}),
        ConfigError: Exit.CONFIG,
        SelectionError: Exit.CONFIG,
        LockedError: Exit.LOCKED,
        Stopped: Exit.STOPPED,
        KeyboardInterrupt: Exit.INTERRUPTED,
        ArtifactError: Exit.DISK,
        OSError: Exit.DISK,
    }
    return next((code for kind, code in known.items() if isinstance(error, kind)), Exit.FAILED)


def print_error(words: str, code: Exit, console: Console, *, as_json: bool) -> int:
    """Say why a command ends, to a person, and with --json to a machine as well; returns the code."""
    console.print(words, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"exit": int(code), "error": words}))  # noqa: T201 - the machine's answer
    return int(code)


def trace(error: BaseException) -> str:
    """Where an error came from, without its words, which may quote a patient: files, lines and types only."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    parts = [
        f"{''.join(traceback.format_tb(one.__traceback__))}{type(one).__name__}{_errno(one)}" for one in reversed(links)
    ]
    return "\nwhich led to\n".join(["", *parts])


def _errno(error: BaseException) -> str:
    return f": {error.strerror}" if isinstance(error, OSError) else ""
