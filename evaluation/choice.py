"""Which model each hospital should use, how certain that is, and how much the choice biases the score.

A recommendation (`evaluation.recommendation`) comes first. Without one, a model is chosen by its loss on the hospital's
validation patients, so that its score on test patients is not that of a winner on them. If a run has no validation
loss, the highest score on the test patients decides, and the page says by how much that score is too high. Only a model
that is stored as a file in the hospital's folder can be chosen. A model that does no better than guessing on enough
test patients is withdrawn, and the next by the same criteria takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from evaluation.decision import By, Decision, Rival
from evaluation.histograms import Floats
from evaluation.metrics import AUC, CALIBRATION, SENSITIVITY, SPECIFICITY, Measure
from evaluation.numbers import MAE
from evaluation.overlap import DICE
from evaluation.protocols import Table, own_model_table
from evaluation.recommendation import Recommendation
from evaluation.recommended_words import describe_recommendation
from evaluation.records import Model
from evaluation.rows import FLOORS, PRIVATE, ScoreRow, rank_value
from evaluation.wording import Words, format_count, format_list, format_number, format_signed

SAME_ANSWER = "the same answer at the threshold 0.5 for every patient"
ONE_CLASS = "its test patients have one class only"
NO_STRUCTURE = "none of its test patients has what is to be found"
PRIMARY = (AUC.name, DICE.name, MAE)
"""Measures that compare models in words: the first one that is available."""


@dataclass(frozen=True)
class Choice:
    """A decision in words. method: empty if no model can be named, or if the hospital did not send its decision
    (`final` False). file: where the hospital finds the model. score: on its test patients, None = not scored. said: why
    this model, and how good it is, in sentences; standing: those of them that a reader must not miss. top: the row with
    the highest score at the hospital, if it is of another model. withdrew: whether it is in the place of a model that
    test patients withdrew.
    """

    site: str
    method: str
    file: str
    by: By
    score: ScoreRow | None
    said: tuple[str, ...]
    top: ScoreRow | None = None
    final: bool = True
    standing: tuple[str, ...] = ()
    withdrew: bool = False

    @property
    def named(self) -> str:
        """The model, or in a few words why there is no model."""
        return self.method or ("none" if self.final else "see its own page")


@dataclass(frozen=True)
class OwnScores:
    """Scores of hospitals' own models on their own test patients, sorted once: there can be a thousand hospitals.

    measure: that compares models in words; empty if none is available. scores: of methods by (site, measure), without
    baselines and missing values; floors: the baseline by (site, measure). alike: hospital -> why its counted test
    patients give no method a value of `measure`, for instance because all of them have one class.
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
    measure = primary_measure(rows)
    own_rows = [row for row in rows if row.protocol == PRIVATE and row.measure == measure and row.method not in FLOORS]
    reasons = {row.sites[0]: why for row in own_rows if (why := _without_contrast(row))}
    return OwnScores(
        measure, scores, floors, {site: why for site, why in reasons.items() if (site, measure) not in scores}
    )


def _without_contrast(row: ScoreRow) -> str:
    """Why no model can be scored on these test patients; empty if models can be, or if the counts are noised."""
    if math.isfinite(row.value) or row.noise or (row.positives and row.negatives):
        return ""
    return ONE_CLASS if row.measure == AUC.name else NO_STRUCTURE if not row.positive_patients else ""


def make_decisions(
    models: Sequence[Model], rows: Sequence[ScoreRow], recommended: Sequence[Recommendation] = ()
) -> tuple[Decision, ...]:
    """One decision for each hospital that has models, in their order."""
    site_scores, recommendations, models_by_site = (
        own_scores(rows),
        {recommendation.site: recommendation for recommendation in recommended},
        dict[str, list[Model]](),
    )
    for model in models:
        models_by_site.setdefault(model.site, []).append(model)
    return tuple(
        _make_decision(site, site_models, site_scores, recommendations.get(site))
        for site, site_models in models_by_site.items()
    )


def describe_decisions(
    decided: Sequence[Decision],
    models: Sequence[Model],
    rows: Sequence[ScoreRow],
    reference: str,
    words: Words,
    rivals: Mapping[str, Rival] = MappingProxyType({}),
) -> tuple[Choice, ...]:
    """Decisions in words, with the scores in the rows. rivals: of `evaluation.rivals.find_rivals`."""
    site_scores, models_by_site = own_scores(rows), dict[str, list[Model]]()
    for model in models:
        models_by_site.setdefault(model.site, []).append(model)
    return tuple(
        _describe_decision(
            decision, models_by_site.get(decision.site, []), site_scores, reference, words, rivals.get(decision.site)
        )
        for decision in decided
    )


