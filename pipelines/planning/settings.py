"""From what all hospitals' studies are to the settings of a run, each with its reason.

The values of training are those of nnU-Net's trainer, version 2 (`nnUNetTrainer`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.planning.fingerprint import Common
from pipelines.planning.memory import budget_values, float32_gib
from pipelines.planning.rules import (
    ANISOTROPY,
    FIRST_FILTERS,
    LEAST_BATCH,
    MOST_FILTERS,
    MOST_SHARE,
    Fitted,
    NoPlan,
    Target,
    find_target_spacing,
    fit_network,
    resample_shape,
)

Plain: TypeAlias = object
AnyPlanned: TypeAlias = Volumes | Slices | Pictures
SPACING_MM, DEPTH_MM, SIZE, DEPTH = (0.1, 10.0), (0.1, 20.0), (8, 1024), (4, 1024)
"""What `images` allows."""
FOREGROUND = 0.33
CROPPED = 0.75
"""nnU-Net takes a mean over nonzero voxels where their bounding box is a smaller share of a median study."""
CT = "CT"
ELONGATED = 1.5
"""With sides that differ by more, pictures are turned by 15 degrees only, not all around."""


class Line(NamedTuple):
    """A setting and why it is so. value: a number, a text, null, a list or a mapping of these; or a list of lines."""

    key: str
    value: Plain
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """What a run may take. memory_gib: of the machine that trains. filters: of the first stage. rounds, steps: each
    hospital takes so many steps in each round.
    """

    memory_gib: float = 8.0
    filters: int = FIRST_FILTERS
    rounds: int = 1000
    steps: int = 250

    def __post_init__(self) -> None:
        wrong = [
            f"{name}: must be {allowed}, found {value:g}"
            for name, value, allowed, good in (
                ("memory", self.memory_gib, "> 0 GiB", 0 < self.memory_gib < math.inf),
                ("rounds", self.rounds, "a whole number >= 1", self.rounds >= 1),
                ("steps", self.steps, "a whole number >= 1", self.steps >= 1),
            )
            if not good
        ]
        if wrong:
            raise NoPlan("; ".join(wrong))


SMALL = Effort(memory_gib=1.0, filters=8, rounds=40, steps=25)
"""For a processor without a GPU, and a first look."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The grid of examples. target: spacing by axis of an example. median, cover: shapes at it, of a median study and
    of what the grid shall cover. voxels: of all studies of a hospital, on the mean.
    """

    target: Target
    median: tuple[int, ...]
    cover: tuple[int, ...]
    voxels: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """images, model, work, schedule: settings with their reasons. grid: see `Grid`. sides: of an example. fitted:
    network and batch.
    """

    images: tuple[Line, ...]
    model: tuple[Line, ...]
    work: tuple[Line, ...]
    schedule: tuple[Line, ...]
    grid: Grid
    sides: tuple[int, ...]
    fitted: Fitted


def plan_settings(common: Common, images: AnyPlanned, classes: int, effort: Effort) -> Plan:
    """Plan a run. images: of the configuration; its kind stays, and what no rule decides. classes: with the background.

    Raises:
        NoPlan: the memory holds no patch.
    """
    grid = choose_grid(common, images)
    fitted = fit_network(
        grid.target.spacing,
        grid.median,
        classes=classes,
        voxels=grid.voxels,
        memory_gib=effort.memory_gib,
        filters=effort.filters,
    )
    sides = _round_sides(grid.cover, fitted)
    usual = (effort.rounds, effort.steps) == (Effort.rounds, Effort.steps)
    reason = (
        "as many as nnU-Net's epochs" if usual else f"as asked; nnU-Net takes {Effort.rounds} of {Effort.steps} steps"
    )
    return Plan(
        images=tuple(_list_images(common, images, grid, sides)),
        model=tuple(_list_model(grid, fitted, effort)),
        work=tuple(_list_work(images, fitted, effort)),
        schedule=(Line("rounds", effort.rounds, reason),),
        grid=grid,
        sides=sides,
        fitted=fitted,
    )


def choose_grid(common: Common, images: AnyPlanned) -> Grid:
    """The spacing of examples, and the shapes of studies at it. In the plane pixels are square, of the geometric mean
    of rows' and columns' spacings. A picture is as large as the settings fit it into a square.
    """
    if isinstance(images, Pictures):
        longest = _side_of_picture(common, images)
        side = min(longest, SIZE[1])
        return Grid(
            target=Target((1.0, 1.0), None),
            median=(side, side),
            cover=(longest, longest),
            voxels=common.studies / len(common.sites) * side * side,
        )
    spacing, coarse = find_target_spacing(common.spacing, common.voxels, common.fine)
    through, plane = _clamp(spacing[0], DEPTH_MM), _clamp(math.sqrt(spacing[1] * spacing[2]), SPACING_MM)
    square = (through, plane, plane)
    median = resample_shape(common.extent, square)
    cover = tuple(math.ceil(length / step - 1e-6) for length, step in zip(common.cover, square, strict=True))
    first = 0 if isinstance(images, Volumes) else 1
    return Grid(
        target=Target(square[first:], coarse if first == 0 else None),
        median=tuple(min(length, most) for length, most in zip(median, (DEPTH[1], SIZE[1], SIZE[1]), strict=True))[
            first:
        ],
        cover=cover[first:],
        voxels=common.studies / len(common.sites) * math.prod(median),
    )


def _side_of_picture(common: Common, images: Pictures) -> int:
    """The side of the square into which a median picture is fitted without loss."""
    if images.fit == "around":
        return images.size
    return round(min(common.extent) if images.fit == "crop" else max(common.extent))


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    """The nearest value within bounds, with four significant digits."""
    return float(f"{min(max(value, bounds[0]), bounds[1]):.4g}")


def _round_sides(cover: Sequence[int], fitted: Fitted) -> tuple[int, ...]:
    """The sides of an example: square in the plane, no smaller than a patch, divided by what strides divide."""
    network = fitted.network
    rounded = [
        max(patch, -(-side // step) * step)
        for side, patch, step in zip(cover, network.patch, network.divisor, strict=True)
    ]
    step = max(network.divisor[-2:])
    plane = min(max(*rounded[-2:], SIZE[0]), SIZE[1])
    plane = max(-(-plane // step) * step if plane < SIZE[1] else plane // step * step, *network.patch[-2:])
    if len(rounded) == 2:
        return plane, plane
    through = network.divisor[0]
    depth = min(max(rounded[0], -(-DEPTH[0] // through) * through), DEPTH[1] // through * through)
    return depth, plane, plane


def _list_images(common: Common, images: AnyPlanned, grid: Grid, sides: tuple[int, ...]) -> Iterator[Line]:
    """`images`, line by line."""
    yield Line("kind", images.kind, "as it was")
    if isinstance(images, Pictures):
        fits = {"squash": "the longer", "crop": "the shorter"}
        why = f"{fits.get(images.fit, '')} side of a median picture, {grid.cover[0]} pixels"
        reason = (
            "as it was: a fingerprint does not tell how large what is cut out is" if images.fit == "around" else why
        )
        longer = f"; {SIZE[1]} are the most, and pictures are made smaller" if grid.cover[-1] > sides[-1] else ""
        yield Line("size", sides[-1], reason + (longer or _rounded_words(grid.cover[-1], sides[-1], SIZE[1])))
        unchanged = ("channels", "fit", "margin", "jitter")
        yield from (
            Line(key, getattr(images, key), "as it was") for key in unchanged if getattr(images, key) is not None
        )
        return
    yield from _list_values(common, images)
    rows, columns = common.spacing[-2:]
    in_plane = (
        "median in the plane"
        if math.isclose(rows, columns, rel_tol=1e-3)
        else (f"pixels are square here: geometric mean of the medians of rows, {rows:g}, and columns, {columns:g}")
    )
    yield Line("spacing_mm", grid.target.spacing[-1], in_plane)
    where = " in every hospital" if len(common.sites) > 1 else ""
    covered = f"covers {max(common.cover[-2:]):.4g} mm, what 95 % of studies need{where}"
    yield Line("size", sides[-1], covered + _rounded_words(max(grid.cover[-2:]), sides[-1], SIZE[1]))
    if isinstance(images, Volumes):
        coarse = (
            f"10th percentile between slices: they are more than {ANISOTROPY:g} times as far apart as pixels, and as "
            "many times fewer"
        )
        yield Line(
            "depth_mm", grid.target.spacing[0], "median between slices" if grid.target.coarse is None else coarse
        )
        covered = f"covers {common.cover[0]:.4g} mm"
        yield Line("depth", sides[0], covered + _rounded_words(grid.cover[0], sides[0], DEPTH[1]))
    else:
        yield Line("slices", images.slices, "as it was")
        yield Line("context", images.context, "as it was")
    yield Line("centre", "image", "whole studies count, so that nothing need be found in them first")


def _rounded_words(cover: int, side: int, most: int) -> str:
    """How a side differs from what it shall cover."""
    if side < cover:
        return f", of which {side} voxels of {cover} fit ({most} are the most); what lies outside is cut"
    return "" if side == cover else f"; {cover} voxels, rounded up to what strides halve, and to a patch"


def _list_values(common: Common, images: Volumes | Slices) -> Iterator[Line]:
    """How intensities are made comparable."""
    if images.values == "adc":
        yield Line("values", "adc", "keeps its unit, 1e-3 mm²/s, which means the same in every hospital")
        return
    is_ct = common.modality == CT
    if is_ct and common.intensity:
        known = common.intensity
        scale = {"low": known["p0.5"], "high": known["p99.5"], "mean": known["mean"], "sd": known["sd"]}
        yield Line("values", "standardized", "alike in all studies, as CT has a unit")
        inside = "clipped to what 0.5 and 99.5 % of the values inside masks do not exceed, by their mean and sd"
        yield Line("ct", {name: float(f"{value:.6g}") for name, value in scale.items()}, inside)
        return
    unknown = "each study by its own mean and sd: no hospital told values of CT inside masks"
    usual = "each study by its own mean and sd: values have no unit in common"
    yield Line("values", "standardized", unknown if is_ct else usual)
    share = common.box_share
    size = "no hospital told how much" if share is None else f"{share:.0%} of a median study"
    if share is not None and share < CROPPED:
        yield Line("nonzero", True, f"of what is not 0, as its bounding box is {size}")
        return
    yield Line("nonzero", False, f"of all voxels in the bounding box of what is not 0 ({size}), so that air is dark")


def _list_model(grid: Grid, fitted: Fitted, effort: Effort) -> Iterator[Line]:
    """`model`, line by line."""
    network, axes = fitted.network, len(fitted.network.patch)
    limit = f"two of them take {effort.memory_gib:g} GiB at most, by nnU-Net's count for half precision"
    real = f"{float32_gib(LEAST_BATCH * fitted.values):.2g} GiB of feature maps in float32"
    yield Line("name", "planned", "nnU-Net's network")
    yield Line("patch", [*network.patch], f"of a median study of {_times(grid.median)} voxels; {limit} ({real})")
    why = "3 along an axis once others are as coarse, 1 before" if _has_flat_kernels(fitted) else "axes are alike"
    yield Line("kernels", [[*kernel] for kernel in network.kernels], why)
    halved = "an axis is halved while it has 8 voxels and no other is twice as fine"
    yield Line("strides", [[*stride] for stride in network.strides], halved)
    most = MOST_FILTERS[axes] * effort.filters // FIRST_FILTERS
    yield Line("filters", [*network.filters], f"doubled by each stage, {most} at most")
    yield Line("norm", "instance", "of one example alone, so that hospitals share no statistics of images")
    yield Line("deep_supervision", True, "losses at lower resolutions too")


def _has_flat_kernels(fitted: Fitted) -> bool:
    """Whether some kernel is 1 along an axis."""
    return any(1 in kernel for kernel in fitted.network.kernels)


def _times(shape: Sequence[int]) -> str:
    """A shape as text."""
    return " x ".join(map(str, shape))


def _list_work(images: AnyPlanned, fitted: Fitted, effort: Effort) -> Iterator[Line]:
    """`train.work`, line by line."""
    yield Line("optimizer", "sgd", "with Nesterov's momentum, as nnU-Net")
    yield Line("momentum", 0.99)
    yield Line("nesterov", True)
    yield Line("weight_decay", 3e-5)
    yield Line("lr", 1e-2)
    yield Line("rate", {"name": "polynomial", "power": 0.9}, "falls to 0 over all rounds")
    yield Line("clip_norm", 12.0, "of a step's gradient")
    yield Line("batch", fitted.batch, _describe_batch(fitted, effort))
    yield Line("epochs", None, "steps count, so that hospitals of any size do as much")
    yield Line("steps", effort.steps, "of each hospital in a round")
    share = share_about_foreground(fitted.batch)
    yield Line("foreground", share, f"{FOREGROUND:.0%} of a batch, in whole patches as nnU-Net counts")
    views = list_views(fitted.network.patch, flat=not isinstance(images, Volumes))
    yield Line("torchio", views, "nnU-Net's views, but for brightness and contrast, of which there are none")


def share_about_foreground(batch: int) -> float:
    """nnU-Net's share of a batch: its last patches, from the rounded place at which a third is left."""
    return float(f"{1 - round(batch * (1 - FOREGROUND)) / batch:.4g}")


