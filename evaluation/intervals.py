"""Intervals from bootstrap copies and from repeated runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.histograms import Floats

LEVEL = 0.95
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
"""Coverage that all intervals aim at, and the shares below their ends."""


@dataclass(frozen=True)
class Estimate:
    """A value with its interval.

    n: number of copies or runs behind the interval. ignored: copies in which the value is not defined, for instance
    because no patient with a lesion was drawn. low and high are NaN if no interval can be given.
    """

    value: float
    low: float
    high: float
    n: int
    ignored: int = 0

    @property
    def numbers(self) -> tuple[float, float, float]:
        """The value, and the ends of its interval."""
        return self.value, self.low, self.high


def percentile_interval(copies: Floats) -> Estimate:
    """Percentile bootstrap interval (Efron and Tibshirani 1993, chapter 13).

    copies: (1 + B,), first the sample's value, then the copies'. NaN copies are ignored, and counted.

    Raises:
        ValueError: the shape of `copies` is not allowed.
    """
    if copies.ndim != 1 or len(copies) < 1:
        raise ValueError(f"copies have shape {copies.shape}, needed is (1 + B,)")
    value, drawn = float(copies[0]), copies[1:]
    usable = drawn[np.isfinite(drawn)]
    ignored = len(drawn) - len(usable)
    if len(usable) < 2 or not math.isfinite(value):
        return Estimate(value, math.nan, math.nan, len(usable), ignored)
    ordered = np.sort(usable)
    low, high = (interpolate_quantile(ordered, share) for share in ENDS)
    return Estimate(value, low, high, len(usable), ignored)


def interpolate_quantile(ordered: Floats, share: float) -> float:
    """The quantile of n sorted numbers, n >= 1, to the bit as `np.quantile` has it, whose checks take thirty times as
    long: a page has thousands of intervals.
    """
    place = share * (len(ordered) - 1)
    before = math.floor(place)
    low, high, along = float(ordered[before]), float(ordered[min(before + 1, len(ordered) - 1)]), place - before
    return high - (high - low) * (1 - along) if along >= 0.5 else low + (high - low) * along


def t_interval(runs: Sequence[float]) -> Estimate:
    """Mean of n runs with Student's t interval; with a single run there is no interval.

    Raises:
        ValueError: no runs, or a run that is not finite.
    """
    from scipy import stats  # slow to import

    if not runs or not all(math.isfinite(run) for run in runs):
        raise ValueError(f"runs are {list(runs)}, needed is at least one, all finite; leave failed runs out by name")
    mean, n = float(np.mean(runs)), len(runs)
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    half = float(stats.t.ppf(ENDS[1], n - 1) * np.std(runs, ddof=1) / math.sqrt(n))
    return Estimate(mean, mean - half, mean + half, n)
