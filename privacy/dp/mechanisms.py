"""Noise mechanisms for one number, one histogram, one choice; each returns the noised value and its event.

Every mechanism states the sensitivity to one patient who is added or removed, enforces it itself if it can, and returns
the event that an accountant prices. Noise is added whatever the patients are, also if there are none.

Rounding (Mironov, On significance of the least significant bits for differential privacy, 2012). Covered: noise and sum
are float64 and are rounded once, to the type of the result; one noise value is the sum of four
(`privacy/dp/entropy.py`), so that the gaps of a single sample cannot be searched; patients are summed exactly and the
sum is rounded once, so that it does not depend on their order and errors do not accumulate (Casacuberta et al.,
Widespread underestimation of sensitivity in differentially private libraries, CCS 2022). Not covered: the proofs are
about real numbers. A rounded sum can differ by one unit in its last place more than the stated bound, uniform numbers
have 53 bits, and nothing here hides the duration of a computation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from privacy.dp import entropy
from privacy.dp.entropy import Source
from privacy.dp.events import Event, Gaussian, Pure

T = TypeVar("T")

SLACK = 1e-9  # the library's root of delta(sigma) may be on the wrong side of delta by its tolerance


class Noised(NamedTuple, Generic[T]):
    """value: what may leave; event: the mechanism that made it."""

    value: T
    event: Event


def analytic_gaussian(
    value: Tensor, *, sensitivity: float, epsilon: float, delta: float, source: Source = os.urandom
) -> Noised[Tensor]:
    """`value` with just the Gaussian noise that (epsilon, delta) needs.

    The standard deviation is sensitivity * sigma, with sigma the root of delta(sigma, epsilon) = delta (Balle and Wang,
    Improving the Gaussian mechanism for differential privacy, ICML 2018, theorem 8), which is less than the classical
    sqrt(2 ln(1.25 / delta)) / epsilon and holds for epsilon > 1 too.

    Args:
        value: (...) floating point, computed from patients.
        sensitivity: the largest change of `value` by one patient, in L2. The caller guarantees it.

    Returns:
        The shape and type of `value`, and Gaussian(sigma).

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    from dp_accounting import get_sigma_gaussian  # slow to import

    wrong = _wrong_positive(sensitivity=sensitivity, epsilon=epsilon)
    if not 0 < delta < 1:
        wrong.append(f"delta is {delta}, allowed is above 0 and below 1, for instance 1e-5")
    if not value.is_floating_point():
        wrong.append(f"value is {value.dtype}, needed is a floating point type: give value.double()")
    elif not bool(value.isfinite().all()):
        wrong.append("value is not finite somewhere, so no sensitivity holds: bound each patient's part before the sum")
    _refuse_problems("analytic_gaussian", wrong)
    sigma = float(get_sigma_gaussian(epsilon, delta)) * (1 + SLACK)
    noise = entropy.draw_gaussian(tuple(value.shape), sensitivity * sigma, source)
    return Noised((value.double() + noise).to(value.dtype), Gaussian(sigma))


def bounded_mean(
    values: Tensor, *, low: float, high: float, count: int, noise_multiplier: float, source: Source = os.urandom
) -> Noised[float]:
    """Mean of one value per patient, each clipped to [low, high].

    Values are measured from the middle of the interval, so a patient changes their sum by (high - low) / 2 at most, and
    one whose value is not finite changes nothing. The sum is divided by `count`, which was declared public, so the
    result does not reveal the true number of patients, or whether there are any.

    Args:
        values: (n,), one value per patient; n may be 0.
        count: the divisor, about n, which the hospital declared public.
        noise_multiplier: standard deviation of the noise on the sum, in units of (high - low) / 2. With 0 there is no
            noise, and the event says so.

    Returns:
        A number in [low, high], and Gaussian(noise_multiplier).

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    wrong = _wrong_noise(noise_multiplier)
    if not (math.isfinite(low) and math.isfinite(high) and low < high and math.isfinite(high - low)):
        wrong.append(f"[low, high] is [{low}, {high}], needed are finite bounds with low < high")
    if type(count) is not int or count < 1:
        wrong.append(f"count is {count!r}, needed is a whole number >= 1 that was declared public")
    if values.ndim != 1:
        wrong.append(f"values have shape {tuple(values.shape)}, needed is (n,), one value a patient")
    _refuse_problems("bounded_mean", wrong)
    half = (high - low) / 2
    middle = low + half
    exact = values.double()
    offsets = torch.where(exact.isfinite(), exact - middle, 0.0).clamp(-half, half)
    noise = float(entropy.draw_gaussian((), noise_multiplier * half, source))
    mean = middle + (math.fsum(offsets.tolist()) + noise) / count
    return Noised(min(max(mean, low), high), Gaussian(noise_multiplier))


def vote_histogram(votes: Tensor, *, noise_multiplier: float, source: Source = os.urandom) -> Noised[Tensor]:
    """Sum of the patients' votes, each patient's divided by their sum, with Gaussian noise on every bin.

    A normalised row has L1 norm 1 and therefore L2 norm 1 at most: the sensitivity to one patient (Lin et al.,
    Differentially private synthetic data via foundation model APIs 1, ICLR 2024, with the patient as the unit).

    Args:
        votes: (n, bins), one row per patient; n may be 0. A row of zeros votes for nothing, and so does one with a
            negative or not finite entry: an error would reveal that such a patient is present.
        noise_multiplier: standard deviation of the noise. With 0 there is no noise, and the event says so.

    Returns:
        (bins,) float64, negative where noise exceeds the votes, and Gaussian(noise_multiplier).

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    wrong = _wrong_noise(noise_multiplier)
    if votes.ndim != 2 or votes.shape[1] == 0:
        wrong.append(f"votes have shape {tuple(votes.shape)}, needed is (n, bins) with bins >= 1")
    _refuse_problems("vote_histogram", wrong)
    exact = votes.double()
    usable = (exact.isfinite() & (exact >= 0)).all(dim=1, keepdim=True) & (exact > 0).any(dim=1, keepdim=True)
    exact = torch.where(usable, exact, 0.0)
    largest = torch.where(usable, exact.amax(dim=1, keepdim=True), 1.0)
    share = exact / largest  # divided by the largest first: the sum of a row of huge votes is not finite
    share = share / torch.where(usable, share.sum(dim=1, keepdim=True), 1.0)
    columns, rows = share.T.nonzero(as_tuple=True)  # ascending by column; zeros change no exact sum
    parts, ends = share.T[columns, rows].tolist(), torch.bincount(columns, minlength=votes.shape[1]).cumsum(0).tolist()
    sums = [math.fsum(parts[start:end]) for start, end in pairwise([0, *ends])]
    total = torch.tensor(sums, dtype=torch.float64)
    noise = entropy.draw_gaussian((votes.shape[1],), noise_multiplier, source)
    return Noised(total + noise, Gaussian(noise_multiplier))


