"""Randomness that protects patients: from the operating system, never from a seed that is logged.

An attacker who can reproduce the noise can remove it. Torch's generators are not suitable: `manual_seed` keeps 32
bits of a seed on the CPU, few enough to try them all, and the Mersenne Twister is no cipher. So noise, and the choice
of patients, come from `os.urandom`; a test passes another `Source`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Source: TypeAlias = Callable[[int], bytes]
"""source(n) -> n random bytes. Only tests pass another one than `os.urandom`."""

RESOLUTION = 52  # with 53 bits the last middle would be rounded to 1
PARTS = 4


def uniform(shape: tuple[int, ...], source: Source = os.urandom) -> Tensor:
    """Float64 on the open interval (0, 1): the middles of 2^52 equal steps, so never 0 or 1."""
    count = math.prod(shape)
    if count == 0:
        return torch.zeros(shape, dtype=torch.float64)
    words = torch.frombuffer(bytearray(source(8 * count)), dtype=torch.int64)
    steps = words >> (64 - RESOLUTION)  # signed: -2^52 .. 2^52 - 1
    return ((steps.double() + 0.5) / 2.0**RESOLUTION + 0.5).reshape(shape)


def gaussian(shape: tuple[int, ...], std: float, source: Source = os.urandom) -> Tensor:
    """Float64 Gaussian noise of mean 0, as the sum of four (Holohan and Braghin, arXiv 2107.10138, section 5.1).

    Rounding leaves gaps between possible samples, and gaps reveal values; a sum of several has none that can be
    searched. Each part is one of a Box-Muller pair.

    Raises:
        ValueError: std is negative or not finite.
    """
    if not (std >= 0 and math.isfinite(std)):
        raise ValueError(f"std must be finite and >= 0, found {std}")
    u = uniform((2, PARTS // 2, *shape), source)
    radius, angle = (-2.0 * u[0].log()).sqrt(), 2.0 * math.pi * u[1]
    total = (radius * angle.cos() + radius * angle.sin()).sum(dim=0)
    return total * (std / math.sqrt(PARTS))


def chosen(count: int, probability: float, source: Source = os.urandom) -> Tensor:
    """(count,) bool: each one chosen with the same probability, independently (Poisson sampling).

    Raises:
        ValueError: the probability is not in [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"the sampling probability must be in [0, 1], found {probability}")
    return uniform((count,), source) < probability


def choices(shape: tuple[int, ...], below: Tensor, source: Source = os.urandom) -> Tensor:
    """Int64 of a shape, each equally likely in 0 .. below - 1, where `below` can be broadcast to the shape."""
    return (uniform(shape, source) * below).long().clamp(max=below.expand(shape) - 1)


def generator(source: Source = os.urandom) -> torch.Generator:
    """A torch generator for randomness within one patient's contribution (views, dropout), never for noise.

    All of the Mersenne Twister's state is random, not only the 32 bits of a seed.
    """
    made = torch.Generator().manual_seed(0)
    state = made.get_state()
    # The state of torch's CPU generator: 624 words of 64 bits, of which 32 are used, from byte 24 on.
    words = torch.zeros(624, dtype=torch.int64)
    words.view(torch.int32)[::2] = torch.frombuffer(bytearray(source(4 * 624)), dtype=torch.int32)
    state[24 : 24 + 8 * 624] = words.view(torch.uint8)
    made.set_state(state)
    return made
