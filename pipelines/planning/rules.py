"""nnU-Net's rules from spacings and shapes to a network: pure functions, which know no file and no hospital.

Isensee et al., nnU-Net: a self-configuring method for deep learning-based biomedical image segmentation, Nature Methods
18, 2021, and its source, version 2 (`ExperimentPlanner`, `get_pool_and_conv_props`), in our words. Axes are those of an
example: (depth, rows, columns), or (rows, columns).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipelines.planning.memory import Topology, budget_values, count_values

ANISOTROPY = 3.0
"""An axis is coarse if its spacing is more than so many times the others', and its voxels fewer by as much."""
LEAST_SIDE = 4
"""Of a feature map, in voxels, along an axis that is pooled."""
SAME = 2.0
"""Spacings within this factor are pooled, and convolved, together."""
LEAST_BATCH = 2
MOST_SHARE = 0.05
"""Of the voxels of a hospital's studies, in one batch of its own."""
FIRST_FILTERS = 32
MOST_FILTERS = {2: 512, 3: 320}
FIRST_SIDE = {2: 2048, 3: 256}
"""Of the cube, or square, as large as which a patch begins."""


class NoPlan(ValueError):
    """Nothing fits what was asked for; the text says what would."""


class Target(NamedTuple):
    """The spacing to which studies are resampled, mm by axis. coarse: the axis that is much coarser; None: none is."""

    spacing: tuple[float, ...]
    coarse: int | None


def find_target_spacing(spacing: Sequence[float], voxels: Sequence[float], fine: Sequence[float]) -> Target:
    """The median spacing of each axis; along an axis that is much coarser than the others, and has as many times fewer
    voxels, the 10th percentile, so that thin slices need not be made thick. It is never finer than the other axes.

    spacing, voxels: medians by axis. fine: 10th percentiles of the spacing.
    """
    worst = max(range(len(spacing)), key=lambda axis: spacing[axis])
    rest = [axis for axis in range(len(spacing)) if axis != worst]
    coarsest_other = max(spacing[axis] for axis in rest)
    is_coarse = spacing[worst] > ANISOTROPY * coarsest_other
    if not (is_coarse and voxels[worst] * ANISOTROPY < min(voxels[axis] for axis in rest)):
        return Target(tuple(spacing), None)
    chosen = max(fine[worst], coarsest_other)
    return Target(tuple(chosen if axis == worst else spacing[axis] for axis in range(len(spacing))), worst)


def resample_shape(extent: Sequence[float], spacing: Sequence[float]) -> tuple[int, ...]:
    """The voxels that cover an extent at a spacing, in the same unit; at least one along each axis."""
    return tuple(max(1, round(length / step)) for length, step in zip(extent, spacing, strict=True))


def build_topology(spacing: Sequence[float], patch: Sequence[float], filters: int = FIRST_FILTERS) -> Topology:
    """The network for a patch, whose sides are rounded up to what its strides divide.

    Each stage halves the axes that are at least 8 voxels long and, as they are by then, less than twice as coarse as
    the finest of these; a single one only from 12 voxels on. A kernel is 1 along an axis until pooling has made the
    others as coarse, and 3 from then on. The last stage has kernels of 3.
    """
    axes = range(len(patch))
    lengths, sides, kernel = [*spacing], [*map(math.ceil, patch)], [1 for _ in axes]
    strides, kernels = [tuple(1 for _ in axes)], list[tuple[int, ...]]()
    while long_axes := [axis for axis in axes if sides[axis] >= 2 * LEAST_SIDE]:
        finest = min(lengths[axis] for axis in long_axes)
        halved = [axis for axis in long_axes if lengths[axis] / finest < SAME]
        if len(halved) == 1 and sides[halved[0]] < 3 * LEAST_SIDE:
            break
        kernel = [3 if lengths[axis] / min(lengths) < SAME else kernel[axis] for axis in axes]
        kernels.append(tuple(kernel))
        strides.append(tuple(2 if axis in halved else 1 for axis in axes))
        for axis in halved:
            lengths[axis], sides[axis] = 2 * lengths[axis], math.ceil(sides[axis] / 2)
    kernels.append(tuple(3 for _ in axes))
    most = MOST_FILTERS[len(patch)] * filters // FIRST_FILTERS
    widths = tuple(min(most, filters * 2**stage) for stage in range(len(strides)))
    divisor = [math.prod(along) for along in zip(*strides, strict=True)]
    rounded = tuple(-(-math.ceil(side) // step) * step for side, step in zip(patch, divisor, strict=True))
    return Topology(patch=rounded, kernels=tuple(kernels), strides=tuple(strides), filters=widths)


def list_topologies(spacing: Sequence[float], median: Sequence[float], filters: int) -> Iterator[Topology]:
    """Networks for ever smaller patches. The first sees as much as a median study, or a cube of 256 voxels (a square of
    2048) of its shape in mm; each next one loses a step along the axis on which it sees most of a median study.

    median: the shape of a median study at this spacing.
    """
    axes = range(len(spacing))
    inverse = [1 / step for step in spacing]
    scale = FIRST_SIDE[len(spacing)] / math.prod(inverse) ** (1 / len(spacing))
    first = [min(round(side * scale), length) for side, length in zip(inverse, median, strict=True)]
    network = build_topology(spacing, first, filters)
    seen = set[tuple[int, ...]]()
    while network.patch not in seen:
        yield network
        seen.add(network.patch)
        patch = [*network.patch]
        longest = max(axes, key=lambda axis: (patch[axis] / median[axis], axis))
        patch[longest] -= network.divisor[longest]
        if patch[longest] < 1:
            return
        # A smaller patch may be halved less often, so that smaller steps do: 256 - 64 = 192 would skip 224.
        patch[longest] = network.patch[longest] - build_topology(spacing, patch, filters).divisor[longest]
        network = build_topology(spacing, patch, filters)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A network and a batch within a memory. values: of the feature maps of one example."""

    network: Topology
    batch: int
    values: int


def fit_network(
    spacing: Sequence[float],
    median: Sequence[float],
    *,
    classes: int,
    voxels: float,
    memory_gib: float,
    filters: int = FIRST_FILTERS,
) -> Fitted:
    """The network of `list_topologies` with the largest patch of which a batch of two fits into the memory: more memory
    never gives a smaller one. What the memory holds beyond is for a larger batch, but none has more than 5 % of
    the voxels that there are, unless it has two examples.

    classes: with the background. voxels: of all studies that batches are drawn from.

    Raises:
        NoPlan: not even the smallest patch that can be halved fits, or studies are smaller.
    """
    budget = budget_values(memory_gib, len(spacing))
    networks = [network for network in list_topologies(spacing, median, filters) if len(network.strides) > 1]
    if not networks:
        raise NoPlan(f"studies of {' x '.join(map(str, median))} voxels are too small to be halved once; 8 x 8 can be")
    counted = [(network, count_values(network, classes)) for network in networks]
    fitting = [(network, values) for network, values in counted if LEAST_BATCH * values <= budget]
    if fitting:
        network, values = max(fitting, key=lambda pair: math.prod(pair[0].patch))
        share = round(MOST_SHARE * voxels / math.prod(network.patch))
        return Fitted(network=network, batch=max(LEAST_BATCH, min(round(budget / values), share)), values=values)
    least = min(values for _, values in counted)
    needed = memory_gib * LEAST_BATCH * least / budget
    raise NoPlan(f"memory: {memory_gib:g} GiB hold no patch; {math.ceil(needed * 1000) / 1000:g} GiB hold the smallest")
