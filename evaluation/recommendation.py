"""The model that a hospital should use, from its validation patients, and what it may expect over its own.

The highest validation score of several models is that of a lucky one. So a measured gain d over the hospital's own
model, with the variance v of a bootstrap of patients, is shrunk as a normal prior asks for:

    g_h ~ N(m, T^2),  m ~ N(0, M^2)           true gains of one model at hospitals h, about a common one
    d_h | g_h ~ N(g_h, v_h)
    m | others ~ N(mu, s^2)                   s^-2 = M^-2 + sum_j 1 / (v_j + T^2),  mu = s^2 sum_j d_j / (v_j + T^2)
    g | d, others ~ N(mu + k (d - mu), k v)   k = (T^2 + s^2) / (T^2 + s^2 + v)

A hospital that gets no gains of other hospitals has no j. A model is recommended in place of the one to stay with if
P(g > 0) is at least `SURE`, and of several the one with the largest expected gain.

The model to stay with is the hospital's own with the highest score, where a *head* (ridge regression, a kernel machine
or a linear model on features that no patient of the run shaped) goes before every network, whatever the scores; without
a head of its own, a head that other hospitals had a part in goes before its own networks. So every network, its own
too, must show a gain over a head: k is small with few patients, so P(g > 0) stays near a half. The hospital's own d is
left out where even chance would put all patients in the right order more often than 1 - SURE, as with three patients it
does (1 of 3). The reason is measured, not tuned: on two real tasks each hospital's own head did as well as networks
that all trained together (docs/results/one-message.md); no constant was added for it, and among heads alone the rule is
as measured.

M, T, `SURE` and `FLIP` were chosen on splits that no table reports (docs/results/recommendation.md); a nested
bootstrap, which chooses on drawn patients and scores on the others, estimates the winner's gain as well, and recommends
fewer models that help.

The measure is the area under the ROC curve, the mean over classes against the rest, over cuts of ordered classes, or
over findings, each where it is known. FLIP is then added as if all findings' ranks were flipped at once: v gains the
square of the mean of FLIP / patients over findings, and `rarest` is the harmonic mean of these patients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.findings import UNKNOWN
from evaluation.histograms import Floats, list_rows

COMMON, SPREAD = 0.03, 0.02  # M and T
SURE = 0.7
FLIP = 0.25  # ranks of a class's patients that a bootstrap of few cannot see: (FLIP / patients)^2 is added to v
COPIES = 400
LEVEL = 0.95


class Validated(NamedTuple):
    """A hospital's validation rows: classes y (n,) and patients (n,), and probabilities (n, C) of each model; of
    numbers places y in the range, and predicted places (n, 1); of findings y (n, K) as in `evaluation.findings`, and a
    probability (n, K) of each. ordered: whether each class is more than the one before.
    """

    y: NDArray[Any]
    patient: NDArray[np.int64]
    probabilities: Mapping[str, Floats]
    ordered: bool = False

    @property
    def are_findings(self) -> bool:
        """Whether several findings are predicted."""
        return np.ndim(self.y) == 2

    @property
    def are_numbers(self) -> bool:
        """Whether numbers are predicted."""
        if self.are_findings:
            return False
        return any(p.shape[1] == 1 for p in self.probabilities.values())


class Gain(NamedTuple):
    """A model's measured gain over a hospital's own, and its variance; NaN and inf if nothing could be measured."""

    value: float
    variance: float


class Sums(NamedTuple):
    """What other hospitals measured of one model: the sums over j of d_j / (v_j + T^2), and of 1 / (v_j + T^2)."""

    weighted: float
    weights: float


@dataclass(frozen=True)
class OtherGains:
    """Gains that a hospital gets from the other hospitals. hospitals: how many sent gains. sums: by model."""

    hospitals: int = 0
    sums: Mapping[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """own: the model to stay with; empty = the hospital has no model of its own. shared: whether other hospitals had a
    part in it. gains: of models that may take its place. networks: whether a head goes before networks here. patients:
    of validation, and of its rarest class that counts.
    """

    own: str
    gains: Mapping[str, Gain]
    patients: int = 0
    rarest: int = 0
    shared: bool = False
    networks: bool = False


@dataclass(frozen=True)
class Recommendation:
    """method: the model to use, own: the one to stay with; they are the same if the hospital should stay. shared,
    networks: as in `Measured`. best: the best of the other models. gain: its expected gain over `own`, with its
    interval; sure: the probability that it is a gain. of: models compared. others: hospitals that sent gains. patients:
    of validation. epsilon: what a patient pays for `method` at this hospital, empty = not known.
    """

    site: str
    method: str
    own: str
    best: str = ""
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan
    sure: float = math.nan
    of: int = 0
    others: int = 0
    patients: int = 0
    epsilon: str = ""
    shared: bool = False
    networks: bool = False

    @property
    def stays(self) -> bool:
        """Whether the hospital should stay with `own`."""
        return self.method == self.own


def measure_gains(
    validated: Validated, own_labels: Sequence[str], heads: Collection[str] = (), *, seed: int, copies: int = COPIES
) -> Measured:
    """Gains of other models over the one to stay with, on the same drawn patients.

    Args:
        own_labels: models that no other hospital had a part in. heads: models on features that no patient of the run
        shaped.
    """
    patient, probabilities = validated.patient, validated.probabilities
    if not any(label in probabilities for label in own_labels):
        return Measured("", {})
    own_heads, simple = (
        [label for label in own_labels if label in probabilities and label in heads],
        [label for label in probabilities if label in heads],
    )
    candidates = own_heads or simple or [label for label in own_labels if label in probabilities]
    weights, number = _draw_weights(patient, copies, seed)
    scores = {label: _draw_scores(validated, p, weights) for label, p in probabilities.items()}
    best = max(candidates, key=lambda label: (np.nan_to_num(scores[label][0], nan=-1.0), -candidates.index(label)))
    rarest = _count_rarest(validated, number)
    other_labels = [label for label in probabilities if label not in candidates]
    gains = {label: _measure_gain(scores[label] - scores[best], rarest) for label in other_labels}
    networks = best in heads and any(label not in heads for label in other_labels)
    return Measured(best, gains, len(np.unique(patient)), rarest, best not in own_labels, networks)


def _draw_scores(validated: Validated, probabilities: Floats, weights: Floats) -> Floats:
    """(1 + copies,) the AUC of a model, of the sample first."""
    if validated.are_findings:
        return _average_drawn_auc(validated.y, probabilities, weights)
    return mean_auc(validated.y, probabilities, weights, ordered=validated.ordered)


def _count_rarest(validated: Validated, number: NDArray[np.int64]) -> int:
    """Patients of the rarest class, 0 of a single one. Of findings the harmonic mean, rounded down, of the patients on
    each one's rarer side, over those with patients on both. number: (n,) of each row's patient.
    """
    if not validated.are_findings:
        sizes = [len(np.unique(number[validated.y == c])) for c in np.unique(validated.y)]
        return min(sizes) if len(sizes) > 1 else 0
    sides = [[len(np.unique(number[states == state])) for state in (0, 1)] for states in validated.y.T]
    rarer = [min(pair) for pair in sides if min(pair)]
    return int(len(rarer) / sum(Fraction(1, patients) for patients in rarer)) if rarer else 0


def score_models(validated: Validated) -> dict[str, float]:
    """The AUC of each model on the validation rows; without those that have none. Of numbers 1 - the mean absolute
    error in shares of the range; of findings the mean of their AUC.
    """
    if validated.are_findings:
        means = {label: _average_auc(validated.y, p) for label, p in validated.probabilities.items()}
        return {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if validated.are_numbers:
        return {label: 1 - float(np.abs(p[:, 0] - validated.y).mean()) for label, p in validated.probabilities.items()}
    weights = np.ones((len(validated.y), 1))
    scores = {
        label: float(mean_auc(validated.y, p, weights, ordered=validated.ordered)[0])
        for label, p in validated.probabilities.items()
    }
    return {label: score for label, score in scores.items() if math.isfinite(score)}


def _measure_gain(drawn: Floats, rarest: int) -> Gain:
    """The gain of a model, with its variance, from differences (1 + copies,). rarest: patients of the rarest class."""
    copies = drawn[1:][np.isfinite(drawn[1:])]
    if not math.isfinite(drawn[0]) or len(copies) < 2 or not rarest:
        return Gain(math.nan, math.inf)
    return Gain(float(drawn[0]), float(copies.var()) + (FLIP / rarest) ** 2)


def sum_other_gains(gains_by_site: Mapping[str, Mapping[str, Gain]], sites: Sequence[str]) -> dict[str, OtherGains]:
    """The sums of all other hospitals' gains, for each of `sites`. gains_by_site: by hospital and model.

    The work is linear in hospitals: each hospital's terms are subtracted from one exact sum, and the result is rounded
    once, as `math.fsum` rounds the sum over the other hospitals.
    """
    terms_by_site = {site: {label: _gain_terms(gain) for label, gain in gains.items() if math.isfinite(gain.variance)}
           for site, gains in gains_by_site.items()}  # fmt: skip
    totals = dict[str, tuple[Fraction, Fraction, int]]()
    for terms in terms_by_site.values():
        for label, (weighted, weights) in terms.items():
            before = totals.get(label, (Fraction(0), Fraction(0), 0))
            totals[label] = (before[0] + weighted, before[1] + weights, before[2] + 1)

    def sums_without(site: str) -> dict[str, Sums]:
        less = {label: terms_by_site.get(site, {}).get(label) for label in totals}
        left = {
            label: (total[0] - own_terms[0], total[1] - own_terms[1], total[2] - 1)
            if (own_terms := less[label])
            else total
            for label, total in totals.items()
        }
        return {label: Sums(float(weighted), float(weights)) for label, (weighted, weights, n) in left.items() if n}

    return {site: OtherGains(len(gains_by_site) - (site in gains_by_site), sums_without(site)) for site in sites}


def _gain_terms(gain: Gain) -> tuple[Fraction, Fraction]:
    """The exact terms of a hospital in the sums over j: d / (v + T^2) and 1 / (v + T^2)."""
    weight = 1 / (gain.variance + SPREAD**2)
    return Fraction(gain.value * weight), Fraction(weight)


def recommend_model(site: str, at_home: Measured, other_gains: OtherGains) -> Recommendation | None:
    """The recommendation of one hospital, from its own gains and those of other hospitals; None without an own model
    or without another to compare it with.
    """
    if not at_home.own or not at_home.gains:
        return None
    telling = 1 / math.comb(at_home.patients, at_home.rarest) <= 1 - SURE
    gains = {label: gain if telling else Gain(math.nan, math.inf) for label, gain in at_home.gains.items()}
    expected = {
        label: _expected_gain(gain, other_gains.sums.get(label, Sums(0.0, 0.0))) for label, gain in gains.items()
    }
    sure = {label: NormalDist().cdf(mean / sd) for label, (mean, sd) in expected.items()}
    good = [label for label in expected if sure[label] >= SURE]
    best = max(good or expected, key=lambda label: expected[label][0])
    (mean, sd), reach = expected[best], NormalDist().inv_cdf((1 + LEVEL) / 2)
    return Recommendation(
        site,
        best if good else at_home.own,
        at_home.own,
        best,
        mean,
        mean - reach * sd,
        mean + reach * sd,
        sure[best],
        len(expected) + 1,
        other_gains.hospitals,
        at_home.patients,
        shared=at_home.shared,
        networks=at_home.networks,
    )


def _expected_gain(gain: Gain, other_sums: Sums) -> tuple[float, float]:
    """Mean and standard deviation of the true gain; see the head of this file."""
    precision = COMMON**-2 + other_sums.weights
    mu, prior = other_sums.weighted / precision, SPREAD**2 + 1 / precision
    if not math.isfinite(gain.variance):
        return mu, math.sqrt(prior)
    k = prior / (prior + gain.variance)
    return mu + k * (gain.value - mu), math.sqrt(k * gain.variance)


def _draw_weights(patient: NDArray[np.int64], copies: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Weights of rows (n, 1 + copies): 1 in the sample, then how often each row's patient was drawn; and the patients'
    numbers.
    """
    known, number = np.unique(patient, return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(known), np.full(len(known), 1 / max(1, len(known))), copies)
    times = np.concatenate([np.ones((1, len(known))), drawn]).T
    weights: Floats = times[number]
    return weights, number