def _describe_batch(fitted: Fitted, effort: Effort) -> str:
    """Why a batch has so many patches."""
    fitting = round(budget_values(effort.memory_gib, len(fitted.network.patch)) / fitted.values)
    if fitted.batch == fitting:
        return (
            "as many patches as the memory holds"
            if fitting > LEAST_BATCH
            else "the least: patches are as large as can be"
        )
    return f"no more than {MOST_SHARE:.0%} of a hospital's voxels, or two patches, though the memory holds {fitting}"


def list_views(patch: Sequence[int], *, flat: bool) -> list[Line]:
    """nnU-Net's random views, as far as TorchIO has them. flat: examples have two axes."""
    degrees: float | list[int]
    if flat:
        degrees = 15 if max(patch) > ELONGATED * min(patch) else 180
        turning = "all around" if degrees == 180 else "a little, as patches are elongated"
    else:
        is_thick = max(patch) > ANISOTROPY * patch[0]
        degrees = [0, 0, 0, 0, -180, 180] if is_thick else 30
        turning = "all around in the plane alone, as a patch has few slices" if is_thick else "about each axis"
    axes = [0, 1] if flat else [0, 1, 2]
    return [
        _view("affine", turning, scales=0.0, degrees=degrees, p=0.2),
        _view("affine", "larger and smaller", scales=[0.7, 1.4], degrees=0, isotropic=True, p=0.2),
        _view("noise", "nnU-Net draws by a standard deviation what it calls a variance", std=[0.0, 0.1], p=0.1),
        _view("blur", "", std=[0.5, 1.0], p=0.1),
        _view("anisotropy", "fewer pixels", axes=axes, downsampling=[1.0, 2.0], p=0.125),
        _view("gamma", "values to a power of 0.7 to 1.5", log_gamma=[-0.357, 0.405], p=0.3),
        _view("flip", "along each axis", axes=axes, flip_probability=0.5),
    ]


def _view(name: str, reason: str, **arguments: Plain) -> Line:
    """One view."""
    return Line("", {"name": name, **arguments}, reason)
