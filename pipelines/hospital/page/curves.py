"""The curves of a hospital's own page: ROC, learning, intensities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evaluation.agreement import Pairs, draw_agreement
from evaluation.choice import primary_measure
from evaluation.classes import TWO, Classes
from evaluation.confusion import confusion_matrices
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.figures import (
    Curve,
    draw_learning_curves,
    draw_roc_by_class,
    draw_roc_by_finding,
    draw_roc_curves,
    draw_score_dots,
)
from evaluation.findings import Findings
from evaluation.histograms import Counts, Ints
from evaluation.numbers import Number
from evaluation.panels import split_names
from evaluation.patients import draw_intensities
from evaluation.protocols import Table
from evaluation.reliability import calibration_curves
from evaluation.rows import ScoreRow
from evaluation.wording import Words
from federation.conversation import load_newest_intact_memory
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.hospital.figures import read_main_scores
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import scores_name_of
from pipelines.requests.report import OutsideReport, Report
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes, losses_of
from privacy.release.form import value_or_none

MOST_VALUES = 2**21
"""Pixels of a split whose distribution is drawn."""


class PageScores(NamedTuple):
    """Scores at this hospital: evidence by method, table rows, what it decided, and the classes, or the number or the
    findings that are predicted.
    """

    tables: Mapping[str, Table]
    rows: tuple[ScoreRow, ...]
    decisions: tuple[Decision, ...]
    classes: Classes = TWO
    number: Number | None = None
    findings: Sequence[str] = ()


def draw_curves(
    hospital: Hospital,
    cohort: Cohort,
    splits: Sequence[str],
    scores: PageScores,
    question: Report,
    words: Words,
) -> tuple[Picture, ...]:
    """All curves. splits: names of the cohort's splits."""
    measure, site = primary_measure(scores.rows), hospital.name
    chosen = {decision.site: decision.method for decision in scores.decisions}
    return (
        *([draw_score_dots(scores.rows, measure, chosen)] if measure else []),
        *_draw_agreement(hospital, scores, question, words),
        *_draw_rocs(site, scores, question),
        *_draw_calibrations(site, scores, question, words),
        *_draw_losses(hospital, question),
        *_draw_round_scores(hospital, question),
        *_draw_intensities(cohort, splits),
    )


def _draw_calibrations(site: str, scores: PageScores, question: Report, words: Words) -> list[Picture]:
    """Calibration of this hospital's recommended model and of the reference, of more than two classes by class; and
    then their confusion matrices.
    """
    order, names = _method_order(question), scores.classes.several
    if scores.findings:
        several = _select_findings(site, scores, question.reference)
        panels = {
            finding: {method: evidence.each[k].scores[:, 0] for method, evidence in several.items()}
            for k, finding in enumerate(scores.findings)
        }
        return [calibration_curves(panels, order=order, examples=words.examples)] if several else []
    chosen = _select_counts(site, scores, question.reference)
    shown: dict[str, dict[str, Ints]] = {name: {} for name in scores.classes.scored_parts or (site,)}
    for method, counts in chosen.items():
        for row, panel in enumerate(shown):
            shown[panel][method] = counts.scores[:, row]
    if not chosen:
        return []
    matrices = {site: {method: counts.confusion[0] for method, counts in chosen.items()}}
    drawn = confusion_matrices(matrices, names, examples=words.examples) if names else []
    return [calibration_curves(shown, order=order, examples=words.examples), *drawn]


def _draw_agreement(hospital: Hospital, scores: PageScores, question: Report, words: Words) -> list[Picture]:
    """Agreement of this hospital's recommended model and of the reference with the given numbers."""
    if scores.number is None:
        return []
    folder, shown = DiskFolder(hospital.root / "scores"), dict[str, Pairs]()
    methods = {line["label"]: line for line in (*question.methods, *(value_or_none(question.variants) or ()))}
    names = [name for decision in scores.decisions for name in (question.reference, decision.method)]
    for label in dict.fromkeys(name for name in names if name is not None and name in methods):
        name = scores_name_of(methods[label])
        if folder.has(name):
            tensors = from_bytes(folder.read(name)).tensors
            shown[label] = Pairs(tensors["y"].double().numpy() / STEPS, tensors["probabilities"][:, 0].double().numpy())
    order = _method_order(question)
    return [draw_agreement(shown, scores.number, order=order, examples=words.examples)] if shown else []


def _select_counts(site: str, scores: PageScores, reference: str | None) -> dict[str, Counts]:
    """Counts of this hospital's recommended model and of the reference."""
    chosen: dict[str, Counts] = {}
    for decision in scores.decisions or (Decision(site),):
        for method in dict.fromkeys(name for name in (reference, decision.method) if name and name in scores.tables):
            counts = scores.tables[method][site, site]
            if isinstance(counts, Counts):
                chosen[method] = counts
    return chosen


