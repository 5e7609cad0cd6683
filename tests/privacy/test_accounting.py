from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr

from privacy.dp import accounting, losses
from privacy.dp.accounting import Cost, by_split, calibrate_noise, compute_cost, group_cost, mu_of
from privacy.dp.events import (
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    UnknownEvent,
)

DELTA = 1e-5
CLOSE = 2e-3  # what is left when the resolution has settled, twice


def descent(q: float, noise: float, steps: int) -> Event:
    return SelfComposed(PoissonSampled(q, Gaussian(noise)), steps)


def epsilon(*events: Event, delta: float = DELTA) -> float:
    return compute_cost(events, delta).epsilon


def gaussian_delta(mu: float, eps: float) -> float:
    return float(ndtr(mu / 2 - eps / mu)) - math.exp(eps + float(log_ndtr(-mu / 2 - eps / mu)))


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 20), st.floats(1e-9, 0.5))
def test_mu_is_that_of_the_gaussian_which_is_just_so_private(eps: float, delta: float) -> None:
    mu = mu_of(eps, delta)
    assert gaussian_delta(mu, eps) == pytest.approx(delta, rel=1e-4)
    assert epsilon(Gaussian(1 / mu), delta=delta) == pytest.approx(eps, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("eps", "delta"), [(-1.0, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_mu_of_what_is_no_guarantee_is_refused(eps: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        mu_of(eps, delta)


# Laws


def rising(costs: Sequence[float]) -> bool:
    return all(less <= more * (1 + CLOSE) for less, more in itertools.pairwise(costs)) and costs[0] < costs[-1]


def test_more_sampling_more_steps_and_less_noise_cost_more() -> None:
    assert rising([epsilon(descent(q, 1.5, 100)) for q in (0.0, 1e-4, 0.1, 0.33, 0.999, 1.0)])
    assert rising([epsilon(descent(0.1, noise, 100)) for noise in (300.0, 4.0, 1.0, 0.5, 0.01, 1e-4)])
    assert rising([epsilon(descent(0.1, 2.0, steps)) for steps in (0, 1, 10, 1000, 10**5, 10**8)])
    assert rising([epsilon(Gaussian(3.0), delta=10.0**-k) for k in (1, 3, 5, 9, 12, 20)])
    assert rising([epsilon(descent(0.1, 2.0, 50), delta=10.0**-k) for k in (1, 5, 9, 11, 12, 20)])


def test_the_order_of_events_does_not_matter() -> None:
    events = [descent(0.1, 2.0, 50), Gaussian(4.0), Laplace(5.0), Pure(0.3), descent(0.2, 3.0, 7), Gaussian(7.0)]
    events += [Part("cut", "a", Gaussian(3.0)), Part("cut", "b", Gaussian(2.5)), PoissonSampled(0.3, Laplace(2.0))]
    shuffled = random.Random(0).sample(events, len(events))
    assert compute_cost([Composed(tuple(shuffled))], DELTA).epsilon == pytest.approx(
        compute_cost(events, DELTA).epsilon, rel=1e-9
    )


def test_what_is_more_costs_more_and_never_less() -> None:
    more: list[Event] = [descent(0.1, 2.0, 50), Gaussian(4.0), Laplace(5.0), Pure(0.3), PoissonSampled(0.3, Laplace(2))]
    assert rising([epsilon(*more[:n]) for n in range(len(more) + 1)])


def test_a_ledger_of_ten_thousand_lines_costs_a_few_distributions() -> None:
    lines: list[Event] = [PoissonSampled(0.123, Gaussian(9.0)), PoissonSampled(0.124, Gaussian(9.0))] * 5000
    before = losses._build_distribution.cache_info().misses
    found = compute_cost(lines, DELTA)
    assert losses._build_distribution.cache_info().misses - before <= 10
    assert found == compute_cost([descent(0.123, 9.0, 5000), descent(0.124, 9.0, 5000)], DELTA)


def test_who_says_so_is_told() -> None:
    assert compute_cost([descent(0.1, 2.0, 5)], DELTA).accountant == "PLD, dp-accounting 0.6.0"
    assert compute_cost([Gaussian(1.0)], DELTA).accountant == "analytic Gaussian, dp-accounting 0.6.0"
    assert compute_cost([], DELTA) == Cost(0.0, DELTA, "none: nothing was spent")


# What costs nothing, and what cannot be counted

FREE: list[Event] = [NOTHING, Declared("counts"), Declared("failure"), Pure(0.0), Composed(())]
FREE += [PoissonSampled(0.0, Pure(3.0)), PoissonSampled(0.5, NOTHING), PoissonSampled(0.5, Declared("counts"))]
FREE += [SelfComposed(Gaussian(1.0), 0), SelfComposed(NOTHING, 5), Part("cut", "split", NOTHING)]


@pytest.mark.parametrize("free", FREE)
def test_what_tells_nothing_of_patients_or_is_declared_is_free(free: Event) -> None:
    assert epsilon(free) == 0
    assert epsilon(free, Gaussian(2.0)) == epsilon(Gaussian(2.0))


ENDLESS: list[Event] = [NON_PRIVATE, Gaussian(0.0), Laplace(0.0), SelfComposed(NON_PRIVATE, 0)]
ENDLESS += [PoissonSampled(q, NON_PRIVATE) for q in (0.0, 0.1, 1.0)] + [PoissonSampled(0.1, Gaussian(0.0))]
ENDLESS += [Part("cut", "split", NON_PRIVATE), Composed((Gaussian(1.0), SelfComposed(NON_PRIVATE, 2)))]
ENDLESS += [SelfComposed(PoissonSampled(0.0, NON_PRIVATE), 0), descent(0.1, 1e3, 10**400), Gaussian(1e-320)]


@pytest.mark.parametrize("endless", ENDLESS)
def test_what_has_no_bound_is_infinite_whatever_stands_beside_it(endless: Event) -> None:
    assert epsilon(endless) == math.inf
    assert epsilon(Gaussian(2.0), endless, Part("other", "split", Pure(1.0))) == math.inf


@pytest.mark.parametrize(
    "unknown",
    [
        PoissonSampled(0.1, Pure(1.0)),
        PoissonSampled(0.1, SelfComposed(Laplace(1.0), 2)),
        PoissonSampled(0.1, Composed((Gaussian(1.0), Laplace(1.0)))),
        PoissonSampled(0.1, PoissonSampled(0.1, Gaussian(1.0))),
        PoissonSampled(0.1, PoissonSampled(0.1, Laplace(1.0))),
        PoissonSampled(0.1, Part("cut", "split", Gaussian(1.0))),
        SelfComposed(object(), 0),  # type: ignore[arg-type]
        "gaussian",
    ],
)
def test_unknown_events_are_refused(unknown: Event) -> None:
    with pytest.raises(UnknownEvent, match="unknown events are refused"):
        compute_cost([Gaussian(1.0), unknown], DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_a_delta_that_is_no_probability_is_refused(delta: float) -> None:
    for ask in (
        lambda: compute_cost([], delta),
        lambda: by_split([], delta),
        lambda: group_cost(0.1, 1.0, 5, 3, delta),
    ):
        with pytest.raises(ValueError, match="delta must be between 0 and 1"):
            ask()


# Splits


def test_splits_of_one_cut_cost_the_largest_and_cuts_add_up() -> None:
    a, b, c = descent(0.1, 1.5, 40), descent(0.1, 2.0, 40), Gaussian(3.0)
    one_cut = [Part("cut", "train", a), Part("cut", "test", b)]
    assert compute_cost(one_cut, DELTA) == compute_cost([a], DELTA)
    assert compute_cost([*one_cut, c], DELTA) == compute_cost([a, c], DELTA)
    assert compute_cost([Part("cut", "train", a), Part("other", "test", b), c], DELTA) == compute_cost([a, b, c], DELTA)
    assert compute_cost([Part("cut", "train", a)] * 3, DELTA) == compute_cost([a] * 3, DELTA)
    assert compute_cost([SelfComposed(Part("cut", "train", a), 3)], DELTA) == compute_cost([a] * 3, DELTA)
    assert compute_cost([Part("cut", "train", Part("other", "x", a)), Part("cut", "test", b)], DELTA) == compute_cost(
        [a], DELTA
    )


POOL: list[Event] = [Gaussian(3.0), Gaussian(2.0), PoissonSampled(0.1, Gaussian(1.0)), Pure(0.4), Laplace(3.0)]
PARTED = st.lists(
    st.builds(Part, st.sampled_from("ABC"), st.sampled_from("xyz"), st.sampled_from(POOL)), min_size=1, max_size=9
)


def by_brute_force(parts: Sequence[Part], outside: Sequence[Event]) -> float:
    cuts = sorted({part.cut for part in parts})
    ways = itertools.product(*(sorted({part.split for part in parts if part.cut == cut}) for cut in cuts))
    chosen = [dict(zip(cuts, way, strict=True)) for way in ways]
    return max(epsilon(*outside, *(p.event for p in parts if way[p.cut] == p.split)) for way in chosen)


@settings(max_examples=12, deadline=None)
@given(PARTED)
def test_the_cost_is_the_largest_over_all_ways_to_be_in_one_split_of_each_cut(parts: list[Part]) -> None:
    slow = by_brute_force(parts, [Gaussian(4.0)])
    assert epsilon(Gaussian(4.0), *parts) == pytest.approx(slow, rel=1e-9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounting, "COMBINATIONS", 0)
        bound = compute_cost([Gaussian(4.0), *parts], DELTA)
    assert slow <= bound.epsilon < math.inf
    assert bound.accountant == "RDP, dp-accounting 0.6.0 (too many combinations of splits for PLD)"


def test_more_than_64_combinations_are_bounded_and_dominated_splits_are_not_among_them() -> None:
    # In each cut one split has the more steps and the other the more noise, so that neither can be left out.
    many = [Part(f"{n}", "x", descent(0.1, 4.0, 10 + n)) for n in range(7)]
    many += [Part(f"{n}", "y", descent(0.1, 2.0, 3 + n % 2)) for n in range(7)]
    bound = compute_cost(many, DELTA)
    assert "too many combinations" in bound.accountant
    assert compute_cost([*many, descent(0.1, 1e-6, 0), SelfComposed(Laplace(1e-320), 0)], DELTA) == bound
    for drawn in range(3):
        pick = random.Random(drawn)
        assert epsilon(*(part.event for part in (pick.choice(many[n::7]) for n in range(7)))) <= bound.epsilon
    dominated = [Part(f"{n}", f"{m}", descent(0.1, 4.0, 10 + m)) for n in range(7) for m in range(3)]
    assert compute_cost(dominated, DELTA) == compute_cost([descent(0.1, 4.0, 12)] * 7, DELTA)


def test_what_each_split_pays() -> None:
    a, b, c, d = Gaussian(3.0), Gaussian(2.0), Gaussian(5.0), Gaussian(4.0)
    events = [Part("1", "train", a), Part("1", "test", b), Part("2", "train", c), Part("2", "test", Pure(0.1)), d]
    paid = by_split(events, DELTA)
    assert set(paid) == {("1", "train"), ("1", "test"), ("2", "train"), ("2", "test")}
    assert paid["1", "train"] == compute_cost([a, c, d], DELTA)
    assert paid["1", "test"] == paid["2", "train"] == compute_cost([b, c, d], DELTA) == compute_cost(events, DELTA)
    assert paid["2", "test"] == compute_cost([b, Pure(0.1), d], DELTA)
    lost = by_split([*events, Part("1", "test", NON_PRIVATE)], DELTA)
    assert lost["1", "train"] == paid["1", "train"] and lost["1", "test"].epsilon == math.inf
    assert by_split([d], DELTA) == {}


# Calibration


@pytest.mark.parametrize("eps", [pytest.param(0.3, marks=pytest.mark.slow), 8.0])
def test_calibrated_noise_is_enough_and_one_percent_less_is_not(eps: float) -> None:
    def planned(noise: float) -> list[Event]:
        return [Gaussian(40.0), descent(0.33, noise, 2000), Part("cut", "validation", Gaussian(20.0))]

    noise = calibrate_noise(planned, epsilon=eps, delta=DELTA)
    assert compute_cost(planned(noise), DELTA).epsilon <= eps < compute_cost(planned(0.99 * noise), DELTA).epsilon


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 50), st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_calibrated_gaussians_have_the_analytic_noise(eps: float, delta: float) -> None:
    noise = calibrate_noise(lambda z: [Gaussian(z)], epsilon=eps, delta=delta)
    assert (1 - 1e-9) / mu_of(eps, delta) <= noise <= 1.001 / mu_of(eps, delta)


def test_a_plan_that_no_noise_can_afford_is_refused_with_its_price() -> None:
    with pytest.raises(ValueError, match=r"no noise brings this plan down to epsilon 3 .* costs 4;"):
        calibrate_noise(lambda noise: [descent(0.1, noise, 100), Pure(4.0)], epsilon=3.0, delta=DELTA)
    with pytest.raises(ValueError, match=r"costs inf"):
        calibrate_noise(lambda noise: [Gaussian(noise), NON_PRIVATE], epsilon=3.0, delta=DELTA)
    with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
        calibrate_noise(lambda noise: [Gaussian(noise)], epsilon=0.0, delta=DELTA)


def test_a_plan_that_needs_no_noise_gets_the_least() -> None:
    assert calibrate_noise(lambda noise: [Pure(1.0)], epsilon=3.0, delta=DELTA) == accounting.LEAST_NOISE


# Persons with several records


@pytest.mark.parametrize(
    ("noise", "eps", "seven"), [pytest.param(1.0234, 10.0, 147.6, marks=pytest.mark.slow), (2.279, 3.0, 33.2)]
)
def test_who_owns_seven_slices_pays_what_was_measured(noise: float, eps: float, seven: float) -> None:
    q, steps = 24 / 1008, 4200
    assert compute_cost([descent(q, noise, steps)], DELTA).epsilon == pytest.approx(eps, rel=1e-3)
    assert group_cost(q, noise, steps, 7, DELTA).epsilon == pytest.approx(seven, rel=0.01)


def test_one_member_pays_what_a_patient_pays_and_more_pay_more() -> None:
    assert group_cost(0.1, 2.0, 30, 1, DELTA) == compute_cost([descent(0.1, 2.0, 30)], DELTA)
    assert group_cost(1.0, 6.0, 30, 3, DELTA) == compute_cost([SelfComposed(Gaussian(2.0), 30)], DELTA)
    paid = [group_cost(0.1, 5.0, 30, members, DELTA).epsilon for members in range(4)]
    assert paid[0] == 0 and rising(paid)
    assert paid[3] <= epsilon(descent(1 - 0.9**3, 5.0 / 3, 30))  # as if all were drawn whenever one is
    assert group_cost(0.1, 0.0, 30, 3, DELTA).epsilon == math.inf
    assert group_cost(0.0, 1.0, 30, 3, DELTA).epsilon == group_cost(0.1, 1.0, 0, 3, DELTA).epsilon == 0
    often = losses.by_curve(lambda: losses.compute_curve({losses.Step("gaussian", 5.0, 0.5, 3): 30}), DELTA)
    assert group_cost(0.5, 5.0, 30, 3, DELTA).epsilon <= often < math.inf


@pytest.mark.parametrize("wrong", [{"members": -1}, {"members": 1.5}, {"q": 1.2}, {"noise": -1.0}, {"steps": -3}])
def test_a_group_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    asked: dict[str, float] = {"q": 0.1, "noise": 1.0, "steps": 5, "members": 3, **wrong}
    with pytest.raises(ValueError, match=next(iter(wrong)) if "q" not in wrong else "probability"):
        group_cost(asked["q"], asked["noise"], asked["steps"], asked["members"], DELTA)  # type: ignore[arg-type]
