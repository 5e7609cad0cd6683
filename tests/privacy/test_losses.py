from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

from privacy.dp import accounting, losses
from privacy.dp.accounting import compute_cost
from privacy.dp.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    Pure,
    SelfComposed,
)

DELTA = 1e-5
CLOSE = 2e-3  # what is left when the resolution has settled, twice


@pytest.fixture(autouse=True)
def _prices_are_computed_anew() -> None:
    losses._compute_price.cache_clear()


def descent(q: float, noise: float, steps: int) -> Event:
    return SelfComposed(PoissonSampled(q, Gaussian(noise)), steps)


def epsilon(*events: Event, delta: float = DELTA) -> float:
    return compute_cost(events, delta).epsilon


def gaussian_delta(mu: float, eps: float) -> float:
    return float(ndtr(mu / 2 - eps / mu)) - math.exp(eps + float(log_ndtr(-mu / 2 - eps / mu)))


def mu_epsilon(mu: float) -> float:
    return float(brentq(lambda eps: gaussian_delta(mu, eps) - DELTA, 0, 100))


def test_the_orders_are_those_of_the_library_and_two_more():
    assert (1.02, 1.05, *DEFAULT_RDP_ORDERS) == losses.ORDERS


# Against other accountants, closed forms and slow second implementations


def prv(q: float, noise: float, steps: int, error: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(noise, q, steps)]
        return float(accountant.get_epsilon(DELTA, eps_error=error))


@pytest.mark.parametrize(
    ("q", "noise", "steps"), [(0.01, 0.8, 10), (0.01, 1.1, 1000), (0.1, 4.0, 100), (0.33, 2.0, 10), (1.0, 1.1, 100)]
)
def test_single_mechanisms_agree_with_opacus_within_one_percent(q: float, noise: float, steps: int) -> None:
    found = epsilon(descent(q, noise, steps))
    assert found == pytest.approx(prv(q, noise, steps, 0.005 * found), rel=0.01)


@pytest.mark.slow
def test_all_single_mechanisms_of_a_grid_agree_with_opacus_within_a_quarter_percent() -> None:
    compared = 0
    for q, noise, steps in itertools.product((0.01, 0.1, 0.33, 1.0), (0.8, 1.1, 2.0, 4.0), (10, 100, 1000)):
        found = epsilon(descent(q, noise, steps))
        other = prv(q, noise, steps, 0.002 * found)
        if math.isfinite(other):  # PRV gives up at epsilon 949
            assert found == pytest.approx(other, rel=0.0025), (q, noise, steps)
            compared += 1
    assert compared == 47


def test_an_opacus_engine_of_twenty_steps_is_reproduced() -> None:
    # Opacus says 2.98596, of which 0.01 is what its accountant adds for its own error.
    assert epsilon(descent(0.1, 1.1, 20)) == pytest.approx(2.98596 - 0.01, rel=1e-3)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize(("noise", "times"), [(0.05, 1), (0.8, 1), (4.0, 20), (100.0, 5000), (3000.0, 1)])
def test_unsampled_gaussians_cost_their_closed_form(noise: float, times: int, delta: float) -> None:
    mu = math.sqrt(times) / noise
    found = epsilon(*[Gaussian(noise)] * times, delta=delta)
    if found == 0:
        assert gaussian_delta(mu, 0.0) <= delta
    else:
        assert gaussian_delta(mu, found) == pytest.approx(delta, rel=1e-6)
    counted = losses.by_pld({losses.UNIT: mu * mu}, delta)
    assert found * (1 - 1e-9) <= counted <= found * (1 + CLOSE) + 1e-7


@pytest.mark.parametrize(("eps", "times"), [(0.1, 40), (1.0, 7)])
def test_pure_mechanisms_cost_what_optimal_composition_says(eps: float, times: int) -> None:
    # Kairouz, Oh and Viswanath 2015 (arXiv 1311.0776): randomized response is the worst of all.
    heads = np.arange(times + 1)
    likely = binom.pmf(heads, times, 1 / (1 + math.exp(-eps)))
    lost = (2 * heads - times) * eps

    def delta(at: float) -> float:
        return float((likely * -np.expm1(np.minimum(at - lost, 0))).sum())

    found = epsilon(SelfComposed(Pure(eps), times))
    assert delta(found) <= DELTA * (1 + 1e-6)
    assert delta(found * (1 - 3 * CLOSE)) > DELTA


@pytest.mark.parametrize(("q", "noise"), [(0.1, 1.5), (0.5, 3.0)])
def test_two_accesses_to_one_sample_cost_what_an_integral_over_both_says(q: float, noise: float) -> None:
    found = epsilon(PoissonSampled(q, SelfComposed(Gaussian(noise), 2)))
    grid = np.linspace(-9 * noise, 9 * noise + 1, 1500)
    empty, full = (np.exp(-((grid - shift) ** 2) / (2 * noise**2)) for shift in (0, 1))
    without = np.outer(empty, empty)
    without /= (total := without.sum())
    with_patient = (1 - q) * without + q * np.outer(full, full) / total
    removed, added = with_patient - math.exp(found) * without, without - math.exp(found) * with_patient
    delta = max(np.maximum(removed, 0).sum(), np.maximum(added, 0).sum())
    assert delta == pytest.approx(DELTA, rel=0.01)


