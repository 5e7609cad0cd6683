"""Which model each hospital should use, how certain that is, and how much the choice biases the score.

`evaluation.recommendation` goes before. Where it says nothing, a model is chosen by its loss on the hospital's
validation patients, so that its score on test patients is not that of a winner on them. If a run has no validation
loss, the highest score on the test patients decides, and the page says by how much that score is too high. Only a model
that is stored as a file in the hospital's folder can be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from evaluation.histograms import Floats
from evaluation.metrics import AUC, CALIBRATION, SENSITIVITY, SPECIFICITY, Measure
from evaluation.overlap import DICE
from evaluation.protocols import Table, home
from evaluation.records import Model
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.wording import Words, counted, number, signed

PRIMARY = (AUC.name, DICE.name)
"""Measures that compare models in words: the first one that is available."""


@dataclass(frozen=True)
class Choice:
    """A hospital's model. method: empty if none can be named. by: the criterion. score: on its test patients, None =
    not scored. said: how good it is, in sentences. top: the row with the highest score there, if it is another one.
    """

    site: str
    method: str
    file: str
    by: Literal["recommended", "validation", "test", ""]
    score: ScoreRow | None
    said: tuple[str, ...]
    top: ScoreRow | None = None


@dataclass(frozen=True)
class OwnScores:
    """Scores of hospitals' own models on their own test patients, sorted once: there can be a thousand hospitals.

    measure: that compares models in words; empty if none is available. scores: of methods by (site, measure), without
    baselines and missing values; floors: the baseline by (site, measure).
    """

    measure: str
    scores: Mapping[tuple[str, str], Mapping[str, ScoreRow]]
    floors: Mapping[tuple[str, str], ScoreRow]

    def at(self, site: str, measure: str) -> Mapping[str, ScoreRow]:
        """A hospital's scores, by method."""
        return self.scores.get((site, measure), {})


def own_scores(rows: Sequence[ScoreRow]) -> OwnScores:
    """Sort rows, of all protocols, by hospital."""
    scores, floors = dict[tuple[str, str], dict[str, ScoreRow]](), dict[tuple[str, str], ScoreRow]()
    for row in rows:
        if row.protocol != PRIVATE or len(row.sites) != 1:
            continue
        key = (row.sites[0], row.measure)
        if row.method in FLOORS:
            floors.setdefault(key, row)
        elif math.isfinite(row.value):
            scores.setdefault(key, {})[row.method] = row
    return OwnScores(primary(rows), scores, floors)


def choices(models: Sequence[Model], rows: Sequence[ScoreRow], reference: str, words: Words) -> tuple[Choice, ...]:
    """One choice for each hospital that has models, in their order."""
    own, held = own_scores(rows), dict[str, list[Model]]()
    for model in models:
        held.setdefault(model.site, []).append(model)
    return tuple(_choice(site, found, own, reference, words) for site, found in held.items())


def primary(rows: Sequence[ScoreRow]) -> str:
    """The measure that compares models in words; empty if none is available."""
    held = {row.measure for row in rows}
    return next((name for name in PRIMARY if name in held), "")


def optimism(tables: Mapping[str, Table], sites: Sequence[str], measure: Measure) -> dict[str, float]:
    """How much better the best of all methods at each hospital looks than it is, if it is chosen on the test patients.

    The mean over bootstrap copies of (the copy's winner in the copy - the same method in the sample), as Efron (1983)
    estimates optimism; Tsamardinos et al. (2018) do so for the choice of a method. NaN with fewer than two methods.
    """
    homes = [home(table) for table in tables.values()]
    return {site: _flattered([measure.of(own[site, site]) for own in homes if (site, site) in own]) for site in sites}


def _flattered(found: Sequence[Floats]) -> float:
    if len({len(copies) for copies in found}) != 1 or len(found) < 2:
        return math.nan
    return _optimism(np.stack(found))


def _optimism(values: Floats) -> float:
    """values: (methods, 1 + B), the sample first."""
    usable = values[np.isfinite(values[:, 0])]
    drawn = usable[:, 1:][:, np.isfinite(usable[:, 1:]).all(axis=0)]
    if len(usable) < 2 or not drawn.size:
        return math.nan
    winner = drawn.argmax(axis=0)
    return float((drawn[winner, np.arange(drawn.shape[1])] - usable[winner, 0]).mean())


def _choice(site: str, models: Sequence[Model], own: OwnScores, reference: str, words: Words) -> Choice:
    scored = own.at(site, own.measure)
    filed = [model for model in models if model.file]
    validated = [model for model in filed if math.isfinite(model.loss)]
    tested = [model for model in filed if model.method in scored]
    top = max(scored.values(), key=lambda row: row.value, default=None)
    if validated:
        best, by = min(validated, key=lambda model: model.loss), "validation"
    elif tested:
        best, by = max(tested, key=lambda model: scored[model.method].value), "test"
    else:
        why = (
            "no model of this run is stored as a file in its folder"
            if models and not filed
            else "none was scored there"
        )
        return Choice(site, "", "", "", None, (f"No model can be named: {why}.",), top)
    score = scored.get(best.method)
    other = None if top is None or score is None or top.value <= score.value else top
    said = tuple(sentences(best.method, own, site, score, reference, words))
    return Choice(site, best.method, best.file, "validation" if by == "validation" else "test", score, said, other)


def sentences(
    method: str, own: OwnScores, site: str, score: ScoreRow | None, reference: str, words: Words
) -> list[str]:
    """How good a model is on a hospital's test patients."""
    if score is None:
        return ["It has no score on test patients, so how good it is there is not known."]
    patients = counted(score.patients, "test patient", "test patients")
    said = [f"{score.measure} {number(score.value)}{between(score)} on {patients}."]
    if not score.assessable:
        said.append(f"These are too few patients{', or there is too much noise,' if score.noise else ''} to judge by.")
    said.append(against(score, reference))
    found = {m: own.at(site, m).get(method) for m in (SENSITIVITY.name, SPECIFICITY.name, CALIBRATION.name)}
    sees, spares, off = found.values()
    if sees is not None and spares is not None:
        said.append(
            f"At the threshold 0.5 it finds {_share(sees)} of positive {words.examples} (sensitivity) and leaves "
            f"{_share(spares)} of negative ones unmarked (specificity)."
        )
    if off is not None:
        said.append(f"Its probabilities are off by {number(off.value)} on average (calibration error).")
    return [one for one in said if one]


def against(row: ScoreRow, reference: str) -> str:
    """How a score compares with that of the reference method, as a sentence; empty without a reference."""
    if not reference:
        return ""
    if row.method == reference:
        return "It is the reference, with which the others are compared."
    if not math.isfinite(row.gain) or not math.isfinite(row.gain_low):
        return f"It could not be compared with {reference}."
    gain = f"{signed(row.gain)}, 95 % interval {signed(row.gain_low)} to {signed(row.gain_high)}"
    words = {1: "Better than", -1: "Worse than", 0: "Not distinguishable from"}
    return f"{words[direction(row.gain_low, row.gain_high)]} {reference} ({gain})."


def direction(low: float, high: float) -> int:
    """1 or -1 if an interval lies wholly above or below 0; 0 if it contains 0 or is not known."""
    return 1 if low > 0 else -1 if high < 0 else 0


def between(row: ScoreRow) -> str:
    """An interval in words; empty if there is none."""
    return f" (95 % interval {number(row.low)} to {number(row.high)})" if math.isfinite(row.low) else ""


def _share(row: ScoreRow) -> str:
    return f"{100 * row.value:.0f} %"
