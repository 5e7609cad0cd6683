"""How much a planned network holds in memory while it learns, counted before it is built.

Nearly all of it are feature maps, which a backward pass needs again. As nnU-Net does, their values are counted, layer
by layer, and compared with those of networks that were seen to train in a known memory (Isensee et al., nnU-Net: a
self-configuring method for deep learning-based biomedical image segmentation, Nature Methods 18, 2021; the figures are
those of `ExperimentPlanner` in its version 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

REFERENCE_GIB = 8.0
"""The memory in which the reference networks train, in half precision on a GPU."""
REFERENCE_VALUES = {2: 12 * 85_000_000, 3: 2 * 560_000_000}
"""By axes: the values of a batch's feature maps in the reference network."""
FLOAT32_BYTES = 2 * 4
"""Of a value in float32: itself, kept for the backward pass, and its gradient."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A U-Net of convolutions. patch: what it sees at once, (D, H, W) or (H, W). kernels, strides: of each stage, the
    finest first; a stage strides before its two convolutions. filters: of each stage.
    """

    patch: tuple[int, ...]
    kernels: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    filters: tuple[int, ...]

    @property
    def divisor(self) -> tuple[int, ...]:
        """What divides each side of a patch: the product of the strides along it."""
        return tuple(math.prod(along) for along in zip(*self.strides, strict=True))


def count_values(network: Topology, classes: int) -> int:
    """How many values the feature maps of one example have: of two convolutions a stage on the way down, of an
    upsampling and two convolutions a stage on the way up, and of the answer. classes: with the background.
    """
    side, sizes = network.patch, list[int]()
    for stride, filters in zip(network.strides, network.filters, strict=True):
        side = tuple(length // step for length, step in zip(side, stride, strict=True))
        sizes.append(filters * math.prod(side))
    return 2 * sum(sizes) + 3 * sum(sizes[:-1]) + classes * math.prod(network.patch)


def budget_values(memory_gib: float, axes: int) -> float:
    """How many values the feature maps of a batch may have within a memory, in networks of 2 or 3 axes."""
    return REFERENCE_VALUES[axes] * memory_gib / REFERENCE_GIB


def float32_gib(values: float) -> float:
    """The GiB of so many values in float32, where nothing is computed in half precision, as on a CPU."""
    return values * FLOAT32_BYTES / 2**30
