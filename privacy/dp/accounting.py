"""Privacy cost of the events of `privacy/dp/events.py`: (epsilon, delta) when one patient is added or removed.

Events are first transformed into the form that accountants know, by exact steps: Gaussian noise of multiplier s,
used k times, is Gaussian noise of s / sqrt(k), also on one and the same Poisson sample; a sample with probability 1 is
no sample; equal mechanisms are counted. Then `privacy/dp/losses.py` composes them. Noise that hospitals share counts as
if all other hospitals worked together with the coordinator; `events.assume_colluding` replaces it before by what holds
if at most so many do.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TypeAlias

import numpy as np

from privacy.dp.events import (
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    Nothing,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    SharedGaussian,
    UnknownEvent,
)
from privacy.dp.losses import ENDLESS, LIBRARY, UNIT, Curve, Spend, Step, by_curve, compute_curve, price_spend

NO_GUARANTEE, NOTHING_SPENT = "none: no formal guarantee", "none: nothing was spent"
OVER_SPLITS = f"RDP, {LIBRARY} (too many combinations of splits for PLD)"
WELL_BELOW = 0.9
COMBINATIONS = 64  # of splits that are tried one by one
MOST_TIMES = 2**1000  # a larger count is no float any more
LEAST_NOISE, MOST_NOISE = 2.0**-10, 2.0**20
GROWTH = 4.0
TOLERANCE = 2e-4  # of the logarithm of a calibrated noise multiplier

_Share: TypeAlias = tuple[str, str] | None  # the cut and the split whose patients pay; None: all patients
Tally: TypeAlias = Mapping[_Share, Spend]


@dataclass(frozen=True)
class Cost:
    """(epsilon, delta) of a patient, and the accountant. epsilon: inf without a formal guarantee."""

    epsilon: float
    delta: float
    accountant: str


def compute_cost(events: Sequence[Event], delta: float) -> Cost:
    """The highest cost of any patient: all events outside a `Part`, and for each cut those of one split.

    Raises:
        UnknownEvent: an event is of a kind, or in a place, that no accountant here can read.
        ValueError: delta is not between 0 and 1.
    """
    return compute_tally_cost(tally_events(events), delta)


def compute_tally_cost(tally: Tally, delta: float) -> Cost:
    """As `compute_cost`, of events that `tally_events` added up. Raises: ValueError: as `compute_cost`."""
    return _highest_cost(tally, check_delta(delta))


def is_well_below(tally: Tally, epsilon: float, delta: float) -> bool:
    """Whether Renyi divergences alone show, in a fraction of a millisecond, that these events cost less than nine
    tenths of an epsilon. `compute_tally_cost` is no higher than that bound; False says nothing.

    Raises: ValueError: as `compute_cost`.
    """
    if any(spend.get(ENDLESS) for spend in tally.values()):
        return False
    return by_curve(lambda: _worst_curve(*split_choices(tally)), check_delta(delta)) < WELL_BELOW * epsilon


def by_split(events: Sequence[Event], delta: float) -> dict[tuple[str, str], Cost]:
    """(cut, split) -> the highest cost of that split's patients: `cost` without the other splits of the cut.

    Raises:
        UnknownEvent, ValueError: as `cost`.
    """
    check_delta(delta)
    tally = tally_events(events)
    return {
        mine: _highest_cost(
            {s: spend for s, spend in tally.items() if s is None or s[0] != mine[0] or s == mine}, delta
        )
        for mine in sorted(share for share in tally if share is not None)
    }


def group_cost(q: float, noise: float, steps: int, members: int, delta: float) -> Cost:
    """The cost of a person with `members` records, each Poisson sampled with q and clipped separately.

    In every step the person's records shift the sum by at most Binomial(members, q) sensitivities: a mixture of
    Gaussians (Choquette-Choo et al. 2023, arXiv 2310.15526, corollary 4.7).

    Args:
        q: probability that a record is drawn in a step.
        noise: standard deviation / L2 sensitivity to one record.
        steps: how often a sample is drawn.
        members: records of the person.
        delta: of the guarantee.

    Raises:
        ValueError: an argument is out of range.
    """
    counts = {"steps": steps, "members": members}
    if wrong := [f"{name} is {n!r}" for name, n in counts.items() if type(n) is not int or n < 0]:
        raise ValueError(f"must be whole numbers >= 0: {', '.join(wrong)}")
    at_once = SelfComposed(PoissonSampled(q, Gaussian(noise / max(members, 1))), steps)
    if members > 1 and 0 < q < 1 and noise > 0 and steps:
        return compute_spend_cost({Step("gaussian", noise, q, members): steps}, check_delta(delta))
    return compute_cost([at_once] if members else [], delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The mu for which Gaussian noise of multiplier 1 / mu is (epsilon, delta)-private and no better.

    Solves delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu): Balle and Wang 2018 (arXiv
    1805.06530), theorem 8.

    Raises:
        ValueError: epsilon is negative or not finite, or delta is not between 0 and 1.
    """
    from dp_accounting import get_sigma_gaussian  # slow to import

    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be finite and >= 0, found {epsilon}")
    return 1 / float(get_sigma_gaussian(epsilon, check_delta(delta)))


