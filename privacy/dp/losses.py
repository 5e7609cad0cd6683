"""Composition of noise mechanisms by dp-accounting: the numbers behind `privacy/dp/accounting.py`.

Privacy loss distributions (PLD; Koskela et al. 2020, arXiv 1906.03049; Doroshenko et al. 2022, arXiv 2207.04380), and
Renyi divergences (RDP; Mironov 2017, arXiv 1702.07476), which are lower only where so many mechanisms are composed that
the distributions stay coarse. Both are rounded towards more loss, so every result is an upper bound, and the lower one
holds; if neither can be computed, it is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, reduce
from importlib.metadata import version
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

LIBRARY = f"dp-accounting {version('dp-accounting')}"
EXACT = f"analytic Gaussian, {LIBRARY}"
BY_PLD = f"PLD, {LIBRARY}"
BY_RDP = f"RDP, {LIBRARY} (PLD could not be computed)"
BELOW_PLD = f"RDP, {LIBRARY} (lower than PLD)"

FIRST = 1000  # points of the widest distribution when the search for a resolution begins
FINER = 4  # each next resolution, until epsilon falls by less than SETTLED
SETTLED = 5e-3  # a fifteenth of the last fall is left, as errors fall with the square; a third for pure mechanisms
POINTS = 2**21  # of a composed distribution: 16 MiB, and some seconds
ROUNDING = 1e-12  # of delta, for the rounding of Fourier transforms; of each Renyi divergence, for that of its sums
LARGE = 1e8  # 1 / noise^2, above which the analytic epsilon loses its digits
ORDERS = (1.02, 1.05, *(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""Two more than `DEFAULT_RDP_ORDERS` of dp-accounting, which takes a second to import; a test compares them."""
WHOLE_ORDERS = np.unique(np.ceil(ORDERS))


class Step(NamedTuple):
    """One mechanism. size: the noise multiplier, or the epsilon of a pure one; q: of its Poisson sample.

    members: number of records of one person, each drawn and clipped separately; more than one only for a Gaussian.
    replaced: Gaussian noise for a replaced patient.
    """

    kind: Literal["endless", "gaussian", "replaced", "laplace", "pure"]
    size: float = 0.0
    q: float = 1.0
    members: int = 1


Spend: TypeAlias = Mapping[Step, float]
"""How often each was used. All unsampled Gaussian noise together is one UNIT: noise s counts 1 / s^2 times."""
Curve: TypeAlias = NDArray[np.float64]
ENDLESS, UNIT = Step("endless"), Step("gaussian", 1.0)


def price_spend(spend: Spend, delta: float) -> tuple[float, str]:
    """(epsilon, accountant): the best upper bound that one of the accountants finds; infinite if none does.

    A run asks for the same price when it is checked, planned, carried out and reported, so a finite price is kept. The
    order of the mechanisms is part of the key: sums of floating-point numbers depend on it.
    """
    try:
        return _compute_price(tuple(spend.items()), delta)
    except OverflowError:
        return math.inf, BY_RDP


@lru_cache(maxsize=1024)
def _compute_price(items: tuple[tuple[Step, float], ...], delta: float) -> tuple[float, str]:
    """See `price_spend`. Raises: OverflowError: it is infinite, which is not kept: perhaps memory was short."""
    from dp_accounting import get_epsilon_gaussian  # slow to import

    spend = dict(items)
    if set(spend) == {UNIT} and spend[UNIT] < LARGE:
        epsilon, accountant = _compute_or_infinity(lambda: get_epsilon_gaussian(spend[UNIT] ** -0.5, delta)), EXACT
    else:
        epsilon, accountant = by_pld(spend, delta), BY_PLD
    if accountant != EXACT or not epsilon < math.inf:
        bound = by_curve(lambda: compute_curve(spend), delta)
        if bound < epsilon:
            epsilon, accountant = bound, BELOW_PLD if epsilon < math.inf else BY_RDP
    if not epsilon < math.inf:
        raise OverflowError("no accountant finds a bound")
    return epsilon, accountant


def by_pld(spend: Spend, delta: float) -> float:
    """Epsilon from increasingly fine distributions, each of which gives an upper bound; inf if none is small enough.

    The first resolution is relative to the widest distribution: with little noise it is coarse rather than large.
    """
    if not all(n * FIRST**2 <= POINTS**2 for step, n in spend.items() if step != UNIT):
        return math.inf
    parts = [(Step("gaussian", n**-0.5), 1) if step == UNIT else (step, int(n)) for step, n in sorted(spend.items())]
    width = _compute_or_infinity(lambda: max(_loss_width(step) for step, _ in parts))
    if not 0 < width < math.inf:
        return math.inf
    grid, best = 2.0 ** math.ceil(math.log2(width / FIRST)), math.inf
    while True:
        epsilon, points = _epsilon_at(parts, grid, delta - ROUNDING)
        if not epsilon < best * (1 - SETTLED) or points * FINER > POINTS:
            return min(best, epsilon)
        grid, best = grid / FINER, epsilon


def compute_curve(spend: Spend) -> Curve:
    """Upper bounds on the Renyi divergences at ORDERS of everything together: they add up."""
    return sum((count * _compute_divergences(step) for step, count in spend.items() if count), np.zeros(len(ORDERS)))


