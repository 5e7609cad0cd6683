"""Privacy cost when neighbours differ by one replaced patient, besides one added or removed.

Both definitions are usual, and an epsilon without its neighbours says little: replacing changes a sum by up to twice as
much. A ledger's mechanisms are transformed into the form that they have for such neighbours:

* Gaussian noise, on a Poisson sample too: dp-accounting's own distribution for REPLACE_ONE, in which the two
  patients pull in opposite directions.
* Laplace noise: half the multiplier; a pure epsilon: twice, after sampling if it was sampled.
* Splits: the removed patient and the added one can be in different splits of a division. Then one counts as removed
  and the other as added, both for mechanisms of their own split: the two add up.

If that cannot be computed, group privacy: (epsilon, d) for one added or removed is (2 epsilon, (1 + e^epsilon) d)
for one removed and another added (Dwork and Roth 2014, theorem 2.2, for groups of two).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from privacy.dp.accounting import (
    COMBINATIONS,
    Cost,
    Tally,
    check_delta,
    compute_cost,
    compute_spend_cost,
    split_choices,
    sum_spends,
    tally_events,
)
from privacy.dp.events import Event
from privacy.dp.losses import ENDLESS, UNIT, Spend, Step, amplify_epsilon

BY_GROUP = "group privacy: twice what one patient added or taken away costs"
MOST_EPSILON = 300.0
"""Above it e^epsilon leaves no delta to divide, and there is no useful guarantee."""
STEP_UP = 1.01


def replaced_cost(events: Sequence[Event], delta: float) -> Cost:
    """The highest cost of any patient, if neighbours are a set of patients and the same with one replaced.

    Raises:
        UnknownEvent, ValueError: as `privacy.dp.accounting.compute_cost`.
    """
    tally = tally_events(events)
    if any(spend.get(ENDLESS) for spend in tally.values()) or not any(map(any_of, tally.values())):
        return compute_cost(events, delta)  # no guarantee, or nothing spent: the same for all neighbours
    total_cost = _compose_cost(tally, check_delta(delta))
    return total_cost if total_cost is not None and total_cost.epsilon < math.inf else _by_group(events, delta)


def any_of(spend: Spend) -> bool:
    """Whether anything was spent."""
    return any(spend.values())


def replace_spend(spend: Spend) -> Spend | None:
    """The same mechanisms for a replaced patient; None if one of them has no such form."""
    steps: dict[Step, float] = {}
    for step, count in spend.items():
        twin = _replaced_step(step)
        if twin is None:
            return None
        # Unsampled Gaussian noise counts 1 / noise^2: half the multiplier counts four times.
        steps[twin] = steps.get(twin, 0) + (4 * count if step == UNIT else count)
    return steps


def _replaced_step(step: Step) -> Step | None:
    """The mechanism's form for a replaced patient; None if it has none."""
    if step == UNIT:
        return UNIT
    if step.members > 1:
        return None
    if step.kind == "gaussian":
        return step._replace(kind="replaced")  # a sample: all unsampled noise is in UNIT
    if step.kind == "laplace" and step.q == 1:
        return step._replace(size=step.size / 2)
    return Step("pure", 2 * (amplify_epsilon(step, 1 / step.size) if step.kind == "laplace" else step.size))


def _compose_cost(tally: Tally, delta: float) -> Cost | None:
    """The highest cost over all splits of the two patients; None if there are too many, or a mechanism has no form."""
    outside, choices = split_choices(tally)
    common, pairs = replace_spend(outside), [list(_pair_spends(spends)) for spends in choices]
    if common is None or any(spend is None for spends in pairs for spend in spends):
        return None
    if math.prod(map(len, pairs)) > COMBINATIONS:
        return None
    known = [[spend for spend in spends if spend is not None] for spends in pairs]
    priced = (compute_spend_cost(sum_spends(common, *chosen), delta) for chosen in itertools.product(*known))
    return max(priced, key=lambda candidate: candidate.epsilon)


def _pair_spends(spends: Sequence[Spend]) -> Iterator[Spend | None]:
    """The events of the removed and the added patient: both in one split, or each in another."""
    yield from map(replace_spend, spends)
    yield from (sum_spends(first, second) for first, second in itertools.combinations(spends, 2))


def _by_group(events: Sequence[Event], delta: float) -> Cost:
    """The least epsilon, up to 1 %, whose own delta is small enough for both steps."""
    guess = compute_cost(events, delta).epsilon
    while guess <= MOST_EPSILON:
        epsilon = compute_cost(events, delta / (1 + math.exp(guess))).epsilon
        if epsilon <= guess:
            return Cost(2 * epsilon, delta, BY_GROUP)
        guess = max(epsilon, guess * STEP_UP)
    return Cost(math.inf, delta, BY_GROUP)