def calibrate_noise(planned: Callable[[float], Sequence[Event]], *, epsilon: float, delta: float) -> float:
    """The least noise multiplier, to 1 in 1000, for which planned(noise) costs at most (epsilon, delta).

    More noise must never cost more. The result is at least 2^-10, even if less would be enough.

    Raises:
        ValueError: no noise is enough, because of the plan's other events; or epsilon or delta is out of range.
        UnknownEvent: as `cost`.
    """
    from scipy.optimize import brentq  # slow to import

    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be finite and > 0, found {epsilon}")

    @cache
    def compute_epsilon(noise: float) -> float:
        return compute_cost(planned(noise), delta).epsilon

    if compute_epsilon(MOST_NOISE) > epsilon:
        raise ValueError(
            f"no noise brings this plan down to epsilon {epsilon:g} at delta {delta:g}: even with a multiplier of "
            f"{MOST_NOISE:g} it costs {compute_epsilon(MOST_NOISE):.4g}; allow more, or plan less beside it"
        )
    low = high = 1.0
    while compute_epsilon(high) > epsilon:
        low, high = high, high * GROWTH
    while compute_epsilon(low) <= epsilon:
        low, high = low / GROWTH, low
        if low < LEAST_NOISE:
            return high

    def excess(log_noise: float) -> float:
        return math.log(min(max(compute_epsilon(math.exp(log_noise)) / epsilon, 1e-9), 1e9))

    noise = math.exp(float(brentq(excess, math.log(low), math.log(high), xtol=TOLERANCE)))
    while compute_epsilon(noise) > epsilon:
        noise *= 1 + TOLERANCE
    return noise


