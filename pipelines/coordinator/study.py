"""A study: one run in several cases and with several seeds, and a page that compares them. See `pipelines.study`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evaluation.study import ALL, POOLED, Spread, StudyPage, build_cells
from pipelines.coordinator.check import check_run
from pipelines.coordinator.failures import code_of, keep_trace
from pipelines.coordinator.run import make_world, run_config, select_stages
from pipelines.coordinator.study_results import PAGE, TABLE, Outcome, build_page, write_study_page
from pipelines.coordinator.study_settings import Planned, Study, load_study
from pipelines.coordinator.summary import publish_page
from pipelines.loader.document import ConfigError, render
from pipelines.runs.exits import Exit, print_error
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Results, SelectionError, StageFailed, plan_steps
from pipelines.runs.stopping import LockedError, RunLock, Stop, Stopped, safe_stop
from pipelines.runs.store import DiskFolder
from privacy.message import Json

REPORT = "report"


def study_command(options: argparse.Namespace, console: Console) -> int:
    """Run a study with these options; return the exit code: that of the first run that failed, or 0."""
    try:
        return _run_study(options, console)
    except (Exception, KeyboardInterrupt) as error:
        text = render(error, options.study) if isinstance(error, ConfigError) else str(error) or type(error).__name__
        return print_error(text, code_of(error), console, as_json=options.json)


def _run_study(options: argparse.Namespace, console: Console) -> int:
    """Check or run the selected cases and write the study's page; return the exit code."""
    study, planned, document = load_study(options.study)
    chosen = _select_cases(study, planned, options.only)
    if options.check:
        return _check_cases(chosen, console, as_json=options.json)
    root = Path(planned[0].config.runs) / study.name
    with RunLock(root), safe_stop() as stop:
        keep_settings(planned, root)
        outcomes = {run.config.name: read_outcome(run) for run in planned}
        finished_names = [name for name, outcome in outcomes.items() if outcome.report is not None]
        todo = [] if options.table else [run for run in chosen if run.config.name not in finished_names]
        ran, codes, stopped = _run_all(study, todo, outcomes, root, stop, console)
        page = build_page(
            study,
            planned,
            outcomes,
            root,
            document.data,
            command=_command_of_study(options, all_cases=True),
            now=_iso_time(),
        )
        write_study_page(page, root)
    if stopped is not None:
        raise Stopped(stopped.reason, _command_of_study(options))
    code = next(iter(codes.values()), Exit.OK)
    if options.json:
        print(json.dumps(_build_answer(page, root, code, ran, finished_names)))  # noqa: T201 - the machine's answer
    else:
        _show_scores(page, root, Console(width=None if sys.stdout.isatty() else 160, emoji=False))
    return int(code)


def _select_cases(study: Study, planned: Sequence[Planned], only: Sequence[str] | None) -> list[Planned]:
    """The runs of the selected cases; all if none is selected.

    Raises:
        SelectionError: with every case that does not exist.
    """
    if unknown := [case for case in only or () if case not in study.cases]:
        raise SelectionError(f"--only {', '.join(unknown)}: no such case; the cases are {', '.join(study.cases)}")
    return [run for run in planned if not only or run.case in only]


def _check_cases(chosen: Sequence[Planned], console: Console, *, as_json: bool) -> int:
    """Check each case's files and methods, with its first seed; return the first exit code that is not 0."""
    codes: dict[str, Exit] = {}
    firsts = {run.case: run for run in reversed(chosen)}
    with safe_stop() as stop:
        for case, run in reversed(firsts.items()):
            console.print(f"case {case}", markup=False, highlight=False)
            with RunLock(run.root):
                try:
                    quiet = Console(quiet=as_json, stderr=True, emoji=False)
                    check_run(make_world(run.config, run.root, stop), quiet, as_json=False)
                except Exception as error:
                    stop.check()
                    codes[case] = code_of(error)
                    console.print(f"{case}: {error}", markup=False, highlight=False, soft_wrap=True)
    code = next(iter(codes.values()), Exit.OK)
    if as_json:
        cases = {case: int(codes.get(case, Exit.OK)) for case in dict.fromkeys(run.case for run in chosen)}
        print(json.dumps({"exit": int(code), "cases": cases}))  # noqa: T201 - the machine's answer
    return int(code)


def keep_settings(planned: Sequence[Planned], root: Path) -> None:
    """Write the settings of every run, so that `pipelines.run` can run, explain and repeat each."""
    for run in planned:
        text = json.dumps(run.data, indent=1, ensure_ascii=False)  # as YAML: text in quotes stays text
        DiskFolder(root).write(f"{run.case}_s{run.seed}.yaml", f"{text}\n".encode())


