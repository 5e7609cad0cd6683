"""Results of a study's runs: their scores.json files as one table, and the page made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from evaluation.overlap import DICE
from evaluation.records import Command
from evaluation.study import (
    StudyCase,
    StudyPage,
    StudyRow,
    StudyRun,
    compute_gap_shares,
    summary_csv,
    table_csv,
    table_json,
)
from evaluation.study_page import render_study_page
from pipelines.coordinator.artifacts import PAGE as RUN_PAGE
from pipelines.coordinator.artifacts import read_page, read_scores
from pipelines.coordinator.report.asking import list_oracle_comparisons
from pipelines.coordinator.study_settings import LATER_PATIENTS, Planned, Study
from pipelines.runs.store import DiskFolder
from privacy.message import Json

PAGE, TABLE, TABLE_JSON, SUMMARY = "study.html", "table.csv", "table.json", "summary.csv"
SEVERAL = "the best line at home of each seed"
"""The reference of a case whose seeds chose several."""
SITE_KEYS = ("source", "labels", "gland", "exclude", "test", "home")
"""A site's settings that may name files or patients."""
OPEN = ("kind", "scanner", "format")
COPIED = (
    *("method", "measure", "protocol", "sites", "assessable", "patients", "positive_patients"),
    *("value", "low", "high", "gain", "gain_low", "gain_high"),
)


class Outcome(NamedTuple):
    """The state of a run. report: the artifact of its report stage; None if it is not finished."""

    state: str
    report: Path | None = None


def read_rows(run: Planned, report: Path) -> Iterator[StudyRow]:
    """The scores of a run, from its report stage."""
    for row in read_scores(report):
        yield StudyRow(case=run.case, seed=run.seed, **{name: getattr(row, name) for name in COPIED})


def build_page(
    study: Study,
    planned: Sequence[Planned],
    outcomes: Mapping[str, Outcome],
    root: Path,
    settings: Json,
    *,
    command: str,
    now: str,
) -> StudyPage:
    """The study's page so far. outcomes: by the run's name. root: the study's folder. settings: its YAML as JSON."""
    rows: list[StudyRow] = []
    for run in planned:
        report = outcomes[run.config.name].report
        rows += read_rows(run, report) if report is not None else ()
    return StudyPage(
        title=study.title or study.name,
        name=study.name,
        date=now,
        base=study.base,
        what=study.what,
        varies=_describe_variation(study),
        cases=tuple(_build_case(study, case, planned, outcomes, root) for case in study.cases),
        rows=tuple(rows),
        commands=_list_commands(study, planned, root, command),
        settings=json.dumps(_remove_names(settings), indent=1, ensure_ascii=False),
        measures=_select_measures(study.measures, rows),
        masks=any(row.measure == DICE.name for row in rows),
    )


def _select_measures(measures: Sequence[str], rows: Sequence[StudyRow]) -> tuple[str, ...]:
    """The measures of the page: the wanted ones that the runs have; if they have none of these, all they have."""
    measured = tuple(dict.fromkeys(row.measure for row in rows))
    return tuple(name for name in measures if name in measured) or measured or tuple(measures)


def write_study_page(page: StudyPage, root: Path) -> None:
    """Write the page and the table into the study's folder."""
    folder = DiskFolder(root)
    folder.write(PAGE, render_study_page(page).encode())
    folder.write(TABLE, table_csv(page.rows).encode())
    folder.write(TABLE_JSON, table_json(page.rows).encode())
    folder.write(SUMMARY, summary_csv(page.rows, compute_gap_shares(page)).encode())


def _build_case(
    study: Study, case: str, planned: Sequence[Planned], outcomes: Mapping[str, Outcome], root: Path
) -> StudyCase:
    """A case with its runs, for the page."""
    case_runs = [run for run in planned if run.case == case]
    config = case_runs[0].config
    return StudyCase(
        name=case,
        what=study.cases[case].what.rstrip("."),
        share=config.split.train,
        sites=tuple(config.sites),
        methods=(*config.train.methods, *config.evaluate.variants),
        reference=config.evaluate.reference or _name_reference([outcomes[run.config.name] for run in case_runs]),
        runs=tuple(_build_run(run, outcomes[run.config.name]) for run in case_runs),
        compared=list_oracle_comparisons(config),
    )


def _name_reference(outcomes: Sequence[Outcome]) -> str:
    """Over which line runs chose to compute gains; in words where it is not the same in all."""
    chosen = {read_page(outcome.report).reference for outcome in outcomes if outcome.report is not None}
    return SEVERAL if len(chosen) > 1 else next(iter(chosen), "")


def _build_run(run: Planned, outcome: Outcome) -> StudyRun:
    """A run with its state and warnings, for the page."""
    name = run.config.name
    if outcome.report is None:
        return StudyRun(name, run.seed, outcome.state)
    harmony, page = read_page(outcome.report).harmony, f"../{name}/{RUN_PAGE}"
    if harmony is None:
        return StudyRun(name, run.seed, outcome.state, page)
    unused = tuple(f"{row.space} at {row.site} ({', '.join(row.vetoed)})" for row in harmony.rows if row.vetoed)
    return StudyRun(name, run.seed, outcome.state, page, harmony.target, unused)


def _describe_variation(study: Study) -> str:
    """What differs between the runs of a case."""
    sentence = "A seed sets the first models, which patients are in which split, and the order of the images"
    if study.resample_patients:
        return (
            f"{sentence}; simulated hospitals also have other patients with every seed (their own seed +"
            f" {LATER_PATIENTS} × it)."
        )
    return f"{sentence}; the patients are the same with every seed."


def _list_commands(study: Study, planned: Sequence[Planned], root: Path, command: str) -> tuple[Command, ...]:
    """Commands that a reader of the study's page may need next."""
    first = planned[0]
    return (
        Command("Run what is missing; what is done is kept", command),
        Command("One case alone", f"{command} --only {first.case}"),
        Command("This page again, of what is there", f"{command} --table"),
        Command(
            "One run alone, to explain it or to make it again (--explain, --fresh)",
            f"python -m pipelines.run {root / f'{first.case}_s{first.seed}.yaml'}",
        ),
    )


def _remove_names(settings: Json) -> Json:
    """A study's settings without file names and named patients."""
    if not isinstance(settings, dict):
        return settings
    sites = settings.get("sites")
    values = {key: _remove_names(value) for key, value in settings.items()}
    return (
        values | {"sites": {site: _told_of(site_settings) for site, site_settings in sites.items()}}
        if isinstance(sites, dict)
        else values
    )


def _told_of(site: Json) -> Json:
    """A study's changes of a site, without file names and names of patients."""
    if not isinstance(site, dict):
        return site
    return {name: _count_names(value) if name in SITE_KEYS else value for name, value in site.items()}


def _count_names(value: Json, key: str = "") -> Json:
    """The settings with the number of named patients in place of the names."""
    if isinstance(value, dict):
        return {name: _count_names(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return f"{len(value)} values"
    return "(not shown)" if isinstance(value, str) and key not in OPEN else value
