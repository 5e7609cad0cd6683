"""python -m pipelines.overview [RUNS]: all runs of a folder on one page, with scores, costs and settings that differ.

    python -m pipelines.overview             ./runs, as a table here and as runs/index.html
    python -m pipelines.overview RUNS --json the same as JSON
    python -m pipelines.overview --watch 10  every 10 seconds again, until no run is at work; an open page follows

Nothing but the page is written. A run at work is listed as far as it is, with its losses by round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from evaluation.run_list import HospitalModel, RunLine, State, Training, flatten_settings, render_run_list
from evaluation.wording import format_duration, format_number, format_size
from pipelines.loader.command_line import add_json_argument, command_parser
from pipelines.runs.exits import Exit, end_process
from pipelines.runs.holdings import OVERVIEW, PAGE, PLACES, list_runs, measure_size
from pipelines.runs.listing import list_paths
from pipelines.runs.stopping import HOLDER
from pipelines.runs.store import ArtifactError, read_manifest
from privacy.durable import write_whole
from privacy.message import as_mapping, glance_at_facts, whole_of

PROG = "python -m pipelines.overview"
PROGRESS = "progress.html"
REPORT, STATE = "report", "state"
SILENT_S = 3600.0
"""A run of another machine that has changed nothing for so long is taken for stopped."""


class Stored(NamedTuple):
    """A stored artifact. stage: its stage. finished: seconds since 1970. seconds: that making it took."""

    path: Path
    stage: str
    finished: float
    seconds: float


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
    while True:
        runs = summarize_runs(folder)
        follows = options.watch if any(run.state == "at work" for run in runs) else None
        date = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(folder / OVERVIEW, render_run_list(runs, folder.resolve().name, date, follows).encode())
        if follows is None:
            break
        time.sleep(follows)
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


def summarize_runs(folder: Path) -> list[RunLine]:
    """All runs of a folder: those at work, then the newest report first, then those without one by name."""
    lines = [summarize_run(run) for run in list_runs(folder)]
    return sorted(lines, key=lambda line: (line.state != "at work", -(line.finished or 0.0), line.name))


def summarize_run(run: Path) -> RunLine:
    """One run. What of it cannot be read is said in `trouble`, so that the others are still listed."""
    try:
        return _summarize(run)
    except (OSError, RecursionError) as error:  # a folder that cannot be listed, JSON that was built to harm
        trouble = (
            f"it cannot be read ({type(error).__name__}{f': {error.strerror}' if isinstance(error, OSError) else ''})"
        )
        return RunLine(name=run.name, state="unknown", finished=None, seconds=0.0, size=0, trouble=trouble)


def _summarize(run: Path) -> RunLine:
    """One run. Raises: OSError, RecursionError: it cannot be read."""
    (stored, troubles), (_, size, changed) = _list_artifacts(run), measure_size(run)
    report = max((artifact for artifact in stored if artifact.stage == REPORT), key=lambda a: a.finished, default=None)
    newest = max(stored, key=lambda artifact: artifact.finished, default=None)
    ended: State = "done" if report is not None and report == newest else "stopped"
    state: State = "at work" if _is_at_work(run, changed) else ended
    shown: dict[str, Any] = {}
    if report is not None:
        try:
            shown = _read_report(report.path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            troubles.append(f"its report cannot be read ({type(error).__name__}); run it again with --from report")
    return RunLine(
        name=run.name,
        state=state,
        after="" if newest is None else newest.stage,
        finished=None if report is None else report.finished,
        seconds=math.fsum(artifact.seconds for artifact in stored),
        size=size,
        page=_find_page(run, state),
        trainings=() if state == "done" else tuple(_list_trainings(run)),
        trouble="; ".join(troubles),
        **shown,
    )


def _find_page(run: Path, state: State) -> str:
    """The address of a run's page: while it works that of its progress; empty if it has none."""
    names = (PROGRESS, PAGE) if state == "at work" else (PAGE, PROGRESS)
    return next((f"{run.name}/{name}" for name in names if (run / name).is_file()), "")


def _list_artifacts(run: Path) -> tuple[list[Stored], list[str]]:
    """The stored artifacts of a run, and what cannot be read, one of a kind."""
    stored, troubles = list[Stored](), list[str]()
    for pattern in PLACES["artifacts"].patterns:
        for path in list_paths(run, pattern):
            try:
                manifest = read_manifest(path)
                times = float(manifest["finished"]), float(manifest["seconds"])
            except (ArtifactError, KeyError, TypeError, ValueError) as error:
                troubles.append(f"{path.parent.name}: {error}")
                continue
            stored.append(Stored(path, str(manifest["stage"]), *times))
    return stored, [*dict.fromkeys(troubles)]


def _list_trainings(run: Path) -> Iterable[Training]:
    """How far each training is, by the coordinator's files; one that cannot be read now is left out."""
    for path in list_paths(run, f"federation/*/{STATE}"):
        try:
            facts = glance_at_facts(path)
            totals = as_mapping(facts["totals"])
            losses = {int(number): loss for number, loss in totals.items() if isinstance(loss, int | float)}
            name = path.parent.name.rpartition("-")[0]
            newest = max(losses, default=whole_of(facts, "round"))  # the last message of all counts as a round, too
            yield Training(name, newest, tuple((n, float(losses[n])) for n in sorted(losses)))
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _is_at_work(run: Path, changed: float) -> bool:
    """Whether a process of this machine has the run's lock, or one of another machine, where the run has changed within
    `SILENT_S`: whether that process lives is not seen from here. changed: seconds since 1970. The lock itself is not
    tried: a run that begins at this moment would find it taken.
    """
    try:
        holder = json.loads((run / HOLDER).read_text(encoding="utf-8"))
        pid, host = int(holder["pid"]), str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if host != platform.node():
        return time.time() - changed < SILENT_S
    if not 1 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_report(path: Path) -> dict[str, Any]:
    """What a report says, as fields of `RunLine`.

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read.
    """
    answers = json.loads((path / "answers.json").read_bytes())
    page = json.loads((path / "report.json").read_bytes())
    return {
        "models": tuple(_read_models(answers["use"])),
        "epsilons": tuple(dict.fromkeys(str(departure["epsilon"]) for departure in answers["left"])),
        "settings": flatten_settings(json.loads(page["settings"])),
    }


def _read_models(choices: Iterable[Mapping[str, Any]]) -> Iterable[HospitalModel]:
    """The model of each hospital."""
    for choice in choices:
        score = choice["score"]
        if score is None:
            yield HospitalModel(str(choice["site"]), str(choice["method"]))
            continue
        value = math.nan if score["value"] is None else float(score["value"])
        places = str(score["measure"]), value, bool(score["assessable"])
        yield HospitalModel(str(choice["site"]), str(choice["method"]), *places)


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
