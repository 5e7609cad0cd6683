"""The curves of a hospital's own page: ROC, learning, intensities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.choice import primary_measure
from evaluation.classes import TWO, Classes
from evaluation.confusion import confusion_matrices
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.figures import Curve, draw_learning_curves, draw_roc_by_class, draw_roc_curves, draw_score_dots
from evaluation.floors import drop_floors
from evaluation.histograms import Counts, Ints
from evaluation.panels import split_names
from evaluation.patients import draw_intensities
from evaluation.protocols import Table
from evaluation.reliability import calibration_curves
from evaluation.rows import ScoreRow
from evaluation.wording import Words
from federation.conversation import newest_whole
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital
from privacy.message import Json, as_list, as_mapping, losses_of


class Found(NamedTuple):
    """Scores at this hospital: evidence by method, table rows, what it decided, and the classes."""

    tables: Mapping[str, Table]
    rows: tuple[ScoreRow, ...]
    decisions: tuple[Decision, ...]
    classes: Classes = TWO


def drawn(
    hospital: Hospital, cohort: Cohort, splits: Sequence[str], found: Found, facts: Mapping[str, Json], words: Words
) -> tuple[Picture, ...]:
    """All curves. splits: names of the cohort's splits. facts: of `report`."""
    measure, site = primary_measure(found.rows), hospital.name
    rows = drop_floors(found.rows)
    return (
        *([draw_score_dots(rows, measure)] if measure else []),
        *_rocs(site, found, facts),
        *_calibrations(site, found, facts, words),
        *_curves(hospital, facts),
        *_intensities(cohort, splits),
    )


def _calibrations(site: str, found: Found, facts: Mapping[str, Json], words: Words) -> list[Picture]:
    """Calibration of this hospital's recommended model and of the reference, of more than two classes by class; and
    then their confusion matrices.
    """
    order, names = _order(facts), found.classes.several
    chosen = _chosen(site, found, facts)
    shown: dict[str, dict[str, Ints]] = {name: {} for name in names} if names else {site: {}}
    for method, counts in chosen.items():
        for row, panel in enumerate(shown):
            shown[panel][method] = counts.scores[:, row]
    if not chosen:
        return []
    matrices = {site: {method: counts.confusion[0] for method, counts in chosen.items()}}
    drawn = confusion_matrices(matrices, names, examples=words.examples) if names else []
    return [calibration_curves(shown, order=order, examples=words.examples), *drawn]


def _chosen(site: str, found: Found, facts: Mapping[str, Json]) -> dict[str, Counts]:
    """Counts of this hospital's recommended model and of the reference."""
    reference = str(facts["reference"] or "")
    chosen: dict[str, Counts] = {}
    for one in found.decisions or (Decision(site),):
        for method in dict.fromkeys(name for name in (reference, one.method) if name in found.tables):
            counts = found.tables[method][site, site]
            if isinstance(counts, Counts):
                chosen[method] = counts
    return chosen


def methods_of(facts: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The methods that a request names."""
    return [method for method in as_list(facts["methods"]) if isinstance(method, dict)]


def _rocs(site: str, found: Found, facts: Mapping[str, Json]) -> list[Picture]:
    own = {method: table[site, site] for method, table in found.tables.items()}
    order, names = _order(facts), found.classes.several
    lines = {method: counts for method, counts in own.items() if isinstance(counts, Counts)}
    groups = split_names([name for name in order if name in lines], str(facts["reference"]))
    if names:
        shown = ((part, {name: lines[name] for name in group}) for part, group in groups)
        return [draw_roc_by_class(one, names, order=order, part=part) for part, one in shown]
    return [
        draw_roc_curves({site: {name: lines[name].scores[0, 0] for name in group}}, order=order, part=part)
        for part, group in groups
    ]


def _order(facts: Mapping[str, Json]) -> list[str]:
    """All methods of the run, so that their colours match the coordinator's page; and an external site's lines."""
    lines = (as_mapping(line) for line in as_list(facts.get("lines", [])))
    return [str(one["label"]) for one in (*methods_of(facts), *lines)]


def _curves(hospital: Hospital, facts: Mapping[str, Json]) -> list[Picture]:
    """This hospital's validation losses by round, from its memory."""
    curves: dict[str, Curve] = {}
    for method in methods_of(facts):
        finite = losses_of(newest_whole(hospital.conversation(str(method["train_run"]))).facts)
        if finite:
            curves[str(method["label"])] = Curve(tuple(sorted(finite)), tuple(finite[r] for r in sorted(finite)))
    return [
        draw_learning_curves({hospital.name: {name: curves[name] for name in names}}, order=_order(facts), part=part)
        for part, names in split_names(list(curves), str(facts["reference"]))
    ]


def _intensities(cohort: Cohort, splits: Sequence[str]) -> list[Picture]:
    values: dict[str, NDArray[np.generic]] = {}
    for number, split in enumerate(splits):
        images = cohort.images[cohort.split == number]
        if len(images) and cohort.images.dim() > 2:
            values[split] = images[images != 0].numpy()
    return [draw_intensities(values, unit=cohort.unit)] if values else []
