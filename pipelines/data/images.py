"""What a network sees of an example: settings of slices, pictures, tensors and others. No reader is imported here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from pipelines.loader.validation import to_plain
from privacy.message import Json, as_mapping
from privacy.settings_error import Problem, out_of_range, refuse, unmet

MOST_AXES = 4

Values: TypeAlias = Literal["adc", "standardized"]
Target: TypeAlias = Literal["gland", "lesion", "masks"]


@dataclass(frozen=True, kw_only=True)
class Hounsfield:
    """How values of computed tomography become a network's, alike in every study: clipped to [low, high], less `mean`,
    divided by `sd`. In Hounsfield units.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    low: float
    high: float
    mean: float
    sd: float

    def __post_init__(self) -> None:
        refuse(
            out_of_range(self, low=(-32768, 32767), high=(-32768, 32767), mean=(-32768, 32767), sd=(1e-3, 32767))
            + unmet(self, high=(self.low < self.high, f"above low, {self.low:g}"))
        )


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Axial slices of volumes, each an example (context, size, size).

    values: ADC in 1e-3 mm²/s (a study without a known unit is refused), or standardized per study, for images whose
    unit has no meaning; or, of CT, alike in all studies, as `ct` says. spacing_mm: edge of the square pixels. size:
    pixels along each side; a slice is cropped or zero-padded about the `centre`: that of the gland's mask if there
    is one, or of the image, which is required if the gland is the target. slices: all, or those that show the
    gland. context: 1 = the slice alone; 3 = the slice between its lower and upper neighbour, as channels, at the
    acquired spacing; the first and last slice replace their missing neighbour. Labels and masks are those of the
    slice itself. nonzero: mean and deviation of `standardized` are those of the voxels that are not 0, and zeros stay
    0 (MONAI's NormalizeIntensity); false: they are those of all voxels in the bounding box of these, so that air in it
    is dark and not as bright as the mean (nnU-Net).
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["slices"] = "slices"
    values: Values = "adc"
    spacing_mm: float = 1.5
    size: int = 48
    centre: Literal["gland", "image"] = "gland"
    slices: Literal["all", "gland"] = "all"
    context: Literal[1, 3] = 1
    ct: Hounsfield | None = None
    nonzero: bool = True

    def __post_init__(self) -> None:
        refuse(out_of_range(self, spacing_mm=(0.1, 10), size=(8, 1024)) + _unit_problems(self))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.context, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """Whole volumes, each an example (1, depth, size, size), centred as slices are.

    spacing_mm, size, values, ct, nonzero: as in `Slices`, the first two in the plane. depth_mm: from slice to slice.
    depth: their number.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["volumes"] = "volumes"
    values: Values = "adc"
    spacing_mm: float = 1.5
    size: int = 48
    centre: Literal["gland", "image"] = "gland"
    depth_mm: float = 3.0
    depth: int = 16
    ct: Hounsfield | None = None
    nonzero: bool = True

    def __post_init__(self) -> None:
        bounds = out_of_range(self, spacing_mm=(0.1, 10), size=(8, 1024), depth_mm=(0.1, 20), depth=(4, 1024))
        refuse(bounds + _unit_problems(self))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (1, self.depth, self.size, self.size)


def _unit_problems(images: Slices | Volumes) -> list[Problem]:
    """Problems where values are said to be in two units, or to be standardized in two ways."""
    text = f"goes with values: standardized, found values: {images.values}; remove one of the two"
    problems = [] if images.ct is None or images.values == "standardized" else [Problem(("ct",), text)]
    if not images.nonzero and images.values != "standardized":
        problems.append(Problem(("nonzero",), text))
    elif not images.nonzero and images.ct is not None:
        problems.append(Problem(("nonzero",), "with ct no study has a mean of its own; remove one of the two"))
    return problems


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A picture as network input: (channels, size, size), from -1 (black) to 1.

    channels: 3 = red, green, blue; 1 = grey. fit: `squash` resizes both sides; `crop` takes the middle square first;
    `around` takes a square about the middle of the mask's bounding box, of `margin` times the box's longer side, black
    outside the picture. jitter: each square is enlarged or reduced by up to this share of its side and shifted by up to
    this share of the box, both derived from the picture's name; it then stays inside the picture.

    `around` gives hospitals with different fields of view (a whole fundus, a crop about the disc) the same one. It uses
    the true mask of every picture to choose the crop, test pictures included, as published protocols do: it replaces a
    perfect detector. Scores are those of segmenting a structure whose place is known, and a new picture without a mask
    cannot be cropped this way. Without jitter a round structure always has the same position and size: on optic discs
    the mean of the training masks, taken as the prediction for every picture, has a Dice score of 0.97.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["pictures"] = "pictures"
    size: int = 64
    channels: Literal[1, 3] = 3
    fit: Literal["squash", "crop", "around"] = "squash"
    margin: float | None = None
    jitter: float | None = None

    def __post_init__(self) -> None:
        problems = unmet(self, size=(8 <= self.size <= 1024, "in [8, 1024] pixels"))
        if (self.margin is None) == (self.fit == "around"):
            text = f"goes with fit: around, as in 1.25; found {self.margin} with fit: {self.fit}"
            problems.append(Problem(("margin",), text))
        problems += out_of_range(self, margin=(1, 20))
        jitters = self.jitter is None or (0 < self.jitter < 1 and self.fit == "around")
        if not jitters:
            text = f"must be in (0, 1), and goes with fit: around; found {self.jitter}"
            problems.append(Problem(("jitter",), text))
        refuse(problems)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.channels, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class Features:
    """A line of a table as network input: the numbers, then one column for each value but the first of each category.

    numbers: columns. categories: column -> all its possible values; the first is the reference, coded by zeros.
    normalize: subtract the mean and divide by the standard deviation of the training patients of each site (`site`) or
    of all sites (`pooled`); or clip the numbers to `ranges` and scale these to [0, 1] (`declared`); or keep the numbers
    (`none`). A constant column is only centred. ranges: for `declared`, number -> lowest and highest value, from public
    knowledge and never from the data; values outside are clipped. components: the number of principal components of its
    own training patients that each site uses instead of the columns, after `normalize`; features then differ in meaning
    between sites (FENDA-FL 5.3); null = the columns themselves.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["features"] = "features"
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    normalize: Literal["site", "pooled", "declared", "none"] = "site"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    components: int | None = None

    def __post_init__(self) -> None:
        names = [*self.numbers, *self.categories]
        problems = []
        if not names:
            problems.append(Problem(("numbers",), "empty, and categories too; name at least one column"))
        if len(set(names)) < len(names):
            problems.append(Problem((), f"columns must be named once, found {names}"))
        problems += [
            Problem(("categories", name), f"must name at least two different values, found {list(values)}")
            for name, values in self.categories.items()
            if len(set(values)) < 2 or len(set(values)) < len(values)
        ]
        problems += self._range_problems()
        most = self.columns[0]
        if self.components is not None and not 1 <= self.components <= most:
            text = f"must be in [1, {most}], the columns, found {self.components}"
            problems.append(Problem(("components",), text))
        refuse(problems)

    def _range_problems(self) -> list[Problem]:
        """Problems with `ranges`: missing, unknown or invalid ones, or ranges without `declared`."""
        if self.normalize != "declared":
            text = f"they go with normalize: declared, found normalize: {self.normalize}; remove one of the two"
            return [Problem(("ranges",), text)] if self.ranges else []
        problems = []
        if missing := [name for name in self.numbers if name not in self.ranges]:
            text = f"none for {', '.join(missing)}; normalize: declared needs one a number"
            problems.append(Problem(("ranges",), text))
        if unknown := [name for name in self.ranges if name not in self.numbers]:
            text = f"{', '.join(unknown)} is not among numbers ({', '.join(self.numbers)}); remove it"
            problems.append(Problem(("ranges",), text, needs=(("numbers",),)))
        return problems + [
            Problem(("ranges", name), f"must be two finite numbers, the lower first, found {list(ends)}")
            for name, ends in self.ranges.items()
            if not (len(ends) == 2 and math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1])
        ]

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of one encoded line."""
        return (len(self.numbers) + sum(len(values) - 1 for values in self.categories.values()),)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.columns if self.components is None else (self.components,)


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """Examples that are tensors already, and are used as they are.

    inputs: shape of one example, without the batch: (features,), (C, L), (C, H, W) or (C, D, H, W).
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["tensors"] = "tensors"
    inputs: tuple[int, ...]

    def __post_init__(self) -> None:
        good = 1 <= len(self.inputs) <= MOST_AXES and all(side >= 1 for side in self.inputs)
        refuse(unmet(self, inputs=(good, f"1 to {MOST_AXES} sides of at least 1, as in [1, 28, 28]")))


AnyImages: TypeAlias = Annotated[Slices | Volumes | Pictures | Features | Tensors, Field(discriminator="kind")]


IMAGES: TypeAdapter[Slices | Volumes | Pictures | Features | Tensors] = TypeAdapter(AnyImages)


def describe_images(images: AnyImages) -> dict[str, Json]:
    """Settings as a cohort's recipe and a signed model say them: without nulls, and without fields that came later
    while they have their default, so that cohorts and models keep their digest.
    """
    return {name: each for name, each in as_mapping(to_plain(images)).items() if each is not None}


def pixel_spacing(images: AnyImages) -> tuple[float, float, float]:
    """mm from pixel to pixel, from row to row and from slice to slice; 1 where images have no unit."""
    if isinstance(images, Slices):
        return images.spacing_mm, images.spacing_mm, 1.0
    return (images.spacing_mm, images.spacing_mm, images.depth_mm) if isinstance(images, Volumes) else (1.0, 1.0, 1.0)