def mean_auc(y: NDArray[np.int64], probabilities: Floats, weights: Floats, *, ordered: bool = False) -> Floats:
    """The mean over classes of the area under the ROC curve of a class against the rest, for each column of weights; of
    ordered classes the mean over the cuts between them.

    Classes that the sample lacks, and cuts with all of it on one side, are left out; of two classes the second alone
    counts. NaN where a class, or a side of a cut, has no weight.

    Args:
        y: (n,). probabilities: (n, C). weights: (n, B).
    """
    scores, holds = list_rows(y, probabilities, ordered=ordered)
    present = [k for k, row in enumerate(holds.T) if 0 < int(row.sum()) < len(y)]
    if not present:
        return np.full(weights.shape[1], math.nan)
    mean: Floats = np.mean([_weighted_auc(holds[:, k] == 1, scores[:, k], weights) for k in present], axis=0)
    return mean


def _average_auc(states: NDArray[Any], probabilities: Floats) -> float:
    """The mean AUC of the findings that some rows have and others do not, each on the rows where it is known; NaN
    without such findings. states, probabilities: (n, K).
    """
    return float(_average_drawn_auc(states, probabilities, np.ones((len(states), 1)))[0])


def _average_drawn_auc(states: NDArray[Any], probabilities: Floats, weights: Floats) -> Floats:
    """As `_average_auc`, for each column of weights (n, B); a finding that has no weight on one side of a column is
    left out of its mean, and a column without any is NaN.
    """
    each = []
    for column, scores in zip(states.T, probabilities.T, strict=True):
        known = column != UNKNOWN
        if len(np.unique(column[known])) > 1:
            each.append(_weighted_auc(column[known] == 1, scores[known], weights[known]))
    if not each:
        return np.full(weights.shape[1], math.nan)
    drawn = np.stack(each)
    is_known = np.isfinite(drawn)
    total = np.where(is_known, drawn, 0).sum(axis=0)
    return np.asarray(np.where(is_known.any(axis=0), total / np.maximum(is_known.sum(axis=0), 1), math.nan))


def _weighted_auc(positive: NDArray[np.bool_], score: Floats, weights: Floats) -> Floats:
    """Weighted area under the ROC curve (B,): pairs in the right order, and half of the ties."""
    order = np.argsort(score, kind="stable")
    ranked, sorted_weights, positive = score[order], weights[order], positive[order, None]
    below = np.concatenate([np.zeros((1, sorted_weights.shape[1])), np.cumsum(sorted_weights * ~positive, axis=0)])
    first, last = np.searchsorted(ranked, ranked, "left"), np.searchsorted(ranked, ranked, "right")
    pairs = (sorted_weights * positive * (below[first] + below[last]) / 2).sum(axis=0)
    every = (sorted_weights * positive).sum(axis=0) * (sorted_weights * ~positive).sum(axis=0)
    return np.asarray(np.where(every > 0, pairs / np.where(every > 0, every, 1), math.nan))
