"""The model that a hospital should use, from its validation patients, and what it may expect over its own.

The highest validation score of several models is that of a lucky one. So a measured gain d over the hospital's own
model, with the variance v of a bootstrap of patients, is shrunk as a normal prior asks for:

    g_h ~ N(m, T^2),  m ~ N(0, M^2)           true gains of one model at hospitals h, about a common one
    d_h | g_h ~ N(g_h, v_h)
    m | others ~ N(mu, s^2)                   s^-2 = M^-2 + sum_j 1 / (v_j + T^2),  mu = s^2 sum_j d_j / (v_j + T^2)
    g | d, others ~ N(mu + k (d - mu), k v)   k = (T^2 + s^2) / (T^2 + s^2 + v)

Where a hospital does not hear of the others there is no j. A model is recommended in place of the one to stay with if
P(g > 0) is at least `SURE`, and of several the one with the largest expected gain.

The model to stay with is the hospital's own with the highest score, where a *head* (ridge regression, a kernel machine
or a linear model on features that no patient of the run shaped) goes before every network, whatever the scores; without
a head of its own, a head that others had a part in goes before its own networks. So every network, its own too, must
show a gain over a head: k is small with few patients, so P(g > 0) stays near a half. The own d is left out where even
chance would put all patients in the right order more often than 1 - SURE, as with three patients it does (1 of 3).
The reason is measured, not tuned: on two real tasks each hospital's own head did as well as networks that all trained
together (docs/results/one-message.md); no constant was added for it, and among heads alone the rule is as measured.

M, T, `SURE` and `FLIP` were chosen on splits that no table reports (docs/results/recommendation.md); a nested
bootstrap, which chooses on drawn patients and scores on the others, estimates the winner's gain as well, and recommends
fewer models that help.

The measure is the area under the ROC curve, the mean over classes against the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from evaluation.histograms import Floats

COMMON, SPREAD = 0.03, 0.02  # M and T
SURE = 0.7
FLIP = 0.25  # ranks of a class's patients that a bootstrap of few cannot see: (FLIP / patients)^2 is added to v
COPIES = 400
LEVEL = 0.95


class Validated(NamedTuple):
    """A hospital's validation rows: classes y (n,) and patients (n,), and probabilities (n, C) of each model."""

    y: NDArray[np.int64]
    patient: NDArray[np.int64]
    probabilities: Mapping[str, Floats]


class Gain(NamedTuple):
    """A model's measured gain over a hospital's own, and its variance; NaN and inf if nothing could be measured."""

    value: float
    variance: float


class Sums(NamedTuple):
    """What other hospitals measured of one model: the sums over j of d_j / (v_j + T^2), and of 1 / (v_j + T^2)."""

    weighted: float
    weights: float


