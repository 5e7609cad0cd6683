"""python -m pipelines.clean [RUNS]: list what a runs folder holds, and remove what is not needed, by kind and age.

    python -m pipelines.clean                                   sizes and ages of everything below ./runs
    python -m pipelines.clean --older-than 30d                  what would be removed; nothing is changed
    python -m pipelines.clean --older-than 30d --yes            remove it

Never removed: ledgers, keys of pseudonyms, linkage files, logs, and files that no run wrote. The same run command works
afterwards and computes again what was removed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipelines.loader.command_line import add_json_argument, command_parser
from pipelines.runs.exits import Exit, end_process
from pipelines.runs.holdings import (
    KINDS,
    OVERVIEW,
    Item,
    Kind,
    is_file,
    is_folder,
    list_run_items,
    list_runs,
    measure_size,
)
from pipelines.runs.retention import RemovalDecision, Rule, decide_removals
from pipelines.runs.stopping import HOLDER, LOCK, LockedError, RunLock
from pipelines.runs.store import UNFINISHED
from privacy.message import Json

PROG = "python -m pipelines.clean"
AGE = re.compile(r"(\d{1,6})([hdw])")
SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class Outcome:
    """What was removed from a run, or would be. trouble: the error that stopped the removal."""

    run: str
    verdicts: tuple[RemovalDecision, ...] = ()
    trouble: str = ""
    exit: Exit = Exit.OK


def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """List or clean, and return the exit code (see docs/reference/exit-codes.md)."""
    line = parser(prog)
    options = line.parse_args(arguments)
    os.umask(0o077)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, emoji=False)
    if problem := _find_problem(options):
        line.error(problem)
    runs = [run for run in list_runs(Path(options.runs)) if not options.run or run.name in options.run]
    if options.older_than is None:
        _overview(runs, console, as_json=options.json)
        return int(Exit.OK)
    rule = Rule(tuple(options.kind or KINDS), options.older_than, options.needed)
    outcomes = [clean_run(run, rule, time.time(), really=options.yes) for run in runs]
    _print_outcomes(outcomes, console, really=options.yes, as_json=options.json)
    if options.yes:
        _renew_index(Path(options.runs), runs)
    return max((int(outcome.exit) for outcome in outcomes), default=0)


def _renew_index(folder: Path, runs: Sequence[Path]) -> None:
    """Write the page of all runs anew, if there is one: it may link what is gone, and holds sizes."""
    from pipelines.runs.run_index import renew_index  # slow to import

    if is_file(folder / OVERVIEW) and (trouble := renew_index(folder, runs)):
        sys.stderr.write(f"! {trouble}\n")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    made = command_parser(prog, __doc__)
    made.add_argument("runs", nargs="?", default="runs", help="the folder of runs (default: ./runs)")
    made.add_argument(
        "--older-than", type=parse_age, metavar="AGE", help="what has not changed for so long: 12h, 30d, 8w"
    )
    made.add_argument("--kind", type=parse_kinds, metavar="A,B", help=f"only these: {', '.join(KINDS)} (default: all)")
    made.add_argument("--run", action="append", metavar="NAME", help="only this run; may be given several times")
    made.add_argument("--needed", action="store_true", help="also what the finished results of --run NAME rest on")
    made.add_argument("--yes", action="store_true", help="do it; otherwise it is only said what would go")
    add_json_argument(made)
    return made


def parse_age(text: str) -> float:
    """Seconds of an age such as 12h, 30d or 8w. Raises: argparse.ArgumentTypeError."""
    match = AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"an age is a whole number with h, d or w, as in 30d, found {text!r}")
    return float(int(match[1]) * SECONDS[match[2]])


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Kinds from a list with commas. Raises: argparse.ArgumentTypeError."""
    wrong = sorted(set(text.split(",")) - set(KINDS))
    if wrong:
        raise argparse.ArgumentTypeError(f"no such kind: {', '.join(wrong)}; there are {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in text.split(","))


def clean_run(run: Path, rule: Rule, now: float, *, really: bool) -> Outcome:
    """Remove from one run, under its lock, what the rule selects; or only list it.

    now: seconds since 1970. An error in one run is returned, not raised, so that the other runs are still cleaned.
    """
    if really and any((run / name).is_symlink() for name in (LOCK, HOLDER)):
        return Outcome(run.name, (), f"{run / LOCK} is a link; a run makes a file. Look who made it.", Exit.DISK)
    decided: list[RemovalDecision] = []
    try:
        with RunLock(run) if really else nullcontext():
            decided = decide_removals(list_run_items(run), rule, now)
            for decision in decided if really else ():
                if not decision.reason:
                    remove_item(decision.item)
    except LockedError as error:
        return Outcome(run.name, (), str(error), Exit.LOCKED)
    except OSError as error:
        gone = tuple(each for each in decided if each.reason or not any(map(os.path.lexists, each.item.parts)))
        return Outcome(run.name, gone, f"{error}; correct it and clean again", Exit.DISK)
    return Outcome(run.name, tuple(decided))


def remove_item(item: Item) -> None:
    """Remove every part of an item: rename it to a hidden name, then delete it, so that no partial item is read.

    If the process is killed in between, the next run or the next cleaning removes the hidden name.

    Raises:
        OSError: the disk.
    """
    for part in item.parts:
        if is_folder(part) or is_file(part):
            hidden = part if part.name.startswith(UNFINISHED) else part.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
            part.rename(hidden)
            _delete_path(hidden)


def _delete_path(path: Path) -> None:
    """Delete a file, or a folder with all that is in it."""
    if is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink()


def _find_problem(options: argparse.Namespace) -> str:
    """Why the folder of runs cannot be cleaned; empty: it can."""
    folder = Path(options.runs)
    if folder.is_symlink():
        return f"{folder} is a link; links are not followed. Give the folder itself: {folder.resolve()}"
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        return f"{folder} {state}; give the folder that `runs:` of the configuration names"
    if is_file(folder / LOCK):
        return f"{folder} is one run; give the folder around it, as in {folder.parent} --run {folder.resolve().name}"
    known = [run.name for run in list_runs(folder)]
    wrong = sorted(set(options.run or ()) - set(known))
    if wrong:
        return f"--run {', '.join(wrong)}: no such run below {folder}; there are {', '.join(known) or 'none'}"
    if options.yes and options.older_than is None:
        return "--yes needs --older-than; say for how long what goes must not have changed, as in --older-than 30d"
    if options.needed and not options.run:
        return "--needed needs --run NAME; what finished results rest on goes only where the run is named"
    return ""


def _overview(runs: Sequence[Path], console: Console, *, as_json: bool) -> None:
    """Print every run's kinds with numbers, sizes and ages. Files of no kind are never removed."""
    now, items_by_run = time.time(), {run: list_run_items(run) for run in runs}
    if as_json:
        rows: list[Json] = [_run_as_json(run, items, now) for run, items in items_by_run.items()]
        print(json.dumps({"exit": 0, "runs": rows}, indent=1))  # noqa: T201 - the machine's answer
        return
    table = Table("run", "kind", "items", "files", "MB", "newest", "oldest", title="Runs", title_justify="left")
    for run, items in items_by_run.items():
        for row in _rows(items, now):
            table.add_row(run.name, *row)
        table.add_row(run.name, "[dim]never removed[/dim]", "", *_numbers(_rest(run, items)), "", "", end_section=True)
    for column in table.columns[2:]:
        column.justify = "right"
    console.print(table if runs else "no run lies here")


def _rows(items: Sequence[Item], now: float) -> list[list[str]]:
    """Rows of the overview: kind, place, number, size and age of a run's items."""
    rows = []
    for kind in KINDS:
        group = [item for item in items if item.kind == kind]
        for stage in dict.fromkeys(item.where if kind == "artifacts" else "" for item in group):
            chosen = [item for item in group if kind != "artifacts" or item.where == stage]
            ages = [now - item.newest for item in chosen]
            numbers = _numbers((sum(item.files for item in chosen), sum(item.bytes for item in chosen)))
            name = f"{kind}: {stage}" if stage else kind
            rows.append([name, f"{len(chosen):,}", *numbers, _days(min(ages)), _days(max(ages))])
    return rows


def _rest(run: Path, items: Sequence[Item]) -> tuple[int, int]:
    """Number and bytes of files that belong to no item: ledgers, keys, logs, locks, and foreign files."""
    files, size, _ = measure_size(run)
    return files - sum(item.files for item in items), size - sum(item.bytes for item in items)


def _numbers(counts: tuple[int, int]) -> list[str]:
    """A number of files and their megabytes, as text."""
    return [f"{counts[0]:,}", f"{counts[1] / 1e6:,.1f}"]


def _days(seconds: float) -> str:
    """An age as text, in days or hours."""
    return f"{seconds / 86400:.0f} d" if seconds >= 2 * 86400 else f"{max(0.0, seconds) / 3600:.0f} h"


def _run_as_json(run: Path, items: Sequence[Item], now: float) -> Json:
    """A run with its items, as JSON."""
    files, size = _rest(run, items)
    listed: list[Json] = [_as_json(item, now) for item in items]
    return {"run": run.name, "items": listed, "never_removed": {"files": files, "bytes": size}}


def _as_json(item: Item, now: float) -> dict[str, Json]:
    """An item with its age, as JSON."""
    days = round((now - item.newest) / 86400, 3)
    place: dict[str, Json] = {"run": item.run, "kind": item.kind, "where": item.where, "name": item.name}
    return {**place, "files": item.files, "bytes": item.bytes, "days": days, "parts": [str(p) for p in item.parts]}


def _print_outcomes(outcomes: Sequence[Outcome], console: Console, *, really: bool, as_json: bool) -> None:
    """Print what was (or would be) removed, what was kept and why, and every error."""
    now = time.time()
    every = [decision for outcome in outcomes for decision in outcome.verdicts]
    going = [decision.item for decision in every if not decision.reason]
    if as_json:
        code = max((int(outcome.exit) for outcome in outcomes), default=0)
        gone: list[Json] = [_as_json(item, now) for item in going]
        kept_rows: list[Json] = [{**_as_json(v.item, now), "why": v.reason} for v in every if v.reason]
        trouble: list[Json] = [{"run": o.run, "trouble": o.trouble} for o in outcomes if o.trouble]
        answer = {"exit": code, "really": really, "removed": gone, "kept": kept_rows, "trouble": trouble}
        print(json.dumps(answer, indent=1))  # noqa: T201 - the machine's answer
        return
    print_line: Callable[[str], None] = lambda text: console.print(text, markup=False, soft_wrap=True)  # noqa: E731
    for item in going:
        said_size = f"{item.bytes / 1e6:10,.1f} MB {_days(now - item.newest):>6}"
        print_line(f"{'removed' if really else 'would go'} {item.run:<16} {item.kind:<13} {said_size}  {item.label}")
    for why in dict.fromkeys(decision.reason for decision in every if decision.reason):
        items = [decision.item for decision in every if decision.reason == why]
        kinds_of_runs = sorted({f"{item.kind} of {item.run}" for item in items})
        print_line(f"kept: {len(items)} items ({', '.join(kinds_of_runs)}): {why}")
    for outcome in outcomes:
        if outcome.trouble:
            print_line(f"{outcome.run}: {outcome.trouble}")
    total = sum(item.bytes for item in going) / 1e6
    print_line(f"{'removed' if really else 'would remove'} {len(going)} items, {total:,.1f} MB")
    if going and not really:
        print_line("nothing was changed; the same command with --yes removes them")


if __name__ == "__main__":
    end_process(main)
