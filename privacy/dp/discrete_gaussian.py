"""Exact samples of the discrete Gaussian distribution: whole numbers z with probability proportional to
exp(-z^2 / (2 sigma^2)).

Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy, NeurIPS 2020, algorithms 1 to 3: a sample of a
discrete Laplace distribution of scale t = floor(sigma) + 1 is accepted with probability
exp(-(|z| - sigma^2 / t)^2 / (2 sigma^2)). Whole numbers have no gaps through which noise could be recognized.

Every decision "with probability exp(-g)" is exact, although many are taken at once in float64: a random word of 64 bits
is compared with an approximation of exp(-g), and where they are closer than `MARGIN`, which is far above the
approximation's error, more random bits are compared with a value of enough digits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privacy.dp.entropy import Source

Whole: TypeAlias = NDArray[np.int64]
Truth: TypeAlias = NDArray[np.bool_]
MARGIN = 2.0**-40
"""More than the error of exp(-g) in float64 for every g here: their sizes are below 2^52, so that g is known to a few
units in its last place, and exp(-g) to 2^-48."""
LARGEST_SIGMA = 2.0**46
BATCH = 2.0
"""Candidates drawn for each number that is still missing; about half are accepted."""


def draw_discrete_gaussian(count: int, sigma: float, source: Source = os.urandom) -> Whole:
    """Independent samples: (count,) int64.

    Args:
        sigma: the distribution's parameter, nearly its standard deviation; 0 gives zeros.

    Raises:
        ValueError: sigma is negative, not finite, or above 2^46.
    """
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma must be in [0, 2^46], found {sigma}")
    if sigma == 0:
        return np.zeros(count, np.int64)
    scale, variance = math.floor(sigma) + 1, Fraction(sigma) ** 2
    centre = variance / scale
    accepted, missing = list[Whole](), count
    while missing > 0:
        z = _draw_laplace(math.ceil(BATCH * missing) + 8, scale, source)
        gap = (np.abs(z) - float(centre)) / sigma
        exact = _exponent_of(z, lambda size: (size - centre) ** 2 / (2 * variance))
        z = z[decide(gap * gap / 2, exact, source)]
        accepted.append(z[:missing])
        missing -= len(accepted[-1])
    return np.concatenate(accepted) if accepted else np.zeros(0, np.int64)


def _draw_laplace(count: int, scale: int, source: Source) -> Whole:
    """Samples with probability proportional to exp(-|z| / scale), from so many candidates: fewer than `count`."""
    u = draw_below(count, scale, source)
    u = u[decide(u / scale, lambda index: Fraction(int(u[index]), scale), source)]
    v = np.zeros(len(u), np.int64)
    going = np.arange(len(u))
    while len(going):
        going = going[decide(np.ones(len(going)), lambda index: Fraction(1), source)]
        v[going] += 1
    size = u + scale * v
    negative = (np.frombuffer(source(len(size)), np.uint8) & 1).astype(bool)
    is_counted = ~(negative & (size == 0))  # zero would otherwise be drawn twice as often
    signed: Whole = np.where(negative, -size, size)[is_counted]
    return signed


def draw_below(count: int, limit: int, source: Source = os.urandom) -> Whole:
    """Whole numbers in 0 .. limit - 1, each equally likely: (count,) int64. limit: at most 2^62."""
    mask = np.uint64((1 << (limit - 1).bit_length()) - 1)
    accepted, missing = list[Whole](), count
    while missing > 0:
        words = (np.frombuffer(source(8 * 2 * missing), np.uint64) & mask).astype(np.int64)
        accepted.append(words[words < limit][:missing])
        missing -= len(accepted[-1])
    return np.concatenate(accepted) if accepted else np.zeros(0, np.int64)


def decide(exponent: NDArray[np.float64], exact: Callable[[int], Fraction], source: Source = os.urandom) -> Truth:
    """(m,) bool: True with probability exp(-g), exactly, each independently.

    Args:
        exponent: (m,), g >= 0 to a few units in the last place. exact: the g of an index.
    """
    words = np.frombuffer(source(8 * len(exponent)), np.uint64)
    distance = words.astype(np.float64) * 2.0**-64 - np.exp(-exponent)
    decided: Truth = distance < 0
    for index in np.flatnonzero(np.abs(distance) < MARGIN):
        decided[index] = _decide_exactly(int(words[index]), exact(int(index)), source)
    return decided


def _decide_exactly(word: int, exponent: Fraction, source: Source) -> bool:
    """Whether the number whose binary digits begin with a word of 64 bits is below exp(-g); digits are drawn until it
    is known.
    """
    bits, digits = 64, 60
    while True:
        with localcontext() as context:
            context.prec = digits + 10
            target = (-(Decimal(exponent.numerator) / Decimal(exponent.denominator))).exp()
            error = Decimal(10) ** -digits
            low = Decimal(word) / (1 << bits)
            high = Decimal(word + 1) / (1 << bits)
            if high < target - error:
                return True
            if low > target + error:
                return False
        word, bits, digits = (word << 64) | int.from_bytes(source(8), "little"), bits + 64, digits + 20


def _exponent_of(z: Whole, exponent: Callable[[int], Fraction]) -> Callable[[int], Fraction]:
    """index -> the exact exponent of a sample's size."""
    return lambda index: exponent(abs(int(z[index])))