def check_delta(delta: float) -> float:
    """The delta. Raises: ValueError: it is not between 0 and 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, found {delta}")
    return delta


def tally_events(events: Iterable[Event], before: Tally | None = None) -> dict[_Share, dict[Step, float]]:
    """Events of the patients of each split, and under None those of all patients. before: to which they are added; it
    stays as it is. Raises: UnknownEvent.
    """
    tally: dict[_Share, dict[Step, float]] = defaultdict(lambda: defaultdict(float))
    for share, spend in (before or {}).items():
        tally[share].update(spend)
    for event in events:
        _add_to_tally(event, 1, None, tally)
    return tally


def _add_to_tally(event: Event, times: float, share: _Share, tally: dict[_Share, dict[Step, float]]) -> None:
    """Add `times` events to those of a share. A part within a part counts for all patients of the outer one."""
    if isinstance(event, Composed):
        for part in event.events:
            _add_to_tally(part, times, share, tally)
    elif isinstance(event, SelfComposed):
        many = times * event.count if event.count else 0
        _add_to_tally(event.event, many if many < MOST_TIMES else math.inf, share, tally)
    elif isinstance(event, Part):
        _add_to_tally(event.event, times, share or (event.cut, event.split), tally)
    elif isinstance(event, PoissonSampled):
        for step, count in _sample_cost(event).items():
            tally[share][step] += count * times if times or step == ENDLESS else 0
    elif isinstance(event, SharedGaussian):
        _add_to_tally(event.against(None), times, share, tally)
    elif isinstance(event, NonPrivate) or (isinstance(event, Gaussian | Laplace) and event.noise_multiplier == 0):
        tally[share][ENDLESS] = math.inf
    elif isinstance(event, Gaussian):
        exactness = 1 / event.noise_multiplier
        tally[share][UNIT] += times * exactness * exactness
    elif isinstance(event, Laplace | Pure):
        step = Step("pure", event.epsilon) if isinstance(event, Pure) else Step("laplace", event.noise_multiplier)
        tally[share][step] += times if step.size else 0
    elif not isinstance(event, Nothing | Declared):
        raise UnknownEvent(f"unknown events are refused, and no accountant here knows {event!r}")


def _sample_cost(event: PoissonSampled) -> Spend:
    """The cost of one Poisson sample with all its mechanisms.

    Raises:
        UnknownEvent: they were neither Gaussian noise only, nor Laplace noise once.
    """
    q, inner = event.probability, tally_events([event.event])
    spend = {step: count for step, count in inner.pop(None, {}).items() if count}
    if not inner and (not spend or q in (0, 1) or ENDLESS in spend):
        return {step: count for step, count in spend.items() if q or step == ENDLESS}
    if not inner and set(spend) == {UNIT}:
        return {Step("gaussian", spend[UNIT] ** -0.5, q): 1}
    if not inner and list(spend.values()) == [1] and (once := next(iter(spend))).kind == "laplace" and once.q == 1:
        return {once._replace(q=q): 1}
    raise UnknownEvent(
        f"unknown events are refused, and no accountant here knows a Poisson sample of {event.event!r}; known are "
        f"Gaussian noise, any number of times, and Laplace noise once"
    )


def _highest_cost(tally: Tally, delta: float) -> Cost:
    """The largest cost over all ways to be in one split of every cut."""
    if any(spend.get(ENDLESS) for spend in tally.values()):
        return Cost(math.inf, delta, NO_GUARANTEE)
    outside, choices = split_choices(tally)
    if math.prod(map(len, choices)) > COMBINATIONS:
        return Cost(by_curve(lambda: _worst_curve(outside, choices), delta), delta, OVER_SPLITS)
    combinations = itertools.product(*choices)
    return max(
        (compute_spend_cost(sum_spends(outside, *chosen), delta) for chosen in combinations), key=lambda c: c.epsilon
    )


def split_choices(tally: Tally) -> tuple[Spend, list[list[Spend]]]:
    """The events of all patients, and for each cut those of its splits, without splits that never cost most."""
    cuts = defaultdict(list)
    for share, spend in tally.items():
        if share is not None:
            cuts[share[0]].append(spend)
    return tally.get(None, {}), [_drop_dominated(spends) for spends in cuts.values()]


def _worst_curve(outside: Spend, choices: Sequence[Sequence[Spend]]) -> Curve:
    """Bounds on the Renyi divergences that hold for every combination: order by order the worst split of each cut."""
    worst = (reduce(np.maximum, map(compute_curve, spends)) for spends in choices)
    return sum(worst, compute_curve(outside))


def _drop_dominated(spends: Sequence[Spend]) -> list[Spend]:
    """Without splits that another split exceeds or equals in every mechanism."""
    undominated: list[Spend] = []
    for spend in sorted(spends, key=lambda s: sum(s.values()), reverse=True):
        if not any(all(other.get(step, 0) >= count for step, count in spend.items()) for other in undominated):
            undominated.append(spend)
    return undominated


def sum_spends(*spends: Spend) -> Spend:
    """The sum of several spends."""
    total: dict[Step, float] = defaultdict(float)
    for spend in spends:
        for step, count in spend.items():
            total[step] += count
    return total


def compute_spend_cost(spend: Spend, delta: float) -> Cost:
    """The cost of these mechanisms together, and the accountant."""
    done = {step: count for step, count in spend.items() if count}
    epsilon, accountant = price_spend(done, delta) if done else (0.0, NOTHING_SPENT)
    return Cost(epsilon, delta, accountant)