def primary_measure(rows: Sequence[ScoreRow]) -> str:
    """The measure that compares models in words; empty if none is available."""
    measures = {row.measure for row in rows}
    return next((name for name in PRIMARY if name in measures), "")


def select_primary(measures: Sequence[Measure]) -> Measure:
    """Of a run's measures the one that compares models."""
    return next(measure for measure in measures if measure.name in PRIMARY)


def compute_optimism(tables: Mapping[str, Table], sites: Sequence[str], measure: Measure) -> dict[str, float]:
    """How much better the best of all methods at each hospital looks than it is, if it is chosen on the test patients.

    The mean over bootstrap copies of (the copy's winner in the copy - the same method in the sample), as Efron (1983)
    estimates optimism; Tsamardinos et al. (2018) do so for the choice of a method. NaN with fewer than two methods.
    """
    own_tables = [own_model_table(table) for table in tables.values()]
    sign = 1 if measure.higher_is_better else -1
    return {
        site: _site_optimism([sign * measure.of(table[site, site]) for table in own_tables if (site, site) in table])
        for site in sites
    }


def _site_optimism(values: Sequence[Floats]) -> float:
    """The optimism at one hospital; NaN with fewer than two methods or unequal numbers of copies."""
    if len({len(copies) for copies in values}) != 1 or len(values) < 2:
        return math.nan
    return _bootstrap_optimism(np.stack(values))


def _bootstrap_optimism(values: Floats) -> float:
    """values: (methods, 1 + B), the sample first."""
    usable = values[np.isfinite(values[:, 0])]
    drawn = usable[:, 1:][:, np.isfinite(usable[:, 1:]).all(axis=0)]
    if len(usable) < 2 or not drawn.size:
        return math.nan
    winner = drawn.argmax(axis=0)
    return float((drawn[winner, np.arange(drawn.shape[1])] - usable[winner, 0]).mean())


def _make_decision(
    site: str, models: Sequence[Model], site_scores: OwnScores, recommendation: Recommendation | None
) -> Decision:
    """The first usable model that the test patients do not rule out, with the models that they withdraw."""
    if site in site_scores.alike:
        return Decision(site, "", "", (), recommendation)
    scored, ranked = (
        site_scores.at(site, site_scores.measure),
        _rank_usable_models(site, models, site_scores, recommendation),
    )
    better = [method for method, _ in ranked if method in scored and is_better(scored[method], site_scores)]
    withdrawn: list[str] = []
    for method, by in ranked:
        if not withdrawn and not (method in scored and _is_ruled_out(scored[method], site_scores, better)):
            return Decision(site, method, by, (), recommendation)
        if method in better:
            return Decision(site, method, by, tuple(withdrawn), recommendation)
        withdrawn += [method] if method in scored else []
    return Decision(site, "", "", tuple(withdrawn), recommendation)


def _rank_usable_models(
    site: str, models: Sequence[Model], site_scores: OwnScores, recommendation: Recommendation | None
) -> list[tuple[str, By]]:
    """The models that a hospital can use, the best choice first, each with the criterion that ranks it."""
    filed = {model.method: model for model in models if model.file and not model.ended}
    ranking: dict[str, By] = {}
    if recommendation is not None and recommendation.method in filed:
        ranking[recommendation.method] = "recommended"
    validated = sorted((model for model in filed.values() if math.isfinite(model.loss)), key=lambda model: model.loss)
    scored = site_scores.at(site, site_scores.measure)
    tested = sorted((scored[method] for method in filed if method in scored), key=rank_value, reverse=True)
    for model in validated:
        ranking.setdefault(model.method, "validation")
    for row in tested:
        ranking.setdefault(row.method, "test")
    return [*ranking.items()]


def _is_ruled_out(row: ScoreRow, site_scores: OwnScores, better: Sequence[str]) -> bool:
    """Whether the test patients rule out a model; too few of them rule out only a model that answers all
    of them alike, while another model does better. better: usable models that do better than guessing.
    """
    if not describe_guessing(row, site_scores):
        return False
    return row.assessable or (bool(better) and is_alike(row, site_scores))


