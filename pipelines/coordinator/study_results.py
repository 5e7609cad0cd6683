"""Results of a study's runs: their scores.json files as one table, and the page made from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.overlap import DICE
from evaluation.records import Command
from evaluation.study import StudyCase, StudyPage, StudyRun, shares_of, study_page
from evaluation.study_numbers import StudyRow, summary_csv, table_csv, table_json
from pipelines.coordinator.artifacts import PAGE as RUN_PAGE
from pipelines.coordinator.report.gap import compared
from pipelines.coordinator.study_settings import OTHERS, Planned, Study
from pipelines.runs.store import DiskFolder
from privacy.message import Json

PAGE, TABLE, TABLE_JSON, SUMMARY = "study.html", "table.csv", "table.json", "summary.csv"
NUMBERS = ("value", "low", "high", "gain", "gain_low", "gain_high")
OWN = ("source", "labels", "gland", "exclude", "test", "home")
"""A site's settings that may name files or patients."""
OPEN = ("kind", "scanner", "format")
COPIED = ("method", "measure", "protocol", "assessable", "patients", "positive_patients")


class Outcome(NamedTuple):
    """The state of a run. report: the artifact of its report stage; None if it is not finished."""

    state: str
    report: Path | None = None


def rows_of(one: Planned, report: Path) -> Iterator[StudyRow]:
    """The scores of a run, from its report stage."""
    for row in json.loads((report / "scores.json").read_text()):
        told: dict[str, Any] = {name: row[name] for name in COPIED}
        told |= {name: math.nan if row[name] is None else float(row[name]) for name in NUMBERS}
        yield StudyRow(case=one.case, seed=one.seed, sites=tuple(row["sites"]), **told)


def page_of(
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
    for one in planned:
        report = outcomes[one.config.name].report
        rows += rows_of(one, report) if report is not None else ()
    return StudyPage(
        title=study.title or study.name,
        name=study.name,
        date=now,
        base=study.base,
        what=study.what,
        varies=_varies(study),
        cases=tuple(_case(study, case, planned, outcomes, root) for case in study.cases),
        rows=tuple(rows),
        commands=_commands(study, planned, root, command),
        settings=json.dumps(_nameless(settings), indent=1, ensure_ascii=False),
        measures=_shown(study.measures, rows),
        masks=any(row.measure == DICE.name for row in rows),
    )


def _shown(wanted: Sequence[str], rows: Sequence[StudyRow]) -> tuple[str, ...]:
    """The measures of the page: the wanted ones that the runs have; if they have none of these, all they have."""
    there = tuple(dict.fromkeys(row.measure for row in rows))
    return tuple(name for name in wanted if name in there) or there or tuple(wanted)


def write(page: StudyPage, root: Path) -> None:
    """Write the page and the table into the study's folder."""
    folder = DiskFolder(root)
    folder.write(PAGE, study_page(page).encode())
    folder.write(TABLE, table_csv(page.rows).encode())
    folder.write(TABLE_JSON, table_json(page.rows).encode())
    folder.write(SUMMARY, summary_csv(page.rows, shares_of(page)).encode())


def _case(
    study: Study, case: str, planned: Sequence[Planned], outcomes: Mapping[str, Outcome], root: Path
) -> StudyCase:
    own = [one for one in planned if one.case == case]
    config = own[0].config
    return StudyCase(
        name=case,
        what=study.cases[case].what.rstrip("."),
        share=config.split.train,
        sites=tuple(config.sites),
        methods=(*config.train.methods, *config.evaluate.variants),
        reference=config.evaluate.reference or "",
        runs=tuple(_run(one, outcomes[one.config.name]) for one in own),
        compared=compared(config),
    )


def _run(one: Planned, outcome: Outcome) -> StudyRun:
    name = one.config.name
    if outcome.report is None:
        return StudyRun(name, one.seed, outcome.state)
    harmony = json.loads((outcome.report / "report.json").read_text()).get("harmony") or {}
    unused = tuple(
        f"{row['space']} at {row['site']} ({', '.join(row['vetoed'])})"
        for row in harmony.get("rows", ())
        if row["vetoed"]
    )
    return StudyRun(name, one.seed, outcome.state, f"../{name}/{RUN_PAGE}", harmony.get("target", ""), unused)


def _varies(study: Study) -> str:
    told = "A seed sets the first models, which patients are in which split, and the order of the images"
    if study.resample_patients:
        return f"{told}; simulated hospitals also have other patients with every seed (their own seed + {OTHERS} × it)."
    return f"{told}; the patients are the same with every seed."


def _commands(study: Study, planned: Sequence[Planned], root: Path, command: str) -> tuple[Command, ...]:
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


def _nameless(settings: Json) -> Json:
    """A study's settings without file names and named patients."""
    if not isinstance(settings, dict):
        return settings
    sites = settings.get("sites")
    told = {key: _nameless(value) for key, value in settings.items()}
    return told | {"sites": {site: _told_of(own) for site, own in sites.items()}} if isinstance(sites, dict) else told


def _told_of(site: Json) -> Json:
    """A study's changes of a site, without file names and names of patients."""
    if not isinstance(site, dict):
        return site
    return {name: _numbers(value) if name in OWN else value for name, value in site.items()}


def _numbers(value: Json, key: str = "") -> Json:
    if isinstance(value, dict):
        return {name: _numbers(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return f"{len(value)} values"
    return "(not shown)" if isinstance(value, str) and key not in OPEN else value
