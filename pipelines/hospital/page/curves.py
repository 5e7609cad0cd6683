"""The curves of a hospital's own page: ROC, learning, intensities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evaluation.agreement import Pairs, calibration_curves, draw_agreement
from evaluation.choice import primary_measure
from evaluation.classes import TWO, Classes
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.figures import Curve, draw_score_dots
from evaluation.findings import Findings
from evaluation.histograms import Counts, Ints
from evaluation.numbers import Number
from evaluation.patients import draw_intensities
from evaluation.protocols import Table
from evaluation.rows import ScoreRow
from evaluation.shared_figures import draw_confusions, draw_curve_groups, draw_rocs, list_shown_evidence, make_curve
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
    hospital: Hospital, cohort: Cohort, splits: Sequence[str], scores: PageScores, question: Report, words: Words
) -> tuple[Picture, ...]:
    """All curves. splits: names of the cohort's splits."""
    measure, site = primary_measure(scores.rows), hospital.name
    chosen = {decision.site: decision.method for decision in scores.decisions}
    decided = scores.decisions or (Decision(site),)
    return (
        *([draw_score_dots(scores.rows, measure, chosen)] if measure else []),
        *_draw_agreement(hospital, scores, question, words),
        *draw_rocs(scores.tables, [site], _method_order(question), question.reference, scores.classes, scores.findings),
        *_draw_calibrations(scores, decided, question, words),
        *_draw_series(hospital, question),
        *_draw_intensities(cohort, splits),
    )


def _draw_calibrations(
    scores: PageScores, decided: Sequence[Decision], question: Report, words: Words
) -> list[Picture]:
    """Calibration of this hospital's recommended model and of the reference, of more than two classes by class; and
    then their confusion matrices.
    """
    shown: dict[str, dict[str, Ints]] = {}
    for _, method, several in list_shown_evidence(scores.tables, decided, question.reference, Findings):
        for name, counts in zip(scores.findings, several.each, strict=True):
            shown.setdefault(name, {})[method] = counts.scores[:, 0]
    for site, method, counts in list_shown_evidence(scores.tables, decided, question.reference, Counts):
        for row, name in enumerate(scores.classes.scored_parts or (site,)):
            shown.setdefault(name, {})[method] = counts.scores[:, row]
    drawn = draw_confusions(scores.tables, decided, question.reference, scores.classes, words.examples)
    order = _method_order(question)
    return [calibration_curves(shown, order=order, examples=words.examples), *drawn] if shown else []


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


def _method_order(question: Report) -> list[str]:
    """All methods of the run, so that their colours match the coordinator's page; and an external site's lines."""
    lines = question.lines if isinstance(question, OutsideReport) else []
    return [*(method["label"] for method in question.methods), *(line["label"] for line in lines)]


def _draw_series(hospital: Hospital, question: Report) -> list[Picture]:
    """This hospital's validation losses by round, and the scores of runs that ask for them, from its memory."""
    losses, scores, measure = dict[str, Curve](), dict[str, Curve](), ""
    for method in question.methods:
        facts = load_newest_intact_memory(hospital.conversation(method["train_run"])).facts
        if finite := losses_of(facts):
            losses[method["label"]] = make_curve(finite)
        name, values = read_main_scores(facts)
        if values:
            measure, scores[method["label"]] = name, make_curve(values)
    order, reference = _method_order(question), question.reference
    return [
        *draw_curve_groups({hospital.name: losses}, order, reference),
        *draw_curve_groups({hospital.name: scores}, order, reference, f"validation {measure}"),
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
