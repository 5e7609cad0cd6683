"""Which model each hospital should use, how certain that is, and how much the choice biases the score.

`evaluation.recommendation` goes before. Where it says nothing, a model is chosen by its loss on the hospital's
validation patients, so that its score on test patients is not that of a winner on them. If a run has no validation
loss, the highest score on the test patients decides, and the page says by how much that score is too high. Only a model
that is stored as a file in the hospital's folder can be chosen. A model that does no better than guessing on enough
test patients is withdrawn, and the next by the same criteria takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evaluation.decision import By, Decision
from evaluation.histograms import Floats
from evaluation.metrics import AUC, CALIBRATION, SENSITIVITY, SPECIFICITY, Measure
from evaluation.overlap import DICE
from evaluation.protocols import Table, home
from evaluation.recommendation import Recommendation
from evaluation.recommended_words import in_words
from evaluation.records import Model
from evaluation.rows import FLOORS, PRIVATE, ScoreRow
from evaluation.wording import Words, counted, listed, number, signed

SAME = "the same prediction for every patient"
ONE_CLASS = "its test patients have one class only"
NO_STRUCTURE = "none of its test patients has what is to be found"
PRIMARY = (AUC.name, DICE.name)
"""Measures that compare models in words: the first one that is available."""


@dataclass(frozen=True)
class Choice:
    """A decision in words. method: empty if none can be named, and where the hospital did not tell (`final` False).
    file: where the hospital finds it. score: on its test patients, None = not scored. said: how good it is, in
    sentences. top: the row with the highest score there, if it is another one.
    """

    site: str
    method: str
    file: str
    by: By
    score: ScoreRow | None
    said: tuple[str, ...]
    top: ScoreRow | None = None
    final: bool = True

    @property
    def named(self) -> str:
        """The model, or why there is none, in a few words."""
        return self.method or ("none" if self.final else "see its own page")


@dataclass(frozen=True)
class OwnScores:
    """Scores of hospitals' own models on their own test patients, sorted once: there can be a thousand hospitals.

    measure: that compares models in words; empty if none is available. scores: of methods by (site, measure), without
    baselines and missing values; floors: the baseline by (site, measure). alike: hospitals whose counted test patients
    give no method a value of `measure`, since there is nothing to tell apart, and the words for it.
    """

    measure: str
    scores: Mapping[tuple[str, str], Mapping[str, ScoreRow]]
    floors: Mapping[tuple[str, str], ScoreRow]
    alike: Mapping[str, str] = field(default_factory=dict)

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
    measure = primary(rows)
    held = [row for row in rows if row.protocol == PRIVATE and row.measure == measure and row.method not in FLOORS]
    alike = {row.sites[0]: why for row in held if (why := _without_contrast(row))}
    return OwnScores(
        measure, scores, floors, {site: why for site, why in alike.items() if (site, measure) not in scores}
    )


def _without_contrast(row: ScoreRow) -> str:
    """Why test patients can tell no model from another; empty if they can, or their counts are noised."""
    if math.isfinite(row.value) or row.noise or (row.positives and row.negatives):
        return ""
    return ONE_CLASS if row.measure == AUC.name else NO_STRUCTURE if not row.positive_patients else ""


def decisions(
    models: Sequence[Model], rows: Sequence[ScoreRow], recommended: Sequence[Recommendation] = ()
) -> tuple[Decision, ...]:
    """One decision for each hospital that has models, in their order."""
    own, told, held = own_scores(rows), {one.site: one for one in recommended}, dict[str, list[Model]]()
    for model in models:
        held.setdefault(model.site, []).append(model)
    return tuple(_decision(site, found, own, told.get(site)) for site, found in held.items())


def choices(
    decided: Sequence[Decision], models: Sequence[Model], rows: Sequence[ScoreRow], reference: str, words: Words
) -> tuple[Choice, ...]:
    """Decisions in words, with the scores that are known here."""
    own, held = own_scores(rows), dict[str, list[Model]]()
    for model in models:
        held.setdefault(model.site, []).append(model)
    return tuple(_in_words(one, held.get(one.site, []), own, reference, words) for one in decided)


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


def _decision(site: str, models: Sequence[Model], own: OwnScores, recommendation: Recommendation | None) -> Decision:
    if site in own.alike:
        return Decision(site, "", "", (), recommendation)
    scored, ranked = own.at(site, own.measure), _ranked(site, models, own, recommendation)
    better = [method for method, _ in ranked if method in scored and is_better(scored[method], own)]
    withdrawn: list[str] = []
    for method, by in ranked:
        if not withdrawn and not (method in scored and _is_ruled_out(scored[method], own, better)):
            return Decision(site, method, by, (), recommendation)
        if method in better:
            return Decision(site, method, by, tuple(withdrawn), recommendation)
        withdrawn += [method] if method in scored else []
    return Decision(site, "", "", tuple(withdrawn), recommendation)


def _ranked(
    site: str, models: Sequence[Model], own: OwnScores, recommendation: Recommendation | None
) -> list[tuple[str, By]]:
    """The models that a hospital can use, the first to be named first, with what names each."""
    filed = {model.method: model for model in models if model.file and not model.ended}
    found: dict[str, By] = {}
    if recommendation is not None and recommendation.method in filed:
        found[recommendation.method] = "recommended"
    validated = sorted((one for one in filed.values() if math.isfinite(one.loss)), key=lambda one: one.loss)
    scored = own.at(site, own.measure)
    tested = sorted((scored[one] for one in filed if one in scored), key=lambda row: row.value, reverse=True)
    for one in validated:
        found.setdefault(one.method, "validation")
    for row in tested:
        found.setdefault(row.method, "test")
    return [*found.items()]


def _is_ruled_out(row: ScoreRow, own: OwnScores, better: Sequence[str]) -> bool:
    """Whether test patients withdraw a model. better: that can be used and do better than guessing on them.

    Few patients withdraw none, unless it says the same of each of them and another does not.
    """
    why = guess(row, own)
    return bool(why) and (row.assessable or (bool(better) and why == SAME))


def is_better(row: ScoreRow, held: OwnScores) -> bool:
    """Whether a method is shown to do better than guessing: an area with its interval, an overlap by itself."""
    return not guess(row, held) and (row.measure != AUC.name or math.isfinite(row.low))


def guess(row: ScoreRow, held: OwnScores) -> str:
    """Why a method does no better at a hospital than a predictor that ignores the patient; empty if it does better."""
    site = row.sites[0]
    if row.measure == AUC.name:
        sees, spares = (held.at(site, name).get(row.method) for name in (SENSITIVITY.name, SPECIFICITY.name))
        if sees is not None and spares is not None and {sees.value, spares.value} == {0.0, 1.0}:
            return SAME
        return f"{AUC.name} {number(row.value)}{between(row)}" if row.low <= 0.5 else ""
    floor = held.floors.get((site, row.measure))
    if floor is not None and math.isfinite(floor.value) and row.value <= floor.value:
        return f"{row.measure} {number(row.value)}, and {number(floor.value)} for the {floor.method}"
    return ""


def _in_words(one: Decision, models: Sequence[Model], own: OwnScores, reference: str, words: Words) -> Choice:
    """A decision in words, with the scores that are known here."""
    scored = own.at(one.site, own.measure)
    whole = {method: row for method, row in scored.items() if method not in {m.method for m in models if m.ended}}
    top = max(whole.values(), key=lambda row: row.value, default=None)
    gone = listed([f"{m} ({guess(scored[m], own)})" if m in scored else m for m in one.withdrawn])
    if not one.method:
        none = _none(one, models, gone, own.alike.get(one.site, ""))
        return Choice(one.site, "", "", "", None, (none, *_above(one, whole, own)), top, one.final)
    score = scored.get(one.method)
    other = None if top is None or score is None or top.value <= score.value else top
    said = [
        f"In place of {gone}, which did no better than guessing on the test patients: these had a part in the choice, "
        "so this score flatters it a little."
    ] * bool(gone)
    if one.by == "recommended" and one.recommendation is not None:
        said += in_words(one.recommendation)
    said += sentences(one.method, own, one.site, score, reference, words)
    if score is not None and guess(score, own):
        said += _above(one, whole, own)
    if not one.final:
        before = f"Its own page decides, by exact scores and with models that it keeps to itself. Here: {one.method}."
        return Choice(one.site, "", "", "", score, (before, *said), other, False)
    file = next((model.file for model in models if model.method == one.method), "")
    return Choice(one.site, one.method, file, one.by, score, tuple(said), other)


def _none(one: Decision, models: Sequence[Model], gone: str, alike: str) -> str:
    if alike:
        return f"No model can be recommended: {alike}, so nothing can be assessed there."
    does = "does" if len(one.withdrawn) == 1 else "do"
    guessing = f"{gone} {does} no better than guessing on the test patients"
    if not one.final:
        before = "Its own page decides, by exact scores and with models that it keeps to itself."
        return f"{before} Here none: {guessing}." if gone else before
    if gone:
        return f"No model can be recommended: {guessing}."
    if any(model.ended for model in models):
        return "No model can be named: of none was the training whole."
    filed = any(model.file for model in models)
    why = "none was scored there" if filed else "no model of this run is stored as a file in its folder"
    return f"No model can be named: {why}."


def _above(one: Decision, scored: Mapping[str, ScoreRow], own: OwnScores) -> list[str]:
    """The methods that do better than guessing where the decision names none, or one that does not."""
    found = [f"{method} ({row.measure} {number(row.value)}{between(row)})" for method, row in scored.items()
             if method != one.method and is_better(row, own)]  # fmt: skip
    return [f"Better than guessing on the same patients: {listed(found)}."] if found else []


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
