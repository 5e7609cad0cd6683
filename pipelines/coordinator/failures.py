"""Why a run failed: its words, its exit code, and its trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from federation.rounds import QuorumLost
from pipelines.coordinator.arguments import command_of
from pipelines.coordinator.paid_before import PaidBefore
from pipelines.coordinator.stages.ingest import UnusableCohort
from pipelines.coordinator.world import DATA_CODES, SitesMissing
from pipelines.loader.document import ConfigError, Document, FilesMissing, render
from pipelines.loader.set_values import naming_values
from pipelines.runs.exits import Exit, exit_code, format_trace, print_error
from pipelines.runs.runner import SelectionError, StageFailed
from pipelines.runs.store import ArtifactError
from pipelines.settings.config import Config
from privacy.settings_error import words_of

REMEDIES: Mapping[Exit, str] = {
    Exit.DISK: "what was finished is kept; free space on the disk, or make it writable",
    Exit.MEMORY: "what was finished is kept; free memory",
}
CODES: Mapping[type[BaseException], Exit] = {
    UnusableCohort: Exit.DATA,
    SelectionError: Exit.CONFIG,
    FilesMissing: Exit.DATA,
    PaidBefore: Exit.CONFIG,
}


def report_failure(
    error: BaseException,
    document: Document | None,
    options: argparse.Namespace,
    console: Console,
    root: Path | None = None,
    resumes: Callable[[Exit], bool] = lambda code: False,
) -> int:
    """Print why a run failed, and return the exit code. root: the run's folder, for the trace of unexpected errors.
    resumes: whether somebody else goes on with a run that ended with this code, so that nobody is told to.
    """
    code = code_of(error)
    if isinstance(error, ConfigError):
        words = render(
            error if document is None else naming_values(error, options.values, document.lines), options.config
        )
    else:
        words = words_of(error) or type(error).__name__
    command = getattr(error, "command", None)
    if resumes(code) and isinstance(error, StageFailed):
        first_words, _, _ = words.partition("; to go on:")
        words = f"{first_words}; the run goes on by itself"
    elif code in REMEDIES and command is None and not isinstance(error, ArtifactError):  # which has its own remedy
        words = f"{words}\n{REMEDIES[code]}; to go on:\n{command_of(options)}"
    if code is Exit.FAILED and root is not None:
        words = f"trace: {write_trace(root, error)}\n{words}"
    return print_error(words, code, console, as_json=options.json, error=error)


def code_of(error: BaseException) -> Exit:
    """The exit code of an error; for sites that did not answer it follows from their error codes."""
    cause = error.cause if isinstance(error, StageFailed) else error
    if isinstance(cause, SitesMissing | QuorumLost):
        codes = set(cause.missing.values())
        for enough, code in ((DATA_CODES, Exit.DATA), ({"disk"}, Exit.DISK), ({"disk", "memory"}, Exit.MEMORY)):
            if codes <= enough:
                return code
        return Exit.SITE
    return exit_code(error, also=CODES)


def keep_trace(config: Config, error: BaseException) -> Path:
    """Write the error's trace into the run's folder, and return the path."""
    return write_trace(Path(config.runs) / config.name, error)


def write_trace(root: Path, error: BaseException) -> Path:
    """Write the error's trace to trace.txt in a folder, and return the path."""
    path = root / "trace.txt"
    with suppress(OSError, ValueError):  # an error here would hide the real one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(format_trace(error))
    return path