def read_outcome(run: Planned) -> Outcome:
    """The state of a run, after copying its page to the top of its folder."""
    if not (run.root / REPORT).is_dir():
        return Outcome("not run")
    try:
        with RunLock(run.root):
            steps = plan_steps(select_stages(run.config), make_world(run.config, run.root, Stop()), run.root)
            open_ = [step.stage.name for step in steps if step.state != "keep"]
            if open_:
                return Outcome(f"not finished: {', '.join(open_)}")
            report = steps[-1].folder(run.root)
            publish_page(Results({REPORT: report}, (), (), {}), run.root)
            return Outcome("done", report)
    except LockedError:
        return Outcome("another process works on it")


def _run_all(
    study: Study, todo: Sequence[Planned], outcomes: dict[str, Outcome], root: Path, stop: Stop, console: Console
) -> tuple[list[str], dict[str, Exit], Stopped | None]:
    """Execute the runs; return the names of those that succeeded, the exit codes of others, and a stop if there was."""
    ran: list[str] = []
    codes: dict[str, Exit] = {}
    with show_progress(study.name, console=console) as step:
        for index, run in enumerate(todo):
            name = run.config.name
            step(index, len(todo), name)
            try:
                results = run_config(run.config, stop, console, command=_command_of_run(run, root))
                outcomes[name] = Outcome("done", results.artifacts[REPORT])
                ran.append(name)
            except Stopped as error:
                return ran, codes, error
            except Exception as error:
                codes[name] = code_of(error)
                outcomes[name] = Outcome(_describe_failure(error, codes[name]))
                text = f"{name} failed, the others go on (trace: {keep_trace(run.config, error)})\n{error}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
        step(len(todo), len(todo), "")
    return ran, codes, None


def _describe_failure(error: Exception, code: Exit) -> str:
    """Why a run ended, in which stage and with which code."""
    where = f" in stage {error.stage}" if isinstance(error, StageFailed) else ""
    cause = error.cause if isinstance(error, StageFailed) else error
    return f"failed{where}: {type(cause).__name__} (code {int(code)}); what happened stands in the run's trace.txt"


def _command_of_run(run: Planned, root: Path) -> str:
    """The command that continues one run alone."""
    return f"python -m pipelines.run {shlex.quote(str(root / f'{run.case}_s{run.seed}.yaml'))}"


def _command_of_study(options: argparse.Namespace, *, all_cases: bool = False) -> str:
    """The command that continues the study."""
    only = [] if all_cases else [f"--only {shlex.quote(case)}" for case in options.only or ()]
    return " ".join([f"python -m pipelines.study {shlex.quote(options.study)}", *only])


def _build_answer(
    page: StudyPage, root: Path, code: Exit, ran: Sequence[str], finished_names: Sequence[str]
) -> Mapping[str, Json]:
    """The answer of `--json`: every run with its state, and the files."""
    runs: list[Json] = [
        {"run": run.run, "case": case.name, "seed": run.seed, "state": run.state}
        for case in page.cases
        for run in case.runs
    ]
    files = {"page": str(root / PAGE), "table": str(root / TABLE)}
    return {"exit": int(code), "ran": list(ran), "kept": list(finished_names), "runs": runs, **files}


def _show_scores(page: StudyPage, root: Path, console: Console) -> None:
    """Print overall scores, a row per method and a column per case, and the paths of the pages."""
    cells_by_place = build_cells(page.rows)
    for measure in page.measures:
        for column, what in ((POOLED, "overall"), (ALL, "mean over every hospital")):
            title = f"{measure}, {what} (mean ± standard deviation over seeds)"
            table = Table("method", title=title, title_justify="left")
            for case in page.cases:
                table.add_column(case.name, justify="right", no_wrap=True)
            for method in dict.fromkeys(row.method for row in page.rows):
                values = [cells_by_place.get((case.name, method, measure, column)) for case in page.cases]
                table.add_row(method, *("–" if v is None or not v.value.n else _spread_text(v.value) for v in values))
            console.print(table)
    for run in (run for case in page.cases for run in case.runs if not run.page):
        console.print(f"! {run.run}: {run.state}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"page: {root / PAGE}\ntable: {root / TABLE}", highlight=False, soft_wrap=True)


def _spread_text(value: Spread) -> str:
    """A mean with its standard deviation, as text."""
    return f"{value.mean:.3f}" + (f" ± {value.std:.3f}" if value.n > 1 else "")


def _iso_time() -> str:
    """The present time, ISO."""
    return datetime.now(UTC).isoformat(timespec="seconds")
