"""The loop of every command that processes a hospital's folder.

A command first checks its options and lists the studies of the folder; it reports all errors before any work. Then it
processes one study (or file) after another; each is done or refused with a reason. At the end it writes its tables,
prints a summary as text or JSON, and returns an exit code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console

from pipelines.data.accounts import Account, account_facts, describe_outcomes
from pipelines.data.study import Rejected
from pipelines.runs.exits import Exit, exit_code, format_trace
from pipelines.runs.progress import show_progress
from privacy.message import Json
from privacy.system_errors import of_path

NOTICE = "For research use only: not a medical device, not for diagnosis."
D = TypeVar("D")


@dataclass(frozen=True)
class Results(Generic[D]):
    """Results of the folder so far."""

    done: list[D]
    refused: list[Rejected]

    @property
    def code(self) -> Exit:
        """DATA if there were studies and none could be used."""
        return Exit.OK if self.done or not self.refused else Exit.DATA


def run_batch(work: Callable[[Console], int], *, also: Mapping[type[BaseException], Exit] | None = None) -> int:
    """Run a command; return the exit code (docs/reference/exit-codes.md). Only the owner can read new files. also: as
    in `exit_code`.

    A `ValueError` is an error in the command line, also one raised from the system's error about a path. Other errors
    with an exit code are printed in a line. Of an unforeseen error the place in the code is printed, not its message,
    which may quote a patient.
    """
    os.umask(0o077)
    console = Console(stderr=True, emoji=False)
    try:
        return work(console)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error, also=also)
        if (code is Exit.FAILED and isinstance(error, ValueError)) or (type(error) is ValueError and of_path(error)):
            code = Exit.CONFIG
        if code is Exit.FAILED:
            print_text(
                console, f"an error that was not foreseen; please report it with these lines:{format_trace(error)}"
            )
        else:
            print_text(console, str(error) or type(error).__name__)
        return int(code)


def collect_results(
    title: str,
    results: Iterable[D | Rejected],
    total: int,
    into: Results[D],
    console: Console,
    *,
    check: Callable[[], None] | None = None,
) -> None:
    """Collect results with a progress bar.

    total: number of results. into: gets the results. check: called after each result; may raise `Stopped`.

    Raises:
        RuntimeError: the work on a study failed; the command line is not the cause.
    """
    with show_progress(title, console=console) as step:
        step(0, total)
        try:
            for number, result in enumerate(results, start=1):
                if isinstance(result, Rejected):
                    into.refused.append(result)
                else:
                    into.done.append(result)
                step(number, total)
                if check is not None:
                    check()
        except ValueError as error:
            raise RuntimeError(f"{title}: {error}") from error


def finish_batch(
    console: Console,
    code: Exit,
    *,
    as_json: bool,
    facts: Mapping[str, Json],
    words: str,
    accounts: Sequence[Account],
    of: str = "files",
) -> int:
    """Print the summary, and return the exit code. of: the things that the accounts count."""
    if as_json:
        print(json.dumps({**facts, **account_facts(accounts), "exit": int(code)}))  # noqa: T201 - the machine's answer
    else:
        print_text(console, f"{words}\n{describe_outcomes(accounts, of)}")
    return int(code)


def print_text(console: Console, text: str) -> None:
    """Print a text as it is, without markup or wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def find_place_problems(folder: str, out: str, name: str, protected_files: Mapping[str, str | None]) -> list[str]:
    """Problems of the paths in a command line.

    name: of the output argument. inside: argument -> file that must stay in the hospital.
    """
    source, target = Path(folder).resolve(), Path(out).resolve()
    problems = []
    if target.is_relative_to(source) or source.is_relative_to(target):
        problems.append(f"{name} must not lie in FOLDER, nor FOLDER in {name}; give another {name}")
    if target.exists() and not target.is_dir():
        problems.append(f"{name} is a file; give a folder")
    for argument, place in protected_files.items():
        if place and Path(place).resolve().is_relative_to(target):
            problems.append(f"{argument} must not lie in {name}: it stays in the hospital; give another place")
    return problems
