"""The figures of the coordinator's page, from scores and training results."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from evaluation.classes import TWO, Classes
from evaluation.confusion import confusion_matrices
from evaluation.decision import Decision
from evaluation.drawing import Picture
from evaluation.evidence import evidence_of
from evaluation.figures import Curve, dots, gain_bars, learning_curves, roc_by_class, roc_curves
from evaluation.heat import between_sites, cross_site
from evaluation.histograms import Counts, Ints
from evaluation.many import beyond_figures, in_figures
from evaluation.metrics import AUC
from evaluation.overlap import DICE, HD95, Overlaps
from evaluation.overlap import from_tensors as from_overlaps
from evaluation.panels import parts
from evaluation.protocols import Evidence, home, matrix
from evaluation.reliability import calibration_curves
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.wording import Words
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.trained import Matrix, TrainedMethod
from pipelines.hospital.segmentation import FLOOR
from privacy.message import Message, from_bytes

WORDS = Words()
Tables: TypeAlias = Mapping[str, Mapping[tuple[str, str], Evidence]]


def pictures(
    tables: Tables,
    rows: Sequence[ScoreRow],
    trained: Sequence[TrainedMethod],
    reference: str | None,
    decided: Sequence[Decision] = (),
    words: Words = WORDS,
    classes: Classes = TWO,
) -> list[Picture]:
    """Scores and gains of every line of the tables; curves and heat maps of methods, not of their variants.
    Segmentation has no ROC curves; more than two classes have them by class, and confusion matrices. Where there are
    more hospitals than can be read, some of them, so that a page's figures cost the same however many there are.
    """
    if note := beyond_figures(rows):
        some = in_figures(rows)
        few = _drawn(
            *_of(some, tables, rows, trained), reference, [one for one in decided if one.site in some], words, classes
        )
        return [replace(one, caption=one.caption + note) for one in few]
    return _drawn(tables, rows, trained, reference, decided, words, classes)


def _of(
    some: Sequence[str], tables: Tables, rows: Sequence[ScoreRow], trained: Sequence[TrainedMethod]
) -> tuple[Tables, Sequence[ScoreRow], Sequence[TrainedMethod]]:
    """The evidence, rows and training results of some hospitals, in their order, and what is of none of them alone."""
    sites = {test for table in tables.values() for _, test in table}
    kept = {
        label: {
            (model, test): found
            for (model, test), found in table.items()
            if test in some and (model in some or model not in sites)
        }
        for label, table in tables.items()
    }
    results = [
        replace(
            result,
            losses={site: series for site, series in result.losses.items() if site in some or site not in sites},
            between={name: _square(matrix, some) for name, matrix in result.between.items()},
        )
        for result in trained
    ]
    own = [row for site in some for row in rows if row.protocol == PRIVATE and row.sites[0] == site]
    own += [row for row in rows if row.protocol != PRIVATE]
    return {label: table for label, table in kept.items() if table}, own, results


def _square(found: Matrix, some: Collection[str]) -> Matrix:
    """The rows and columns of some hospitals."""
    places = [place for place, site in enumerate(found["sites"]) if site in some]
    return {
        "sites": [found["sites"][place] for place in places],
        "values": [[found["values"][i][j] for j in places] for i in places],
    }


def _drawn(
    tables: Tables,
    rows: Sequence[ScoreRow],
    trained: Sequence[TrainedMethod],
    reference: str | None,
    decided: Sequence[Decision],
    words: Words,
    classes: Classes,
) -> list[Picture]:
    methods = [str(result.label) for result in trained if result.label in tables]
    masks = any(isinstance(found, Overlaps) for table in tables.values() for found in table.values())
    drawn: list[Picture] = []
    for measure in (DICE, HD95) if masks else (AUC,):
        own = [row for row in rows if row.measure == measure.name]
        if not drawn or any(math.isfinite(row.value) for row in own):
            drawn.append(dots(rows, measure.name))
        if reference and any(math.isfinite(row.gain) for row in own if row.method != reference):
            gained = gain_bars(rows, measure.name, reference)
            drawn.append(replace(gained, title=f"{measure.name}: gain over {reference}") if masks else gained)
    for part, names in [] if masks else parts(methods, reference):
        drawn += _rocs(tables, names, classes, methods, part)
    drawn += calibrations(tables, decided, reference or "", methods, words)
    drawn += _confusions(tables, decided, reference or "", words, classes)
    drawn += _curves(trained, methods, reference)
    for method in methods:
        measure = DICE if masks else AUC
        models, tests, values = matrix(tables[method], measure)
        whole = len(tables[method]) == len(models) * len(tests)
        if len(models) > 1 and whole and np.ptp(values, axis=0).any():
            drawn.append(cross_site(models, tests, values, measure.name, method))
    for result in trained:
        for name, found in result.between.items():
            drawn.append(between_sites(found["sites"], np.array(found["values"]), name, result.label))
    return drawn


def _rocs(tables: Tables, methods: Sequence[str], classes: Classes, order: Sequence[str], part: str) -> list[Picture]:
    """ROC curves of every site's own models: one picture, or of more than two classes one for each site."""
    own = {
        method: {pair: found for pair, found in home(tables[method]).items() if isinstance(found, Counts)}
        for method in methods
    }
    sites = sorted({test for table in tables.values() for _, test in table})
    held = {site: {m: own[m][site, site] for m in methods if (site, site) in own[m]} for site in sites}
    if not classes.several:
        shown = {site: {m: counts.scores[0, 0] for m, counts in lines.items()} for site, lines in held.items()}
        return [roc_curves(shown, order=order, part=part)]
    return [roc_by_class(lines, classes.names, order=order, part=f", {site}{part}") for site, lines in held.items()]


