"""Quantiles of one number per patient, found by comparisons with noise."""

from __future__ import annotations

import math
import os

from torch import Tensor

from privacy.dp import entropy
from privacy.dp.entropy import Source
from privacy.dp.events import Gaussian, SelfComposed
from privacy.dp.mechanisms import Noised


def noisy_quantile(
    values: Tensor,
    *,
    quantile: float,
    low: float,
    high: float,
    comparisons: int,
    noise_multiplier: float,
    source: Source = os.urandom,
) -> Noised[float]:
    """A quantile between two declared bounds, by bisection on a logarithmic scale.

    Each comparison asks whether more than this share of the patients lies below a value: the sum over patients of
    1 - quantile for who is below, and of -quantile for who is not, plus Gaussian noise. One patient who is added or
    removed changes the sum by max(quantile, 1 - quantile) at most, whoever else is there and however many there are; so
    the number of patients need not be known. Comparisons are chosen by the answers before them (adaptive composition).

    Args:
        values: (n,), one per patient, above 0; n may be 0. What is not finite counts as not below.
        quantile: share of the patients below, in (0, 1).
        low, high: declared, and not from the data; the result lies between them.
        comparisons: how often the range is halved; the result is known to a factor of (high / low)^(2^-comparisons).
        noise_multiplier: standard deviation of the noise of each comparison / its sensitivity.

    Returns:
        The middle of the last range, and SelfComposed(Gaussian(noise_multiplier), comparisons).

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    wrong = (
        [] if values.ndim == 1 else [f"values have shape {tuple(values.shape)}, needed is (n,), one value a patient"]
    )
    if not 0 < quantile < 1:
        wrong.append(f"quantile is {quantile}, needed is a share in (0, 1)")
    if not 0 < low < high < math.inf:
        wrong.append(f"[low, high] is [{low}, {high}], needed are finite bounds with 0 < low < high")
    if type(comparisons) is not int or comparisons < 1:
        wrong.append(f"comparisons is {comparisons!r}, needed is a whole number >= 1")
    if not 0 <= noise_multiplier < math.inf:
        wrong.append(f"noise_multiplier is {noise_multiplier}, allowed is a finite number >= 0")
    if wrong:
        raise ValueError(f"noisy_quantile: {'; '.join(wrong)}")
    exact, spread = values.double(), noise_multiplier * max(quantile, 1 - quantile)
    bottom, top = math.log(low), math.log(high)
    for _ in range(comparisons):
        middle = (bottom + top) / 2
        below = int((exact < math.exp(middle)).sum())
        excess = below - quantile * len(exact) + float(entropy.draw_gaussian((), spread, source))
        bottom, top = (bottom, middle) if excess > 0 else (middle, top)
    return Noised(math.exp((bottom + top) / 2), SelfComposed(Gaussian(noise_multiplier), comparisons))