def test_k_accesses_are_one_of_noise_divided_by_the_root_of_k() -> None:
    one, nine = PoissonSampled(0.2, Gaussian(1.0)), PoissonSampled(0.2, SelfComposed(Gaussian(3.0), 9))
    assert epsilon(nine) == pytest.approx(epsilon(one), rel=1e-9)
    mixed = PoissonSampled(0.2, Composed((Gaussian(math.sqrt(2)), SelfComposed(Gaussian(2.0), 2))))
    assert epsilon(mixed) == pytest.approx(epsilon(one), rel=1e-9)
    assert epsilon(PoissonSampled(1.0, SelfComposed(Gaussian(3.0), 9))) == epsilon(Gaussian(1.0))
    explicit = pld.from_gaussian_mechanism(3.0).self_compose(9).get_epsilon_for_delta(DELTA)
    assert epsilon(SelfComposed(Gaussian(3.0), 9)) == pytest.approx(explicit, rel=CLOSE)


# Upper bounds, whatever happens


MIXED = st.lists(
    st.sampled_from(
        [
            *(descent(0.1, 1.5, 20), descent(0.3, 4.0, 5), descent(0.02, 0.7, 100), Gaussian(3.0)),
            *(Laplace(4.0), PoissonSampled(0.2, Laplace(1.0)), Pure(0.2), Pure(1.5)),
        ]
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None)
@given(MIXED)
def test_renyi_divergences_bound_from_above_what_distributions_say(events: list[Event]) -> None:
    [spend] = accounting.tally_events(events).values()
    exact, bound = losses.by_pld(spend, DELTA), losses.by_curve(lambda: losses.compute_curve(spend), DELTA)
    assert exact <= bound * (1 + CLOSE) < math.inf
    assert compute_cost(events, DELTA).epsilon <= exact


@pytest.mark.parametrize(
    ("q", "noise", "steps"), [(0.02, 0.036, 4200), (0.1, 0.01, 100), (0.5, 0.001, 10), (0.1, 2.0, 20)]
)
def test_the_cost_is_never_below_what_optimistic_rounding_says(q: float, noise: float, steps: int) -> None:
    grid = 1e-3 * (1 / noise) ** 2
    below = pld.from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=grid, pessimistic_estimate=False, use_connect_dots=False
    )
    found = epsilon(descent(q, noise, steps))
    assert below.self_compose(steps).get_epsilon_for_delta(DELTA) <= found < math.inf


@pytest.mark.parametrize("noise", [1e-2, 1e-3, 1e-4, 1e-5, 1e-8, 1e-12, 1e-100, 1e-150])
def test_hardly_any_noise_is_counted_at_once_and_never_below_the_truth(noise: float) -> None:
    middle = 0.5 / noise / noise  # the privacy loss is above it half of the time
    assert middle <= epsilon(Gaussian(noise)) < 1.2 * middle
    found = epsilon(descent(0.5, noise, 10))
    assert 8 * middle <= found < math.inf  # of 10 steps 9 or more have the patient with probability 0.01
    assert (1 - 1e-12) / noise - 20 <= epsilon(Laplace(noise))
    assert (1 - 1e-12) / noise - 20 <= epsilon(Pure(1 / noise))


def test_where_distributions_fail_divergences_are_asked_and_where_both_fail_nothing_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [descent(0.1, 2.0, 50), Pure(0.5)]
    exact = compute_cost(events, DELTA)

    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(losses, "_build_distribution", fails)
    losses._repeat_step.cache_clear()
    losses._compute_price.cache_clear()
    bound = compute_cost(events, DELTA)
    assert exact.epsilon < bound.epsilon < 2 * exact.epsilon
    assert bound.accountant == "RDP, dp-accounting 0.6.0 (PLD could not be computed)"
    losses._compute_price.cache_clear()
    monkeypatch.setattr(losses, "compute_curve", fails)
    assert compute_cost(events, DELTA).epsilon == math.inf
    monkeypatch.undo()
    monkeypatch.setattr(losses, "_epsilon_at", lambda *_: (math.nan, 1))
    assert compute_cost(events, DELTA) == bound


@pytest.mark.parametrize("wrong", [math.nan, -1e-9, -math.inf])
def test_numbers_that_are_none_are_no_guarantee(wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert losses.by_curve(lambda: np.full(len(losses.ORDERS), wrong), DELTA) == math.inf
    monkeypatch.setattr("dp_accounting.get_epsilon_gaussian", lambda *_: wrong)
    assert epsilon(Gaussian(2.0)) > mu_epsilon(0.5)