def is_better(row: ScoreRow, site_scores: OwnScores) -> bool:
    """Whether a method is shown to do better than guessing: an AUC by its interval, a Dice by its value. One that
    answers all alike is not, as it takes no other model's place.
    """
    if row.measure == AUC.name and (is_alike(row, site_scores) or not math.isfinite(row.low)):
        return False
    return not describe_guessing(row, site_scores)


def is_alike(row: ScoreRow, site_scores: OwnScores) -> bool:
    """Whether a method puts all of a hospital's test patients on one side of the threshold 0.5. Its AUC can be a good
    one still: that needs another threshold.
    """
    rows = [site_scores.at(row.sites[0], name).get(row.method) for name in (SENSITIVITY.name, SPECIFICITY.name)]
    return row.measure == AUC.name and {each.value for each in rows if each is not None} == {0.0, 1.0}


def describe_guessing(row: ScoreRow, site_scores: OwnScores) -> str:
    """Why a method does no better at a hospital than a predictor that ignores the patient; empty if it does better."""
    if row.measure == AUC.name:
        low, is_same = row.widest[0], is_alike(row, site_scores)
        if low > 0.5 or not (low <= 0.5 or is_same):  # without an interval
            return ""
        auc = f"{AUC.name} {format_number(row.value)}{format_interval(row)}"
        return f"{SAME_ANSWER}, {auc}" if is_same else auc
    floor = site_scores.floors.get((row.sites[0], row.measure))
    if floor is not None and math.isfinite(floor.value) and rank_value(row) <= rank_value(floor):
        return f"{row.measure} {format_number(row.value)}, and {format_number(floor.value)} for the {floor.method}"
    return ""


def _describe_decision(
    decision: Decision,
    models: Sequence[Model],
    site_scores: OwnScores,
    reference: str,
    words: Words,
    rival: Rival | None,
) -> Choice:
    """A decision in words, with the scores of its hospital. rival: a model that does better on its test patients."""
    scored = site_scores.at(decision.site, site_scores.measure)
    finished_rows = {
        method: row for method, row in scored.items() if method not in {m.method for m in models if m.ended}
    }
    top = max(finished_rows.values(), key=rank_value, default=None)
    gone = format_list(
        [f"{m} ({describe_guessing(scored[m], site_scores)})" if m in scored else m for m in decision.withdrawn]
    )
    if not decision.method:
        reason = _describe_missing_choice(decision, models, gone, site_scores.alike.get(decision.site, ""))
        return Choice(
            decision.site,
            "",
            "",
            "",
            None,
            (reason, *_describe_better_methods(decision, finished_rows, site_scores)),
            top,
            decision.final,
        )
    score = scored.get(decision.method)
    other = None if top is None or score is None or rank_value(top) <= rank_value(score) else top
    texts = [
        f"In place of {gone}, which did no better than guessing on the test patients: these had a part in the choice, "
        "so this score flatters it a little."
    ] * bool(gone)
    if decision.by == "recommended" and decision.recommendation is not None:
        texts += describe_recommendation(decision.recommendation)
    texts += describe_score(decision.method, site_scores, decision.site, score, reference, words)
    if score is not None and describe_guessing(score, site_scores):
        texts += _describe_better_methods(decision, finished_rows, site_scores)
    if not decision.final:
        before = (
            f"Its own page decides, by exact scores and with models that it keeps to itself. Here: {decision.method}."
        )
        return Choice(decision.site, "", "", "", score, (before, *texts), other, False)
    file = next((model.file for model in models if model.method == decision.method), "")
    standing = [] if score is None else _describe_standing(score, site_scores, words)
    standing += [] if rival is None else [_describe_rival(rival, site_scores.measure)]
    texts += standing[-1:] if rival else []
    return Choice(
        *(decision.site, decision.method, file, decision.by, score, tuple(texts), other),
        standing=tuple(standing),
        withdrew=bool(gone),
    )


def _describe_rival(rival: Rival, measure: str) -> str:
    """That the test patients show another model to be better, and why that does not change the decision."""
    models = "" if rival.of == 1 else f", of {rival.of} models compared with it at once"
    return (
        f"On the same test patients {rival.method} is better by {format_number(rival.gain)} in {measure} (95 % "
        f"interval {format_number(rival.low)} to {format_number(rival.high)}{models}). The choice stands, as test "
        "patients would flatter a model that they had chosen; compare both on new patients."
    )


