"""The page of a benchmark, as HTML and as JSON, from the answers of hospitals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from evaluation.agreement import calibration_curves
from evaluation.benchmark import (
    BenchmarkPage,
    Reason,
    SignedModel,
    Visited,
    as_facts,
    draw_forest_plot,
    list_findings,
    rank_standings,
    render_benchmark_page,
)
from evaluation.choice import primary_measure
from evaluation.classes import Classes
from evaluation.drawing import Picture
from evaluation.findings import list_finding_measures
from evaluation.histograms import Counts
from evaluation.metrics import Measure
from evaluation.overlap import list_measures
from evaluation.protocols import Evidence
from evaluation.records import Command
from evaluation.rows import OVERALL, PRIVATE, PRIVATE_MEAN, ScoreRow, scores_csv, to_json
from evaluation.scoring import label_measures, score_rows
from pipelines.benchmark.asking import HospitalAnswers
from pipelines.hospital.segmentation import words_of_kind
from pipelines.loader.validation import to_plain
from pipelines.models.file import Ready
from pipelines.models.signed import Signed
from pipelines.requests.ingest import Counted
from pipelines.settings.benchmark import BenchmarkSettings
from privacy.message import Json, as_mapping

MEANINGS: Mapping[str, str] = {
    "policy_model": "it trusts no key that signed this model",
    "oversized_model": "the model is larger than it accepts",
    "tampered_model": "the file is not what was signed",
    "expired_model": "the signature holds no more, or not yet",
    "malformed_model": "the file is no finished model of this version",
    "policy_inside": "its patients trained this model",
    "policy_request": "its policy does not answer this",
    "policy_privacy": "it promises privacy, and no ε was offered",
    "policy_public": "it does not declare its counts public",
    "budget": "its patients' privacy budget does not allow it",
    "older_ledger": "its ledger was put back from an older copy, and nobody said what was lost",
    "too_few_patients": "it has too few patients",
    "no_test_patients": "it has no patient with a label",
    "no_labels": "it has no labels",
    "no_gland": "it has no gland masks",
    "no_files": "nothing was found of what it should read",
    "no_folder": "its images are not where they should be",
    "bad_source": "its images or labels are not what the model needs",
    "too_many_rejected": "too many of its studies could not be used",
    "unprotected_scores": "it promises privacy, and scores of masks have no noise",
    "another_cohort": "it counted its patients for another reading, and a person must consent",
    "gone": "no connection",
    "unavailable": "it could not start",
    "busy": "it is at work for another run",
}
"""Code -> its meaning in words, for a reader of the page."""
OTHER = "see its log, and the reference of refusals"
SUMMARY_NAMES = {PRIVATE_MEAN: "mean over hospitals", OVERALL: "all as one sample"}


class ReportFiles(NamedTuple):
    """Texts of the coordinator's files: the page, its contents as JSON, and all scores as CSV; lines for a terminal."""

    page: str
    facts: str
    scores: str
    lines: list[str]


def build_report_files(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    answers: Sequence[HospitalAnswers],
    *,
    now: str,
    command: str,
    far: bool,
) -> ReportFiles:
    """The files of a benchmark. command: to run it again. far: whether hospitals are on other machines."""
    page = build_page(settings, models, answers, now=now, command=command, far=far)
    return ReportFiles(
        render_benchmark_page(page), to_json(as_facts(page)), scores_csv(page.scores), list_leading_lines(page)
    )


def build_page(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    answers: Sequence[HospitalAnswers],
    *,
    now: str,
    command: str,
    far: bool,
) -> BenchmarkPage:
    """The contents of the page."""
    first = settings.benchmark.first
    ready = models[first].ready
    tables = _build_tables(models, answers)
    rows = _build_score_rows(tables, first, ready)
    page = BenchmarkPage(
        title=settings.title or settings.name,
        run=settings.name,
        date=now,
        simulation=not far,
        first=first,
        least=settings.benchmark.least,
        models=tuple(_describe_model(label, model) for label, model in models.items()),
        sites=tuple(_describe_visit(models, site_answers) for site_answers in answers),
        scores=rows,
        words=words_of_kind(ready.images.kind),
        settings=json.dumps(remove_file_names(settings), indent=1),
        commands=(
            Command("Ask again, who refused or was not there; who answered repeats its answer", command),
            Command("The page for machines", "benchmark.json and scores.csv, beside it"),
        ),
        classes=ready.names if ready.task.kind == "classification" else (),
        ordered=ready.ordered,
        findings=ready.names if ready.task.kind == "findings" else (),
    )
    return replace(page, pictures=tuple(_draw_pictures(page, tables)))


