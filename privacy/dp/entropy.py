"""Randomness that protects patients: from the operating system, never from a seed that is logged.

An attacker who can reproduce the noise can remove it. Torch's generators are not suitable: `manual_seed` keeps 32
bits of a seed on the CPU, few enough to try them all, and the Mersenne Twister is no cipher. So noise, and the choice
of patients, come from `os.urandom`; a test passes another `Source`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Source: TypeAlias = Callable[[int], bytes]
"""source(n) -> n random bytes. Only tests pass another one than `os.urandom`."""

RESOLUTION = 52  # with 53 bits the last middle would be rounded to 1
PARTS = 4
WORDS = 624  # of the Mersenne Twister's state


def draw_uniform(shape: tuple[int, ...], source: Source = os.urandom) -> Tensor:
    """Float64 on the open interval (0, 1): the middles of 2^52 equal steps, so never 0 or 1."""
    words = np.frombuffer(source(8 * math.prod(shape)), np.int64)
    steps = (words >> (64 - RESOLUTION)).astype(np.float64)  # signed: -2^52 .. 2^52 - 1
    steps += 0.5
    steps *= 2.0**-RESOLUTION
    steps += 0.5
    return torch.from_numpy(steps).view(shape)


def draw_gaussian(shape: tuple[int, ...], std: float, source: Source = os.urandom) -> Tensor:
    """Float64 Gaussian noise of mean 0, see `gaussians`.

    Raises:
        ValueError: std is negative or not finite.
    """
    return draw_gaussians([math.prod(shape)], std, source).reshape(shape)


def draw_gaussians(sizes: Sequence[int], std: float, source: Source = os.urandom) -> Tensor:
    """Float64 Gaussian noise of mean 0 for tensors of these sizes, one after the other: (their sum,).

    Each number is the sum of four (Holohan and Braghin, arXiv 2107.10138, section 5.1): rounding leaves gaps between
    possible samples, and gaps reveal values; a sum of several has none that can be searched. Each part is one of a
    Box-Muller pair. The source is asked once, and gives each tensor the bytes that asking for each alone would.

    Raises:
        ValueError: std is negative or not finite.
    """
    if not (std >= 0 and math.isfinite(std)):
        raise ValueError(f"std must be finite and >= 0, found {std}")
    drawn = draw_uniform((PARTS * sum(sizes),), source)
    each = [part.view(PARTS, -1) for part in torch.split(drawn, [PARTS * size for size in sizes]) if len(part)]
    u = (torch.cat(each, dim=1) if each else drawn).view(2, PARTS // 2, -1)
    radius, angle = u[0].log().mul_(-2.0).sqrt_(), u[1] * (2.0 * math.pi)
    return (radius * angle.cos()).add_(radius.mul_(angle.sin_())).sum(dim=0).mul_(std / math.sqrt(PARTS))


def draw_choices(count: int, probability: float, source: Source = os.urandom) -> Tensor:
    """(count,) bool: each one chosen with the same probability, independently (Poisson sampling).

    Raises:
        ValueError: the probability is not in [0, 1].
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"the sampling probability must be in [0, 1], found {probability}")
    return draw_uniform((count,), source) < probability


def draw_integers(shape: tuple[int, ...], below: Tensor, source: Source = os.urandom) -> Tensor:
    """Int64 of a shape, each equally likely in 0 .. below - 1, where `below` can be broadcast to the shape."""
    return (draw_uniform(shape, source) * below).long().clamp(max=below.expand(shape) - 1)


def make_generator(source: Source = os.urandom) -> torch.Generator:
    """A torch generator for randomness within one patient's contribution (views, dropout), never for noise.

    All of the Mersenne Twister's state is random, not only the 32 bits of a seed.
    """
    made = torch.Generator()
    made.set_state(make_generator_state(source))
    return made


def make_generator_state(source: Source = os.urandom) -> Tensor:
    """The state of such a generator, for `set_state` and `torch.set_rng_state`."""
    # The state of torch's CPU generator: 624 words of 64 bits, of which 32 are used, from byte 24 on.
    words = np.frombuffer(source(4 * WORDS), "<u4").astype("<u8").tobytes()
    before, after = _state_margins()
    return torch.frombuffer(bytearray(before + words + after), dtype=torch.uint8)


@cache
def _state_margins() -> tuple[bytes, bytes]:
    """The bytes before and after the words of a generator that has drawn nothing."""
    fresh = bytes(torch.Generator().manual_seed(0).get_state().numpy())
    return fresh[:24], fresh[24 + 8 * WORDS :]


@contextmanager
def seed_unrepeatably(source: Source = os.urandom) -> Iterator[None]:
    """Seed torch's generators, which dropout uses, from `source`, so that nobody can reproduce them."""
    cuda = torch.cuda.is_available()
    before = torch.get_rng_state()
    with torch.random.fork_rng() if cuda else nullcontext():
        if cuda:
            torch.cuda.manual_seed_all(int.from_bytes(source(8), "little"))
        torch.set_rng_state(make_generator_state(source))
        try:
            yield
        finally:
            torch.set_rng_state(before)
