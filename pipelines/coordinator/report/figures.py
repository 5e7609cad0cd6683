"""The figures of the coordinator's page, from scores and training results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from evaluation.agreement import calibration_curves
from evaluation.classes import TWO, Classes
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.figures import Curve, draw_gain_bars, draw_score_dots
from evaluation.floors import drop_floors
from evaluation.grid import describe_figure_choice, select_figure_sites
from evaluation.heat import draw_cross_site, draw_site_matrix
from evaluation.histograms import Counts, Ints
from evaluation.metrics import AUC, Measure
from evaluation.numbers import Errors
from evaluation.numbers import from_tensors as from_errors
from evaluation.overlap import DICE, HD95, Overlaps
from evaluation.overlap import from_tensors as from_overlaps
from evaluation.protocols import Evidence, parse_evidence, score_matrix
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.shared_figures import draw_confusions, draw_curve_groups, draw_rocs, list_shown_evidence, make_curve
from evaluation.wording import Words
from pipelines.coordinator.artifacts import CENTRAL, RoundFigures, read_index
from pipelines.coordinator.trained import Matrix, TrainedMethod
from pipelines.hospital.segmentation import FLOOR
from privacy.message import from_bytes

WORDS = Words()
Tables: TypeAlias = Mapping[str, Mapping[tuple[str, str], Evidence]]


def draw_figures(
    tables: Tables,
    rows: Sequence[ScoreRow],
    trained: Sequence[TrainedMethod],
    reference: str | None,
    decided: Sequence[Decision] = (),
    words: Words = WORDS,
    classes: Classes = TWO,
    primary: Measure = AUC,
) -> list[Picture]:
    """Scores and gains of every line of the tables; curves and heat maps of methods, not of their variants.
    Segmentation has no ROC curves; more than two classes have them by class, findings each, and confusion matrices.
    Where there are more hospitals than can be read, some of them, so that a page's figures cost the same however many
    there are.
    """
    if note := describe_figure_choice(rows):
        shown_sites = select_figure_sites(rows)
        drawn_pictures = _draw_all(
            *_select_sites(shown_sites, tables, rows, trained),
            reference,
            [decision for decision in decided if decision.site in shown_sites],
            words,
            classes,
            primary,
        )
        return [replace(picture, caption=picture.caption + note) for picture in drawn_pictures]
    return _draw_all(tables, rows, trained, reference, decided, words, classes, primary)


def _select_sites(
    names: Sequence[str], tables: Tables, rows: Sequence[ScoreRow], trained: Sequence[TrainedMethod]
) -> tuple[Tables, Sequence[ScoreRow], Sequence[TrainedMethod]]:
    """The evidence, rows and training results of some hospitals, in their order, and what is of none of them alone."""
    sites = {test for table in tables.values() for _, test in table}
    tables_of_sites = {
        label: {
            (model, test): evidence
            for (model, test), evidence in table.items()
            if test in names and (model in names or model not in sites)
        }
        for label, table in tables.items()
    }
    results = [
        replace(
            result,
            losses={site: series for site, series in result.losses.items() if site in names or site not in sites},
            between={name: _select_square(matrix, names) for name, matrix in result.between.items()},
        )
        for result in trained
    ]
    selected_rows = [row for site in names for row in rows if row.protocol == PRIVATE and row.sites[0] == site]
    selected_rows += [row for row in rows if row.protocol != PRIVATE]
    return {label: table for label, table in tables_of_sites.items() if table}, selected_rows, results


def _select_square(matrix: Matrix, names: Collection[str]) -> Matrix:
    """The rows and columns of some hospitals."""
    places = [place for place, site in enumerate(matrix["sites"]) if site in names]
    return {
        "sites": [matrix["sites"][place] for place in places],
        "values": [[matrix["values"][i][j] for j in places] for i in places],
    }


def _draw_all(
    tables: Tables,
    rows: Sequence[ScoreRow],
    trained: Sequence[TrainedMethod],
    reference: str | None,
    decided: Sequence[Decision],
    words: Words,
    classes: Classes,
    primary: Measure,
) -> list[Picture]:
    """Every figure of these hospitals."""
    methods, line_rows = [str(result.label) for result in trained if result.label in tables], drop_floors(rows)
    masks = any(isinstance(evidence, Overlaps) for table in tables.values() for evidence in table.values())
    drawn: list[Picture] = []
    for measure in (DICE, HD95) if masks else (primary,):
        measure_rows = [row for row in line_rows if row.measure == measure.name]
        if not drawn or any(math.isfinite(row.value) for row in measure_rows):
            drawn.append(draw_score_dots(rows, measure.name, {decision.site: decision.method for decision in decided}))
        if reference and any(math.isfinite(row.gain) for row in measure_rows if row.method != reference):
            gained = draw_gain_bars(line_rows, measure.name, reference)
            drawn.append(replace(gained, title=f"{measure.name}: gain over {reference}") if masks else gained)
    if primary.name == AUC.name:
        findings = () if primary is AUC else classes.names
        sites = {test for table in tables.values() for _, test in table}
        drawn += draw_rocs(tables, sorted(sites), methods, reference, classes, findings, names_site=True)
    drawn += draw_calibrations(tables, decided, reference, methods, words)
    drawn += draw_confusions(tables, decided, reference, classes, words.examples)
    drawn += draw_curve_groups(_list_losses(trained), methods, reference)
    for method in methods:
        models, tests, values = score_matrix(tables[method], primary)
        is_complete = len(tables[method]) == len(models) * len(tests)
        if len(models) > 1 and is_complete and np.ptp(values, axis=0).any():
            drawn.append(draw_cross_site(models, tests, values, primary.name, method))
    for result in trained:
        for name, matrix in result.between.items():
            drawn.append(draw_site_matrix(matrix["sites"], np.array(matrix["values"]), name, result.label))
    return drawn


def draw_calibrations(
    tables: Tables, decided: Sequence[Decision], reference: str | None, order: Sequence[str], words: Words
) -> list[Picture]:
    """Calibration of each hospital's recommended model and of the reference. Left out for noised counts, which have too
    few bins; of more than two classes all their probabilities together.
    """
    shown: dict[str, dict[str, Ints]] = {}
    for site, method, counts in list_shown_evidence(tables, decided, reference, Counts):
        if not counts.noise:
            scores = counts.scores
            shown.setdefault(site, {})[method] = scores[:, 0] if counts.classes == 2 else scores.sum(axis=1)
    return [calibration_curves(shown, order=order, examples=words.examples)] if shown else []


def _list_losses(trained: Sequence[TrainedMethod]) -> dict[str, dict[str, Curve]]:
    """Validation losses by hospital and method; the central model has none of its own hospital."""
    curves: dict[str, dict[str, Curve]] = {}
    for result in trained:
        for site, series in sorted(result.losses.items()):
            finite = {int(number): float(value) for number, value in series.items() if value is not None}
            if finite and result.name != CENTRAL:
                curves.setdefault(site, {})[result.label] = make_curve(finite)
    return dict(sorted(curves.items()))


def read_tables(folder: Path, *, copies: int, seed: int) -> Tables:
    """Evidence by method and (model site, test site), as the evaluate stage wrote it. copies, seed: of the parametric
    bootstrap of noised counts; the others bring their own.
    """
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    evidence: dict[str, Evidence] = {}  # by file: sites that have the same model share it
    for entry in read_index(folder):
        if entry.file not in evidence:
            reply = from_bytes((folder / entry.file).read_bytes())
            tensors = {n: t for n, t in reply.tensors.items() if not n.startswith(FLOOR)}
            evidence[entry.file] = parse_evidence(tensors, reply.facts, copies=copies, seed=seed)
        tables.setdefault(entry.label, {})[entry.model_site, entry.test_site] = evidence[entry.file]
    return tables


def read_floor(folder: Path) -> dict[str, Overlaps | Errors]:
    """The mean mask's overlaps, or the median guess's errors, by site, where methods give masks or numbers."""
    floors: dict[str, Overlaps | Errors] = {}
    for file, site in {entry.file: entry.test_site for entry in read_index(folder)}.items():
        every = from_bytes((folder / file).read_bytes()).tensors
        if tensors := {n.removeprefix(FLOOR): t for n, t in every.items() if n.startswith(FLOOR)}:
            floors[site] = from_errors(tensors) if "errors" in tensors else from_overlaps(tensors)
    return floors


def draw_round_scores(
    figures: Sequence[RoundFigures], methods: Sequence[str], reference: str | None, sites: Sequence[str]
) -> list[Picture]:
    """The first measure of each model by round, in groups of methods. methods: in their order, without further
    trainings. sites: that are drawn.
    """
    measure = next((name for each in figures for name in each.scores), "")
    series: dict[str, dict[str, dict[int, float]]] = {site: {} for site in sites}
    for each in figures:
        score = each.scores.get(measure)
        if score is not None and each.site in sites and each.training in methods:
            series[each.site].setdefault(each.training, {})[each.round] = score
    curves = {site: {name: make_curve(scores) for name, scores in lines.items()} for site, lines in series.items()}
    return draw_curve_groups(curves, methods, reference, f"validation {measure}")