def remove_file_names(settings: BenchmarkSettings) -> Json:
    """Settings without names of files and patients: of a hospital only its name and the kind of its source."""
    plain_settings = as_mapping(to_plain(settings))
    sites = {
        name: as_mapping(as_mapping(site_settings)["source"]).get("kind")
        for name, site_settings in as_mapping(plain_settings["sites"]).items()
    }
    plan = as_mapping(plain_settings["benchmark"])
    return {**plain_settings, "benchmark": {**plan, "models": [*as_mapping(plan["models"])]}, "sites": dict(sites)}


def _build_tables(
    models: Mapping[str, Signed], answers: Sequence[HospitalAnswers]
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence by model and (site, site); hospitals are in the order of their names, not of their answers."""
    ordered = sorted(answers, key=lambda site_answers: site_answers.site)
    tables = {
        label: {
            (site_answers.site, site_answers.site): site_answers.evidence[label]
            for site_answers in ordered
            if label in site_answers.evidence
        }
        for label in models
    }
    return {label: table for label, table in tables.items() if table}


def _build_score_rows(
    tables: Mapping[str, Mapping[tuple[str, str], Evidence]], first: str, ready: Ready
) -> tuple[ScoreRow, ...]:
    """All rows of scores, with the measures of the task."""
    if not tables:
        return ()
    measures: tuple[Measure, ...]
    if ready.task.kind == "segmentation":
        measures = list_measures([*ready.structures])
    elif ready.task.kind == "findings":
        exact = not any(evidence.noise for table in tables.values() for evidence in table.values())
        measures = list_finding_measures(ready.names, exact=exact)
    else:
        measures = label_measures(tables, Classes(_class_names(ready), ready.ordered))
    return score_rows(tables, reference=first if first in tables else None, measures=measures)


def _class_names(ready: Ready) -> tuple[str, ...]:
    """The names of a classifier's classes."""
    return ready.names or ("negative", "positive")


def _describe_model(label: str, model: Signed) -> SignedModel:
    """A model's facts for the page, from its signature."""
    statement = model.signature.statement
    return SignedModel(
        label, statement.title, model.sha256, len(model.data), model.signature.key, statement.signed, statement.expires
    )


def _describe_visit(models: Mapping[str, Signed], site_answers: HospitalAnswers) -> Visited:
    """A hospital's facts for the page: scanners, rejected studies, answered and refused models."""
    counts = site_answers.counts
    scanners, rejected = (counts.scanners, counts.rejected) if isinstance(counts, Counted) else ({}, None)
    refused = {
        label: Reason(request, code, MEANINGS.get(code, OTHER))
        for label, (request, code) in site_answers.refused.items()
    }
    return Visited(
        site_answers.site,
        scanners,
        rejected,
        {label: reply.model for label, reply in site_answers.replies.items() if label in models},
        refused,
    )


def _draw_pictures(page: BenchmarkPage, tables: Mapping[str, Mapping[tuple[str, str], Evidence]]) -> list[Picture]:
    """Draw the forest plot, and calibration curves of counts without noise."""
    measure, names = primary_measure(page.scores), [standing.site for standing in rank_standings(page)]
    if not measure:
        return []
    rows_by_model: dict[str, dict[str, ScoreRow]] = {label: {} for label in tables}
    for row in page.scores:
        if row.measure == measure and row.protocol in (PRIVATE, *SUMMARY_NAMES):
            rows_by_model[row.method][SUMMARY_NAMES.get(row.protocol) or row.sites[0]] = row
    summary_names = [name for name in SUMMARY_NAMES.values() if any(name in rows for rows in rows_by_model.values())]
    pictures = [draw_forest_plot(rows_by_model, names, summary_names, measure=measure, least=page.least)]
    curves = {
        site: {
            label: counts.scores.sum(axis=1)
            for label, table in tables.items()
            if isinstance(counts := table.get((site, site)), Counts) and not counts.noise
        }
        for site in names
    }
    shown_curves = {site: lines for site, lines in curves.items() if lines}
    return (
        [*pictures, calibration_curves(shown_curves, order=[*tables], examples=page.words.examples)]
        if shown_curves
        else pictures
    )


def list_leading_lines(page: BenchmarkPage) -> list[str]:
    """The main contents of the page, in lines for a terminal."""
    lines, measure = [*list_findings(page)], primary_measure(page.scores)
    reasons = {visited.site: visited.reasons for visited in page.sites}
    for standing in rank_standings(page):
        site, row = standing.site, standing.row
        if row is not None:
            interval = f" [{row.low:.3f}-{row.high:.3f}]" if math.isfinite(row.low) else ""
            value = f"{row.value:.3f}" if math.isfinite(row.value) else "–"
            lines.append(f"  {site}: {measure} {value}{interval}, {row.patients} patients")
        for label, reason in reasons[site].items():
            lines.append(f"  {site}: no score of {label}, {reason.code}: {reason.meaning}")
    return lines
