"""python -m pipelines.overview [RUNS]: all runs of a folder on one page, with scores, costs and settings that differ.

    python -m pipelines.overview             ./runs, as a table here and as runs/index.html, all read anew
    python -m pipelines.overview RUNS --json the same as JSON
    python -m pipelines.overview --watch 10  every 10 seconds again, until no run is at work; an open page follows

A run writes that page itself when it begins and when it ends; this command is for runs of older programs, for runs that
were killed, and for machines. A run at work is listed as far as it is, with its losses by round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evaluation.run_list import RunLine
from evaluation.wording import format_duration, format_number, format_size
from pipelines.loader.command_line import add_json_argument, command_parser
from pipelines.runs.exits import Exit, end_process
from pipelines.runs.holdings import OVERVIEW
from pipelines.runs.run_index import ForeignPage, write_index

PROG = "python -m pipelines.overview"


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """List the runs, write the page, and return the exit code (see docs/reference/exit-codes.md)."""
    line = parser(prog)
    options = line.parse_args(arguments)
    folder, console = (
        Path(options.runs),
        Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False),
    )
    if not folder.is_dir():
        line.error(f"{folder} is no folder; give the folder of runs (default: ./runs)")
    if options.watch is not None and options.watch < 1:
        line.error(f"--watch: {options.watch} s, allowed is 1 or more")
    os.umask(0o077)
    try:
        runs = write_index(folder, reload_s=options.watch)
        while options.watch is not None and any(run.state == "at work" for run in runs):
            time.sleep(options.watch)
            runs = write_index(folder, reload_s=options.watch)
    except ForeignPage as error:
        line.error(str(error))
    if options.json:
        console.print_json(json.dumps([_to_json(run) for run in runs]))
    else:
        console.print(_build_table(runs))
        console.print(f"as a page: {folder / OVERVIEW}")
    return int(Exit.OK)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("runs", nargs="?", default="runs", help="the folder of runs (default: ./runs)")
    made.add_argument("--watch", type=int, metavar="SECONDS", help="write the page again and again while a run works")
    add_json_argument(made)
    return made


def _to_json(line: RunLine) -> dict[str, Any]:
    """A run as JSON, whose numbers are finite or null."""
    facts = {**asdict(line), "mean": line.mean, "measure": line.measure}
    facts["models"] = [{k: _or_null(v) for k, v in model.items()} for model in facts["models"]]
    return {name: _or_null(value) for name, value in facts.items()}


def _or_null(value: Any) -> Any:
    """The value, or None in the place of a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _build_table(lines: Sequence[RunLine]) -> Table:
    """The runs as a table of the terminal."""
    table = Table(title="Runs, the newest first", title_justify="left")
    for name in ("run", "state", "finished", "models in use", "score", "privacy loss ε", "time", "size"):
        table.add_column(name, justify="right" if name in ("score", "time", "size") else "left")
    for line in lines:
        weak = "" if line.is_assessable else "*"
        score = f"{line.measure} {format_number(line.mean)}{weak}" if line.measure else "–"
        state = f"{line.progress} ({line.trouble})" if line.trouble else line.progress
        costs = "; ".join(line.epsilons) or "–"
        time, size = format_duration(line.seconds), format_size(line.size)
        table.add_row(line.name, state, line.when, line.methods or "–", score, costs, time, size)
    return table


if __name__ == "__main__":
    end_process(main)