@dataclass(frozen=True)
class Heard:
    """What a hospital hears of the others. hospitals: how many told gains. sums: by model."""

    hospitals: int = 0
    sums: Mapping[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """own: the model to stay with; empty = the hospital has none of its own. shared: whether others had a part in it.
    gains: of models that may take its place. networks: whether a head goes before networks here. patients: of
    validation, and of its rarest class that counts.
    """

    own: str
    gains: Mapping[str, Gain]
    patients: int = 0
    rarest: int = 0
    shared: bool = False
    networks: bool = False


@dataclass(frozen=True)
class Recommendation:
    """method: the model to use, own: the one to stay with; they are the same where the hospital should. shared,
    networks: as in `Measured`. gain: what is expected of the best of the others over `own`, of which `best` is the
    name, with its interval; sure: the probability that it is a gain. of: models compared. others: hospitals from which
    gains were heard. patients: of validation. epsilon: what a patient pays for `method` at this hospital, empty = not
    known.
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


def measured(
    validated: Validated, own: Sequence[str], heads: Collection[str] = (), *, seed: int, copies: int = COPIES
) -> Measured:
    """Gains of other models over the one to stay with, on the same drawn patients.

    Args:
        own: models that no other hospital had a part in. heads: of all, those on features that nobody of the run
        shaped.
    """
    y, patient, found = validated
    if not any(label in found for label in own):
        return Measured("", {})
    own_heads, simple = [one for one in own if one in found and one in heads], [one for one in found if one in heads]
    held = own_heads or simple or [one for one in own if one in found]
    weights, number = _draws(patient, copies, seed)
    sizes = [len(np.unique(number[y == c])) for c in np.unique(y)]
    scores = {label: mean_auc(y, p, weights) for label, p in found.items()}  # (1 + copies,), the sample first
    best = max(held, key=lambda label: (np.nan_to_num(scores[label][0], nan=-1.0), -held.index(label)))
    few = min(sizes) if len(sizes) > 1 else 0
    others = [label for label in found if label not in held]
    gains = {label: _gain(scores[label] - scores[best], few) for label in others}
    networks = best in heads and any(label not in heads for label in others)
    return Measured(best, gains, len(np.unique(patient)), few, best not in own, networks)


def _gain(drawn: Floats, few: int) -> Gain:
    copies = drawn[1:][np.isfinite(drawn[1:])]
    if not math.isfinite(drawn[0]) or len(copies) < 2 or not few:
        return Gain(math.nan, math.inf)
    return Gain(float(drawn[0]), float(copies.var()) + (FLIP / few) ** 2)


def heard(told: Mapping[str, Mapping[str, Gain]], sites: Sequence[str]) -> dict[str, Heard]:
    """What each of `sites` hears of all others. told: gains by hospital and model.

    The work is linear in hospitals: each is taken out of one exact sum, whose value is rounded once, as `math.fsum`
    rounds that of the others alone.
    """
    own = {site: {label: _terms(gain) for label, gain in gains.items() if math.isfinite(gain.variance)}
           for site, gains in told.items()}  # fmt: skip
    whole = dict[str, tuple[Fraction, Fraction, int]]()
    for terms in own.values():
        for label, (weighted, weights) in terms.items():
            before = whole.get(label, (Fraction(0), Fraction(0), 0))
            whole[label] = (before[0] + weighted, before[1] + weights, before[2] + 1)

    def without(site: str) -> dict[str, Sums]:
        less = {label: own.get(site, {}).get(label) for label in whole}
        left = {label: (total[0] - one[0], total[1] - one[1], total[2] - 1) if (one := less[label]) else total
                for label, total in whole.items()}  # fmt: skip
        return {label: Sums(float(weighted), float(weights)) for label, (weighted, weights, n) in left.items() if n}

    return {site: Heard(len(told) - (site in told), without(site)) for site in sites}


def _terms(gain: Gain) -> tuple[Fraction, Fraction]:
    weight = 1 / (gain.variance + SPREAD**2)
    return Fraction(gain.value * weight), Fraction(weight)


def recommended(site: str, at_home: Measured, others: Heard) -> Recommendation | None:
    """The recommendation of one hospital, from its own gains and those of other hospitals; None without an own model
    or without another to compare it with.
    """
    if not at_home.own or not at_home.gains:
        return None
    telling = 1 / math.comb(at_home.patients, at_home.rarest) <= 1 - SURE
    gains = {label: gain if telling else Gain(math.nan, math.inf) for label, gain in at_home.gains.items()}
    expected = {label: _expected(gain, others.sums.get(label, Sums(0.0, 0.0))) for label, gain in gains.items()}
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
        others.hospitals,
        at_home.patients,
        shared=at_home.shared,
        networks=at_home.networks,
    )


def _expected(own: Gain, others: Sums) -> tuple[float, float]:
    """Mean and standard deviation of the true gain; see the head of this file."""
    precision = COMMON**-2 + others.weights
    mu, prior = others.weighted / precision, SPREAD**2 + 1 / precision
    if not math.isfinite(own.variance):
        return mu, math.sqrt(prior)
    k = prior / (prior + own.variance)
    return mu + k * (own.value - mu), math.sqrt(k * own.variance)


def _draws(patient: NDArray[np.int64], copies: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Weights of rows (n, 1 + copies): 1 in the sample, then how often each row's patient was drawn; and the patients'
    numbers.
    """
    known, number = np.unique(patient, return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(known), np.full(len(known), 1 / max(1, len(known))), copies)
    times = np.concatenate([np.ones((1, len(known))), drawn]).T
    found: Floats = times[number]
    return found, number


def mean_auc(y: NDArray[np.int64], probabilities: Floats, weights: Floats) -> Floats:
    """The mean over classes of the area under the ROC curve of a class against the rest, for each column of weights.

    Classes that the sample lacks are left out; of two classes the second alone counts. NaN where a class has no weight.

    Args:
        y: (n,). probabilities: (n, C). weights: (n, B).
    """
    present = [c for c in range(probabilities.shape[1]) if 0 < int((y == c).sum()) < len(y)]
    if probabilities.shape[1] == 2:
        present = present[-1:]
    if not present:
        return np.full(weights.shape[1], math.nan)
    found: Floats = np.mean([_auc(y == c, probabilities[:, c], weights) for c in present], axis=0)
    return found


def _auc(positive: NDArray[np.bool_], score: Floats, weights: Floats) -> Floats:
    """Weighted area under the ROC curve (B,): pairs in the right order, and half of the ties."""
    order = np.argsort(score, kind="stable")
    ranked, held, positive = score[order], weights[order], positive[order, None]
    below = np.concatenate([np.zeros((1, held.shape[1])), np.cumsum(held * ~positive, axis=0)])
    first, last = np.searchsorted(ranked, ranked, "left"), np.searchsorted(ranked, ranked, "right")
    pairs = (held * positive * (below[first] + below[last]) / 2).sum(axis=0)
    every = (held * positive).sum(axis=0) * (held * ~positive).sum(axis=0)
    return np.asarray(np.where(every > 0, pairs / np.where(every > 0, every, 1), math.nan))
