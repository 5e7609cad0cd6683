"""Channel moments of a network over a hospital's training patients, in one release with noise.

Of a patient, v holds for every channel the mean of its standard output u over all of the patient's images and their
places, and the mean of u^2, less 1, or an orthogonal map of both (`federation.matching`). A norm makes u about 0 in the
mean and 1 in the square whoever the patient is, so 0 is a public centre for v, and v has a length of order 1 for each
channel: |v| is cut to R = radius * sqrt(channels), a public number. Adding or removing a patient then changes the sum
of v by R at most (L2), however many images there are of the patient, and the sum leaves with Gaussian noise of standard
deviation s R in each number, s the noise multiplier: one event Gaussian(s). It is divided by the number of patients
that the hospital released.

Patients differ from their mean by far less than |v|. So where noise allows, half of 1 / s^2 pays for a centre c, which
is the mean above, and the other half for the mean of v - c cut to a smaller R', again of sensitivity R'. R' is the
length that the noise of c is expected to have, and SPREAD * sqrt(channels) for patients' differences: it follows from
public numbers, and so does the choice between one look and two. As one Gaussian mechanism (Dong, Roth, Su: Gaussian
differential privacy, J R Stat Soc B 2022, on adaptive composition), so one event is recorded for both.

Each patient passes alone through the network (`privacy.dp.persample`), and sums are exact (`privacy.dp.moments`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from privacy.dp import entropy
from privacy.dp.chunks import compute_repeatably, copy_rows
from privacy.dp.entropy import Source
from privacy.dp.moments import SLACK, UNIT, cut_rows

Look: TypeAlias = Callable[[Tensor], Tensor]
"""look(x (m, ...)) -> v (width,) of one patient with images x. It must not depend on other patients."""
SPREAD = 0.1
"""Of patients about their mean, for each root of a channel: what R' has beside noise; set once, on phantoms."""
RADIUS = 0.75
"""R for each root of a channel, unless told otherwise; set once, on phantoms, some of whom it cuts."""


class NoisedMean(NamedTuple):
    """mean: of the patients' v, with noise, float64. deviation: of the noise in each number."""

    mean: Tensor
    deviation: float


def noised_mean(
    look: Look,
    x: Tensor,
    whose: Sequence[Tensor],
    *,
    width: int,
    channels: int,
    count: int,
    noise: float,
    radius: float = RADIUS,
    source: Source = os.urandom,
) -> NoisedMean:
    """The mean of patients' v (width,) with noise; see the head of this file.

    Args:
        x: (n, ...) images; whose: for each patient the numbers of their rows. width: numbers in v. channels: of which
        they are. count: patients, as the hospital released them. noise: the multiplier s. radius: a public number.

    Raises:
        ValueError: radius is not a positive number.
    """
    if not (radius > 0 and math.isfinite(radius)):
        raise ValueError(f"radius must be a positive number, found {radius}")
    if not width:  # a norm of one channel a group has nothing to tell
        return NoisedMean(torch.zeros(0, dtype=torch.float64), 0.0)
    bounds = plan_bounds(width, channels, count, noise, radius)
    share, patients = 1 / len(bounds), max(1, count)
    mean = torch.zeros(width, dtype=torch.float64)
    deviation = 0.0
    for bound in bounds:
        total = sum_about(mean, look, x, whose, bound).double() / UNIT
        drawn = entropy.draw_gaussian((width,), SLACK * noise / math.sqrt(share), source)
        mean = mean + (total + drawn) * bound / patients
        deviation = SLACK * noise / math.sqrt(share) * bound / patients
    return NoisedMean(mean, deviation)


def plan_bounds(width: int, channels: int, count: int, noise: float, radius: float) -> tuple[float, ...]:
    """R of a single look, or R and R' of two where two leave less noise. From public numbers alone."""
    root, patients = math.sqrt(channels), max(1, count)
    first = radius * root
    second = math.sqrt(2) * noise * first / patients * math.sqrt(width) + SPREAD * root
    return (first,) if math.sqrt(2) * second >= first else (first, second)


def sum_about(centre: Tensor, look: Look, x: Tensor, whose: Sequence[Tensor], bound: float) -> Tensor:
    """The sum over patients of v - centre, cut to the bound and divided by it: int64 of 1 / UNIT."""
    parts = (cut_rows((v - centre)[None] / bound)[0] for v in _look_at_patients(look, x, whose))
    return sum(((part * UNIT).round().to(torch.int64) for part in parts), torch.zeros(len(centre), dtype=torch.int64))


def _look_at_patients(look: Look, x: Tensor, whose: Sequence[Tensor]) -> Iterator[Tensor]:
    """v of one patient after another, float64 on the CPU, each computed alone in memory of its own."""
    with compute_repeatably():
        for rows in whose:
            yield look(copy_rows(x, rows)).detach().double().cpu()