def _confusions(
    tables: Tables, decided: Sequence[Decision], reference: str, words: Words, classes: Classes
) -> list[Picture]:
    """Confusion matrices of each hospital's recommended model and of the reference, of more than two classes."""
    shown: dict[str, dict[str, Ints]] = {}
    noised = False
    for site, method, found in _chosen(tables, decided, reference):
        if classes.several:
            shown.setdefault(site, {})[method] = found.confusion[0]
            noised = noised or found.noise > 0
    return confusion_matrices(shown, classes.names, examples=words.examples, noised=noised)


def _chosen(tables: Tables, decided: Sequence[Decision], reference: str) -> Iterator[tuple[str, str, Counts]]:
    """Site, method and counts of each hospital's recommended model and of the reference."""
    homes = {method: home(table) for method, table in tables.items()}
    for one in decided:
        for method in dict.fromkeys(name for name in (reference, one.method) if name in homes):
            found = homes[method].get((one.site, one.site))
            if isinstance(found, Counts):
                yield one.site, method, found


def calibrations(
    tables: Tables,
    decided: Sequence[Decision],
    reference: str,
    order: Sequence[str],
    words: Words,
) -> list[Picture]:
    """Calibration of each hospital's recommended model and of the reference. Left out for noised counts, which have too
    few bins; of more than two classes all their probabilities together.
    """
    shown: dict[str, dict[str, Ints]] = {}
    for site, method, found in _chosen(tables, decided, reference):
        if not found.noise and found.classes == 2:
            shown.setdefault(site, {})[method] = found.scores[:, 0]
        elif not found.noise:
            shown.setdefault(site, {})[method] = found.scores.sum(axis=1)
    return [calibration_curves(shown, order=order, examples=words.examples)] if shown else []


def _curves(trained: Sequence[TrainedMethod], methods: Sequence[str], reference: str | None) -> list[Picture]:
    curves: dict[str, dict[str, Curve]] = {}
    for result in trained:
        for site, series in result.losses.items():
            finite = sorted((int(r), float(v)) for r, v in series.items() if v is not None)
            if finite and result.name != CENTRAL:
                curves.setdefault(site, {})[result.label] = Curve(
                    tuple(r for r, _ in finite), tuple(v for _, v in finite)
                )
    names = [name for name in methods if any(name in own for own in curves.values())]
    found = []
    for part, group in parts(names, reference):
        shown = {site: {m: own[m] for m in group if m in own} for site, own in sorted(curves.items())}
        found.append(learning_curves(shown, order=methods, part=part))
    return found


def read_tables(folder: Path, *, copies: int, seed: int) -> Tables:
    """Evidence by method and (model site, test site), as the evaluate stage wrote it. copies, seed: of the parametric
    bootstrap of noised counts; the others bring their own.
    """
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    for entry, reply in _replies(folder):
        tensors = {n: t for n, t in reply.tensors.items() if not n.startswith(FLOOR)}
        found = evidence_of(tensors, reply.facts, copies=copies, seed=seed)
        tables.setdefault(entry["label"], {})[entry["model_site"], entry["test_site"]] = found
    return tables


def read_floor(folder: Path) -> dict[str, Overlaps]:
    """The mean mask's overlaps by site, where methods segment."""
    own = {
        entry["test_site"]: {n.removeprefix(FLOOR): t for n, t in reply.tensors.items() if n.startswith(FLOOR)}
        for entry, reply in _replies(folder)
        if f"{FLOOR}totals" in reply.tensors
    }
    return {site: from_overlaps(tensors) for site, tensors in own.items()}


def _replies(folder: Path) -> Iterator[tuple[dict[str, str], Message]]:
    """Of the evaluate stage, with what its index says of each."""
    for entry in json.loads((folder / "index.json").read_text()):
        yield entry, from_bytes((folder / entry["file"]).read_bytes())