def _select_findings(site: str, scores: PageScores, reference: str | None) -> dict[str, Findings]:
    """Counts of findings of this hospital's recommended model and of the reference."""
    names = [name for decision in scores.decisions or (Decision(site),) for name in (reference, decision.method)]
    chosen: dict[str, Findings] = {}
    for method in dict.fromkeys(name for name in names if name and name in scores.tables):
        evidence = scores.tables[method][site, site]
        if isinstance(evidence, Findings):
            chosen[method] = evidence
    return chosen


def _draw_rocs(site: str, scores: PageScores, question: Report) -> list[Picture]:
    """ROC curves of each method here, of more than two classes by class, or by cut; of several findings by finding."""
    home_counts = {method: table[site, site] for method, table in scores.tables.items()}
    order, names = _method_order(question), scores.classes.scored_parts
    if scores.findings:
        several = {method: evidence for method, evidence in home_counts.items() if isinstance(evidence, Findings)}
        of_findings = split_names([name for name in order if name in several], question.reference or "")
        return [
            draw_roc_by_finding({name: several[name] for name in group}, scores.findings, order=order, part=part)
            for part, group in of_findings
        ]
    lines = {method: counts for method, counts in home_counts.items() if isinstance(counts, Counts)}
    groups = split_names([name for name in order if name in lines], question.reference or "")
    if names:
        shown = ((part, {name: lines[name] for name in group}) for part, group in groups)
        return [draw_roc_by_class(counts, names, order=order, part=part) for part, counts in shown]
    return [
        draw_roc_curves({site: {name: lines[name].scores[0, 0] for name in group}}, order=order, part=part)
        for part, group in groups
    ]


def _method_order(question: Report) -> list[str]:
    """All methods of the run, so that their colours match the coordinator's page; and an external site's lines."""
    lines = question.lines if isinstance(question, OutsideReport) else []
    return [*(method["label"] for method in question.methods), *(line["label"] for line in lines)]


def _draw_losses(hospital: Hospital, question: Report) -> list[Picture]:
    """This hospital's validation losses by round, from its memory."""
    curves: dict[str, Curve] = {}
    for method in question.methods:
        finite = losses_of(load_newest_intact_memory(hospital.conversation(method["train_run"])).facts)
        if finite:
            curves[method["label"]] = Curve(tuple(sorted(finite)), tuple(finite[r] for r in sorted(finite)))
    return [
        draw_learning_curves(
            {hospital.name: {name: curves[name] for name in names}}, order=_method_order(question), part=part
        )
        for part, names in split_names(list(curves), question.reference or "")
    ]


def _draw_round_scores(hospital: Hospital, question: Report) -> list[Picture]:
    """This hospital's validation scores by round, of runs that ask for them, from its memory."""
    curves, measure = dict[str, Curve](), ""
    for method in question.methods:
        memory = load_newest_intact_memory(hospital.conversation(method["train_run"]))
        name, values = read_main_scores(memory.facts)
        if values:
            measure = name
            curves[method["label"]] = Curve(tuple(values), tuple(values.values()))
    return [
        draw_learning_curves(
            {hospital.name: {name: curves[name] for name in names}},
            value=f"validation {measure}",
            order=_method_order(question),
            part=part,
        )
        for part, names in split_names(list(curves), question.reference or "")
    ]


def _draw_intensities(cohort: Cohort, splits: Sequence[str]) -> list[Picture]:
    """Distributions of the values of each split, of at most `MOST_VALUES` pixels of each."""
    if cohort.images.dim() <= 2:
        return []
    values: dict[str, NDArray[np.generic]] = {}
    for number, split in enumerate(splits):
        rows = (cohort.split == number).nonzero()[:, 0]
        if len(rows):
            pixels = take_evenly(cohort.images, rows, MOST_VALUES)
            values[split] = pixels[pixels != 0].numpy()
    return [draw_intensities(values, unit=cohort.unit)] if values else []


def take_evenly(images: Tensor, rows: Tensor, most: int) -> Tensor:
    """At most `most` pixels of these rows of images (n, ...), one-dimensional: all, or else of rows at equal distances,
    and of a row that is larger by itself pixels at equal distances.
    """
    pixels = math.prod(images.shape[1:])
    count = min(len(rows), max(1, most // max(1, pixels)))
    places = torch.linspace(0, len(rows) - 1, count, dtype=torch.float64).round().long()
    return torch.cat([images[row].flatten()[:: -(-pixels // most)] for row in rows[places].tolist()])