def _describe_missing_choice(decision: Decision, models: Sequence[Model], gone: str, reason: str) -> str:
    """Why a decision names no model, in a sentence or two."""
    if reason:
        return f"No model can be recommended: {reason}, so nothing can be assessed there."
    does = "does" if len(decision.withdrawn) == 1 else "do"
    guessing = f"{gone} {does} no better than guessing on the test patients"
    if not decision.final:
        before = "Its own page decides, by exact scores and with models that it keeps to itself."
        return f"{before} Here none: {guessing}." if gone else before
    if gone:
        return f"No model can be recommended: {guessing}."
    if any(model.ended for model in models):
        return "No model can be named: of none was the training whole."
    filed = any(model.file for model in models)
    why = "none was scored there" if filed else "no model of this run is stored as a file in its folder"
    return f"No model can be named: {why}."


def _describe_better_methods(decision: Decision, scored: Mapping[str, ScoreRow], site_scores: OwnScores) -> list[str]:
    """A sentence on the methods that do better than guessing, for decisions that name no such method."""
    better_methods = [
        f"{method} ({row.measure} {format_number(row.value)}{format_interval(row)})"
        for method, row in scored.items()
        if method != decision.method and is_better(row, site_scores)
    ]
    return [f"Better than guessing on the same patients: {format_list(better_methods)}."] if better_methods else []


def describe_score(
    method: str, site_scores: OwnScores, site: str, score: ScoreRow | None, reference: str, words: Words
) -> list[str]:
    """How good a model is on a hospital's test patients."""
    if score is None:
        return ["It has no score on test patients, so how good it is there is not known."]
    texts = [*_describe_standing(score, site_scores, words), describe_gain(score, reference)]
    rows_by_measure = {
        m: site_scores.at(site, m).get(method) for m in (SENSITIVITY.name, SPECIFICITY.name, CALIBRATION.name)
    }
    sees, spares, off = rows_by_measure.values()
    if sees is not None and spares is not None:
        texts.append(
            f"At the threshold 0.5 it finds {_format_percent(sees)} of positive {words.examples} (sensitivity) and "
            f"leaves {_format_percent(spares)} of negative ones unmarked (specificity)."
        )
    if off is not None:
        texts.append(f"Its probabilities are off by {format_number(off.value)} on average (calibration error).")
    return [text for text in texts if text]


def _describe_standing(score: ScoreRow, site_scores: OwnScores, words: Words) -> list[str]:
    """A model's score on a hospital's test patients, whether these are enough to judge by, and whether it answers all
    of them alike.
    """
    patients = format_count(score.patients, "test patient", "test patients")
    unit = f" {words.unit}" if words.unit else ""
    texts = [f"{score.measure} {format_number(score.value)}{unit}{format_interval(score)} on {patients}."]
    if not score.assessable:
        texts.append(f"These are too few patients{', or there is too much noise,' if score.noise else ''} to judge by.")
    if is_alike(score, site_scores):
        texts.append("At the threshold 0.5 its answer is the same for all of them: it needs another one before use.")
    return texts


def describe_gain(row: ScoreRow, reference: str) -> str:
    """How a score compares with that of the reference method, as a sentence; empty without a reference."""
    if not reference:
        return ""
    if row.method == reference:
        return "It is the reference, with which the others are compared."
    low, high = row.widest_gain
    if not math.isfinite(row.gain) or not math.isfinite(low):
        return f"It could not be compared with {reference}."
    gain = f"{format_signed(row.gain)}, 95 % interval {format_signed(low)} to {format_signed(high)}"
    words = {1: "Better than", -1: "Worse than", 0: "Not distinguishable from"}
    return f"{words[interval_sign(low, high)]} {reference} ({gain})."


def interval_sign(low: float, high: float) -> int:
    """1 or -1 if an interval lies wholly above or below 0; 0 if it contains 0 or is not known."""
    return 1 if low > 0 else -1 if high < 0 else 0


def format_interval(row: ScoreRow) -> str:
    """An interval in words; empty if there is none."""
    low, high = row.widest
    return f" (95 % interval {format_number(low)} to {format_number(high)})" if math.isfinite(low) else ""


def _format_percent(row: ScoreRow) -> str:
    """The value of a row in percent."""
    return f"{100 * row.value:.0f} %"