def noisy_max(
    scores: Tensor, *, sensitivity: float, epsilon: float, monotone: bool = False, source: Source = os.urandom
) -> Noised[int]:
    """Index of a score that is about the largest: permute-and-flip.

    In random order each candidate i is accepted with probability exp(-rate * (max - score_i)), and the first accepted
    one is returned (McKenna and Sheldon, Permute-and-flip, NeurIPS 2020, algorithm 1). Its expected score is never
    below that of the exponential mechanism, and it equals report-noisy-max with exponential noise (Ding et al., arXiv
    2105.07260), without comparing noisy floating point numbers.

    Args:
        scores: (k,), finite. An error about them would depend on patients: bound each patient's part before.
        sensitivity: the largest change of each score by one patient, up or down. The caller guarantees it.
        monotone: an added patient moves no score down (or none up), as with counts. Then rate = epsilon / sensitivity;
            otherwise one score may rise while another falls, and rate = epsilon / (2 sensitivity).

    Returns:
        0 .. k - 1, and Pure(epsilon).

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    wrong = _wrong_positive(sensitivity=sensitivity, epsilon=epsilon)
    if scores.ndim != 1 or len(scores) == 0:
        wrong.append(f"scores have shape {tuple(scores.shape)}, needed is (k,) with k >= 1")
    elif not bool(scores.isfinite().all()):
        wrong.append("scores are not finite somewhere, so no sensitivity holds")
    _refuse_problems("noisy_max", wrong)
    exact = scores.double()
    taken = flip_probabilities(exact, sensitivity=sensitivity, epsilon=epsilon, monotone=monotone)
    heads = entropy.draw_uniform(tuple(exact.shape), source) < taken
    place = entropy.draw_uniform(tuple(exact.shape), source)
    return Noised(int(torch.where(heads, place, math.inf).argmin()), Pure(epsilon))


def flip_probabilities(scores: Tensor, *, sensitivity: float, epsilon: float, monotone: bool) -> Tensor:
    """(k,) float64: the probability that permute-and-flip accepts each candidate in its turn; 1 for the
    largest.
    """
    rate = epsilon / (sensitivity if monotone else 2 * sensitivity)
    return torch.exp(-rate * (scores.double().max() - scores.double()))


def _wrong_noise(noise_multiplier: float) -> list[str]:
    """A sentence if the noise multiplier is negative or not finite."""
    if noise_multiplier >= 0 and math.isfinite(noise_multiplier):
        return []
    return [f"noise_multiplier is {noise_multiplier}, allowed is a finite number >= 0"]


def _wrong_positive(**numbers: float) -> list[str]:
    """A sentence for each number that is not finite or not above 0."""
    named: Mapping[str, float] = numbers
    return [
        f"{name} is {number}, allowed is a finite number above 0"
        for name, number in named.items()
        if not (number > 0 and math.isfinite(number))
    ]


def _refuse_problems(mechanism: str, wrong: list[str]) -> None:
    """Raises: ValueError: there are sentences; the error names all."""
    if wrong:
        raise ValueError(f"{mechanism}: " + "; ".join(wrong))
