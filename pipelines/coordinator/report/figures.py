"""The figures of the coordinator's page, from scores and from what the methods' conversations left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from evaluation.choice import choices
from evaluation.drawing import Picture
from evaluation.figures import Curve, dots, gain_bars, learning_curves, roc_curves
from evaluation.heat import between_sites, cross_site
from evaluation.histograms import Counts, Ints
from evaluation.metrics import AUC
from evaluation.overlap import DICE, HD95, Overlaps
from evaluation.panels import parts
from evaluation.protocols import Evidence, home, matrix
from evaluation.records import Model
from evaluation.reliability import calibration_curves
from evaluation.rows import ScoreRow
from evaluation.wording import Words
from pipelines.coordinator.artifacts import CENTRAL

WORDS = Words()
Tables: TypeAlias = Mapping[str, Mapping[tuple[str, str], Evidence]]


def pictures(
    tables: Tables,
    rows: Sequence[ScoreRow],
    trained: Sequence[Mapping[str, Any]],
    reference: str | None,
    usable: Sequence[Model] = (),
    words: Words = WORDS,
) -> list[Picture]:
    """Scores and gains of every line of the tables; of methods, and not of their variants, curves and heat maps. Where
    methods outline there is no ROC curve.
    """
    methods = [str(result["label"]) for result in trained if result["label"] in tables]
    masks = any(isinstance(found, Overlaps) for table in tables.values() for found in table.values())
    drawn: list[Picture] = []
    for measure in (DICE, HD95) if masks else (AUC,):
        drawn.append(dots(rows, measure.name))
        if reference:
            gained = gain_bars(rows, measure.name, reference)
            drawn.append(replace(gained, title=f"{measure.name}: gain over {reference}") if masks else gained)
    for part, names in [] if masks else parts(methods, reference):
        drawn.append(roc_curves(_rocs(tables, names), order=methods, part=part))
    drawn += calibrations(tables, rows, usable, reference or "", methods, words)
    drawn += _curves(trained, methods, reference)
    for method in methods:
        measure = DICE if masks else AUC
        models, tests, values = matrix(tables[method], measure)
        whole = len(tables[method]) == len(models) * len(tests)
        if len(models) > 1 and whole and np.ptp(values, axis=0).any():
            drawn.append(cross_site(models, tests, values, measure.name, method))
    for result in trained:
        for name, found in result["between"].items():
            drawn.append(between_sites(found["sites"], np.array(found["values"]), name, result["label"]))
    return drawn


def _rocs(tables: Tables, methods: Sequence[str]) -> dict[str, dict[str, Ints]]:
    """Site -> method -> counts of its own model's scores."""
    own = {
        method: {pair: found for pair, found in home(tables[method]).items() if isinstance(found, Counts)}
        for method in methods
    }
    sites = sorted({test for table in tables.values() for _, test in table})
    return {site: {m: own[m][site, site].scores[0, 0] for m in methods if (site, site) in own[m]} for site in sites}


def calibrations(
    tables: Tables,
    rows: Sequence[ScoreRow],
    models: Sequence[Model],
    reference: str,
    order: Sequence[str],
    words: Words,
) -> list[Picture]:
    """How calibrated the model is that each hospital should use, and the reference. Nothing of noised counts, whose
    bins are too few, and of more than two classes.
    """
    shown: dict[str, dict[str, Ints]] = {}
    for one in choices(models, rows, reference, words):
        for method in dict.fromkeys(name for name in (reference, one.method) if name in tables):
            found = home(tables[method]).get((one.site, one.site))
            if isinstance(found, Counts) and not found.noise and found.classes == 2:
                shown.setdefault(one.site, {})[method] = found.scores[:, 0]
    return [calibration_curves(shown, order=order, examples=words.examples)] if shown else []


def _curves(trained: Sequence[Mapping[str, Any]], methods: Sequence[str], reference: str | None) -> list[Picture]:
    curves: dict[str, dict[str, Curve]] = {}
    for result in trained:
        for site, series in result["losses"].items():
            finite = sorted((int(r), float(v)) for r, v in series.items() if v is not None)
            if finite and result["name"] != CENTRAL:
                curves.setdefault(site, {})[result["label"]] = Curve(
                    tuple(r for r, _ in finite), tuple(v for _, v in finite)
                )
    names = [name for name in methods if any(name in own for own in curves.values())]
    found = []
    for part, group in parts(names, reference):
        shown = {site: {m: own[m] for m in group if m in own} for site, own in sorted(curves.items())}
        found.append(learning_curves(shown, order=methods, part=part))
    return found
