"""The page of a benchmark, and the same for machines, from what hospitals said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from evaluation.benchmark import (
    BenchmarkPage,
    Reason,
    SignedModel,
    Visited,
    as_facts,
    rank_standings,
    render_benchmark_page,
)
from evaluation.choice import primary_measure
from evaluation.classes import Classes
from evaluation.drawing import Picture
from evaluation.forest import draw_forest_plot
from evaluation.histograms import Counts
from evaluation.metrics import Measure
from evaluation.overlap import list_measures
from evaluation.protocols import Evidence
from evaluation.records import Command
from evaluation.reliability import calibration_curves
from evaluation.rows import OVERALL, PRIVATE, PRIVATE_MEAN, ScoreRow, scores_csv, to_json
from evaluation.scoring import label_measures, score_rows
from pipelines.benchmark.asking import Heard
from pipelines.hospital.segmentation import words_of_kind
from pipelines.loader.validation import to_plain
from pipelines.models.file import Ready
from pipelines.models.signed import Signed
from pipelines.settings.benchmark import BenchmarkSettings
from privacy.message import Json, as_list, as_mapping

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
"""Code -> what it means, in words for a reader of the page."""
OTHER = "see its log, and the reference of refusals"
OVER = {PRIVATE_MEAN: "mean over hospitals", OVERALL: "all as one sample"}


class Told(NamedTuple):
    """Files of the coordinator: the page, the same as JSON, and all scores as CSV."""

    page: str
    facts: str
    scores: str


def told(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    heard: Sequence[Heard],
    *,
    now: str,
    command: str,
    far: bool,
) -> Told:
    """The files. command: to run it again. far: whether hospitals are on other machines."""
    page = page_of(settings, models, heard, now=now, command=command, far=far)
    return Told(render_benchmark_page(page), to_json(as_facts(page)), scores_csv(page.scores))


def page_of(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    heard: Sequence[Heard],
    *,
    now: str,
    command: str,
    far: bool,
) -> BenchmarkPage:
    """What the page says."""
    first = settings.benchmark.first
    ready = models[first].ready
    tables = _tables(models, heard)
    rows = _scores(tables, first, ready)
    page = BenchmarkPage(
        title=settings.title or settings.name,
        run=settings.name,
        date=now,
        simulation=not far,
        first=first,
        least=settings.benchmark.least,
        models=tuple(_model(label, model) for label, model in models.items()),
        sites=tuple(_visited(models, one) for one in heard),
        scores=rows,
        words=words_of_kind(ready.images.kind),
        settings=json.dumps(without_files(settings), indent=1),
        commands=(
            Command("Ask again, who refused or was not there; who answered repeats its answer", command),
            Command("The page for machines", "benchmark.json and scores.csv, beside it"),
        ),
        classes=ready.names if ready.task.kind == "classification" else (),
    )
    return replace(page, pictures=tuple(_pictures(page, tables)))


def without_files(settings: BenchmarkSettings) -> Json:
    """Settings without what names files or patients: of a hospital only its name and the kind of its source."""
    whole = as_mapping(to_plain(settings))
    sites = {
        name: as_mapping(as_mapping(own)["source"]).get("kind") for name, own in as_mapping(whole["sites"]).items()
    }
    plan = as_mapping(whole["benchmark"])
    return {**whole, "benchmark": {**plan, "models": [*as_mapping(plan["models"])]}, "sites": dict(sites)}


def _tables(models: Mapping[str, Signed], heard: Sequence[Heard]) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence by model and (site, site); hospitals in the order of their names, whoever answered first."""
    ordered = sorted(heard, key=lambda one: one.site)
    found = {label: {(h.site, h.site): h.evidence[label] for h in ordered if label in h.evidence} for label in models}
    return {label: own for label, own in found.items() if own}


def _scores(tables: Mapping[str, Mapping[tuple[str, str], Evidence]], first: str, ready: Ready) -> tuple[ScoreRow, ...]:
    if not tables:
        return ()
    chosen: tuple[Measure, ...]
    if ready.task.kind == "segmentation":
        chosen = list_measures(ready.names)
    else:
        chosen = label_measures(tables, Classes(_names(ready), ready.ordered))
    return score_rows(tables, reference=first if first in tables else None, measures=chosen)


def _names(ready: Ready) -> tuple[str, ...]:
    return ready.names or ("negative", "positive")


def _model(label: str, model: Signed) -> SignedModel:
    said = model.signature.statement
    return SignedModel(label, said.title, model.sha256, len(model.data), model.signature.key, said.signed, said.expires)


def _visited(models: Mapping[str, Signed], heard: Heard) -> Visited:
    scanners = as_mapping(heard.counts.get("scanners"))
    rejected = heard.counts.get("rejected")
    refused = {label: Reason(r, code, MEANINGS.get(code, OTHER)) for label, (r, code) in heard.refused.items()}
    return Visited(
        heard.site,
        {name: number for name, number in scanners.items() if isinstance(number, int)},
        rejected if isinstance(rejected, int) else None,
        {label: str(reply.facts["model"]) for label, reply in heard.replies.items() if label in models},
        refused,
    )


def _pictures(page: BenchmarkPage, tables: Mapping[str, Mapping[tuple[str, str], Evidence]]) -> list[Picture]:
    """The forest plot, and calibration curves of counts that have no noise."""
    measure, names = primary_measure(page.scores), [one.site for one in rank_standings(page)]
    if not measure:
        return []
    own: dict[str, dict[str, ScoreRow]] = {label: {} for label in tables}
    for row in page.scores:
        if row.measure == measure and row.protocol in (PRIVATE, *OVER):
            own[row.method][OVER.get(row.protocol) or row.sites[0]] = row
    over = [name for name in OVER.values() if any(name in rows for rows in own.values())]
    drawn = [draw_forest_plot(own, names, over, measure=measure, least=page.least)]
    curves = {
        site: {
            label: found.scores.sum(axis=1)
            for label, table in tables.items()
            if isinstance(found := table.get((site, site)), Counts) and not found.noise
        }
        for site in names
    }
    shown = {site: lines for site, lines in curves.items() if lines}
    return [*drawn, calibration_curves(shown, order=[*tables], examples=page.words.examples)] if shown else drawn


def leading(page: Mapping[str, Json]) -> list[str]:
    """What the page says, in lines for a terminal. page: `benchmark.json`."""
    lines = [str(text) for text in as_list(page["findings"])]
    for one in map(as_mapping, as_list(page["hospitals"])):
        row, refused = as_mapping(one["by"]), as_mapping(one["reasons"])
        if row:
            between = "" if row["low"] is None else f" [{row['low']:.3f}-{row['high']:.3f}]"
            value = "–" if row["value"] is None else f"{row['value']:.3f}"
            lines.append(f"  {one['site']}: {page['measure']} {value}{between}, {row['patients']} patients")
        for label, why in refused.items():
            said = as_mapping(why)
            lines.append(f"  {one['site']}: no score of {label}, {said['code']}: {said['meaning']}")
    return lines