def by_curve(divergences: Callable[[], Curve], delta: float) -> float:
    """Epsilon from upper bounds on the Renyi divergences at ORDERS; infinite if they cannot be computed."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp  # slow to import

    def compute() -> float:
        divergence = divergences()  # dp-accounting treats negative values and NaN as no loss
        return float(rdp.compute_epsilon(ORDERS, np.where(divergence >= 0, divergence, math.inf), delta)[0])

    return _compute_or_infinity(compute)


def _compute_or_infinity(compute: Callable[[], float]) -> float:
    """The computed value, or infinity: if the numbers are too large, there is no guarantee."""
    try:
        with np.errstate(all="ignore"):
            epsilon = float(compute())
    except (ArithmeticError, ValueError, RuntimeError, MemoryError):
        return math.inf
    return epsilon if epsilon >= 0 else math.inf


def _epsilon_at(parts: Sequence[tuple[Step, int]], grid: float, delta: float) -> tuple[float, int]:
    """Epsilon at one resolution, and how many points the composed distribution has (inf, 0 on failure)."""
    points = 0

    def compute() -> float:
        nonlocal points
        every = (_repeat_step(step, count, grid) for step, count in parts)
        distribution = reduce(lambda left, right: left.compose(right), every)
        points = distribution._pmf_remove.size  # dp-accounting has no public field for it
        return float(distribution.get_epsilon_for_delta(delta))

    return _compute_or_infinity(compute), points


@lru_cache(maxsize=64)
def _repeat_step(step: Step, count: int, grid: float) -> Any:
    """The privacy loss distribution of one mechanism that is used `count` times."""
    distribution = _build_distribution(step, grid)
    return distribution if count == 1 else distribution.self_compose(count)


@lru_cache(maxsize=64)
def _build_distribution(step: Step, grid: float) -> Any:
    """The privacy loss distribution of one mechanism, rounded upwards to multiples of `grid`."""
    from dp_accounting import NeighboringRelation  # slow to import
    from dp_accounting.pld import common  # slow to import
    from dp_accounting.pld import privacy_loss_distribution as pld  # slow to import
    from scipy.stats import binom  # slow to import

    if step.kind == "pure":
        return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(step.size), grid)
    if step.kind == "replaced":
        return pld.from_gaussian_mechanism(
            step.size,
            value_discretization_interval=grid,
            sampling_prob=step.q,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    if step.members > 1:
        drawn = np.arange(step.members + 1)
        weights = binom.pmf(drawn, step.members, step.q)
        return pld.from_mixture_gaussian_mechanism(
            step.size, drawn, weights / weights.sum(), value_discretization_interval=grid
        )
    make = pld.from_gaussian_mechanism if step.kind == "gaussian" else pld.from_laplace_mechanism
    return make(step.size, value_discretization_interval=grid, sampling_prob=step.q)


def _loss_width(step: Step) -> float:
    """Approximate distance of the smallest and the largest privacy loss of one mechanism, without tails of 1e-22."""
    if step.kind == "pure":
        return 2 * step.size
    if step.kind == "replaced":
        return 2 * _loss_width(step._replace(kind="gaussian"))
    shift = step.members / step.size
    largest = shift * shift / 2 + 10 * shift if step.kind == "gaussian" else shift
    return 2 * largest if step.q == 1 else amplify_epsilon(step, largest) - _log_missed(step)


def _log_missed(step: Step) -> float:
    """Logarithm of the probability that none of a person's records is drawn."""
    return step.members * math.log1p(-step.q)


def amplify_epsilon(step: Step, epsilon: float) -> float:
    """log(1 + q (exp(epsilon) - 1)): a pure epsilon after sampling (Li et al. 2012, theorem 1)."""
    missed = _log_missed(step)
    return float(np.logaddexp(missed, math.log(-math.expm1(missed)) + epsilon))


@lru_cache(maxsize=256)
def _compute_divergences(step: Step) -> Curve:
    """Upper bounds on the Renyi divergences of one mechanism; infinite if they could not be computed.

    A pure epsilon bounds them by min(epsilon, order * epsilon^2 / 2) (Bun and Steinke 2016, arXiv 1605.02065,
    proposition 3.3), after sampling a smaller one (Li, Qardaji and Su 2012, arXiv 1101.2604). A person with several
    records is charged as if all were drawn whenever one is. For a sampled Gaussian the whole orders are computed;
    between them (order - 1) times the divergence is convex (van Erven and Harremoes 2014, arXiv 1206.2459, corollary
    2), hence below its chord. A sample loses no more than all the data would.
    """
    from dp_accounting import dp_event  # slow to import
    from dp_accounting.rdp import rdp_privacy_accountant as rdp  # slow to import

    orders = np.asarray(ORDERS)
    if step.kind == "replaced":  # dp-accounting has none for a sample
        return np.full(len(orders), math.inf)
    if step.kind == "pure" or (step.kind == "laplace" and step.q < 1):
        epsilon = step.size if step.kind == "pure" else amplify_epsilon(step, 1 / step.size)
        return np.minimum(epsilon, orders * epsilon**2 / 2)
    noise = (dp_event.GaussianDpEvent if step.kind == "gaussian" else dp_event.LaplaceDpEvent)(step.size / step.members)
    divergence = rdp.RdpAccountant(ORDERS).compose(noise).rdp
    if step.q < 1:
        sampled = dp_event.PoissonSampledDpEvent(-math.expm1(_log_missed(step)), noise)
        scaled = (WHOLE_ORDERS - 1) * rdp.RdpAccountant(WHOLE_ORDERS).compose(sampled).rdp
        divergence = np.minimum(divergence, np.interp(orders, [1, *WHOLE_ORDERS], [0, *scaled]) / (orders - 1))
    return np.where(np.isfinite(divergence) & (divergence > 0), divergence + ROUNDING, math.inf)
