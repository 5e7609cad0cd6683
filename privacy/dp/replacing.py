"""What a patient pays where neighbours differ by one patient in another's place, beside one added or taken away.

Both are usual, and an epsilon without its neighbours says little: replacing moves a sum by up to twice as much. A
ledger's mechanisms are brought into the form that they have for such neighbours:

* Gaussian noise, on a Poisson sample too: dp-accounting's own distribution for REPLACE_ONE, in which the two
  patients pull in opposite directions.
* Laplace noise: half the multiplier; a pure epsilon: twice, after sampling if it was sampled.
* Splits: the patient who goes and the one who comes can be in different splits of a division. Then one pays as taken
  away and the other as added, both for mechanisms of their own split: the two add up.

Where that cannot be computed, group privacy: (epsilon, d) for one added or taken away is (2 epsilon, (1 + e^epsilon) d)
for one taken away and another added (Dwork and Roth 2014, theorem 2.2, for groups of two).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from privacy.dp.accounting import COMBINATIONS, Cost, Tally, checked, cost, price, split_choices, summed, tallied
from privacy.dp.events import Event
from privacy.dp.losses import ENDLESS, UNIT, Spend, Step, amplified

BY_GROUP = "group privacy: twice what one patient added or taken away costs"
MOST_EPSILON = 300.0
"""Above it e^epsilon leaves no delta to share out, and the answer is no guarantee anyway."""
STEP_UP = 1.01


def replaced_cost(events: Sequence[Event], delta: float) -> Cost:
    """What the patient pays who pays most, where neighbours are a set of patients and the same with one replaced.

    Raises:
        UnknownEvent, ValueError: as `privacy.dp.accounting.cost`.
    """
    tally = tallied(events)
    if any(spend.get(ENDLESS) for spend in tally.values()) or not any(map(any_of, tally.values())):
        return cost(events, delta)  # no guarantee, or nothing spent: the same for all neighbours
    found = _composed(tally, checked(delta))
    return found if found is not None and found.epsilon < math.inf else _by_group(events, delta)


def any_of(spend: Spend) -> bool:
    """Whether anything was spent."""
    return any(spend.values())


def replaced(spend: Spend) -> Spend | None:
    """The same mechanisms where one patient takes another's place; None where one of them has no such form."""
    found: dict[Step, float] = {}
    for step, count in spend.items():
        twin = _twin(step)
        if twin is None:
            return None
        # Unsampled Gaussian noise counts 1 / noise^2: half the multiplier counts four times.
        found[twin] = found.get(twin, 0) + (4 * count if step == UNIT else count)
    return found


def _twin(step: Step) -> Step | None:
    if step == UNIT:
        return UNIT
    if step.members > 1:
        return None
    if step.kind == "gaussian":
        return step._replace(kind="replaced")  # a sample: all that is unsampled stands as UNIT
    if step.kind == "laplace" and step.q == 1:
        return step._replace(size=step.size / 2)
    return Step("pure", 2 * (amplified(step, 1 / step.size) if step.kind == "laplace" else step.size))


def _composed(tally: Tally, delta: float) -> Cost | None:
    """Every way for the two patients to be in splits, each priced; None where that is too much, or has no form."""
    outside, choices = split_choices(tally)
    common, pairs = replaced(outside), [list(_pairs(spends)) for spends in choices]
    if common is None or any(one is None for spends in pairs for one in spends):
        return None
    if math.prod(map(len, pairs)) > COMBINATIONS:
        return None
    known = [[one for one in spends if one is not None] for spends in pairs]
    priced = (price(summed(common, *chosen), delta) for chosen in itertools.product(*known))
    return max(priced, key=lambda one: one.epsilon)


def _pairs(spends: Sequence[Spend]) -> Iterator[Spend | None]:
    """What is spent if both are in one split, and if they are in two."""
    yield from map(replaced, spends)
    yield from (summed(one, other) for one, other in itertools.combinations(spends, 2))


def _by_group(events: Sequence[Event], delta: float) -> Cost:
    """The least epsilon, up to a hundredth, whose own delta leaves enough for both steps."""
    guess = cost(events, delta).epsilon
    while guess <= MOST_EPSILON:
        found = cost(events, delta / (1 + math.exp(guess))).epsilon
        if found <= guess:
            return Cost(2 * found, delta, BY_GROUP)
        guess = max(found, guess * STEP_UP)
    return Cost(math.inf, delta, BY_GROUP)
