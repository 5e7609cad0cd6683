"""What a network sees of an example: settings of slices, volumes, pictures and features. No reader is imported here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from privacy.settings_error import Problem, out_of_range, refuse, unmet

Values: TypeAlias = Literal["adc", "standardized"]
Target: TypeAlias = Literal["gland", "lesion", "masks"]


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Axial slices of volumes, each an example (context, size, size).

    values: ADC in 1e-3 mm²/s (a study in no known unit is refused), or standardized per study where the unit means
    nothing. spacing_mm: edge of the square pixels. size: pixels along each side; a slice is cut or filled with 0 about
    the `centre`: of the gland's mask where one is given, or of the image, as it must be where the gland is what is to
    be found. slices: all, or those that show the gland. context: 1 = the slice alone; 3 = the slice between its lower
    and its upper neighbour, as channels, each as far away as the study was acquired; a slice at an end stands in for
    the neighbour that it lacks. Labels and masks are those of the slice itself.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["slices"] = "slices"
    values: Values = "adc"
    spacing_mm: float = 1.5
    size: int = 48
    centre: Literal["gland", "image"] = "gland"
    slices: Literal["all", "gland"] = "all"
    context: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        refuse(out_of_range(self, spacing_mm=(0.1, 10), size=(8, 1024)))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.context, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """Whole volumes, each an example (1, depth, size, size), centred as slices are.

    spacing_mm, size: in the plane, as in `Slices`. depth_mm, depth: between slices, and how many.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["volumes"] = "volumes"
    values: Values = "adc"
    spacing_mm: float = 1.5
    size: int = 48
    centre: Literal["gland", "image"] = "gland"
    depth_mm: float = 3.0
    depth: int = 16

    def __post_init__(self) -> None:
        refuse(out_of_range(self, spacing_mm=(0.1, 10), size=(8, 1024), depth_mm=(0.1, 20), depth=(4, 1024)))

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (1, self.depth, self.size, self.size)


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What a network sees of a picture: (channels, size, size), from -1 (black) to 1.

    channels: 3 = red, green, blue; 1 = grey. fit: `squash` both sides; `crop` the middle square first; or cut a square
    `around` what the picture's mask shows: about the middle of the foreground's bounding box, its side `margin` times
    the box's longer side, and black where it goes beyond the picture. jitter: by up to this share of itself each square
    is larger or smaller, and by up to this share of the box off its middle, as its name says; it then stays inside the
    picture.

    `around` brings hospitals of different fields of view (a whole fundus, a crop about the disc) to one. It takes the
    true mask of every picture to choose what the network sees, test pictures included, as published protocols do: it
    stands in for a detector that never errs. Scores are those of segmenting a structure that was found already, and a
    new picture without a mask cannot be cut so. Without jitter a structure that is always round lies where it always
    lies, as large as it always is: on optic discs the mean of the training masks, given as answer to every picture, has
    a Dice score of 0.97.
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
    """What a network sees of a line: (numbers, then one column for each value of a category but its first).

    numbers: columns. categories: column -> all values that it may have; the first is the reference, coded by zeros.
    normalize: subtract the mean and divide by the standard deviation of training patients of each site (`site`) or of
    all sites (`pooled`); or cut the numbers to `ranges` and bring these onto [0, 1] (`declared`); or leave the numbers
    (`none`). A column that is constant there is only centred. ranges: of `declared`, number -> lowest and highest
    value, from public knowledge and never from the data; values beyond them become the nearer end. components: how many
    principal components of its own training patients each site takes in place of the columns, after `normalize`; the
    sites' features then mean different things (FENDA-FL 5.3); null = the columns themselves.
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
        if self.normalize != "declared":
            text = f"they go with normalize: declared, found normalize: {self.normalize}; remove one of the two"
            return [Problem(("ranges",), text)] if self.ranges else []
        problems = []
        if missing := [name for name in self.numbers if name not in self.ranges]:
            text = f"none for {', '.join(missing)}; normalize: declared needs one a number"
            problems.append(Problem(("ranges",), text))
        if unknown := [name for name in self.ranges if name not in self.numbers]:
            text = f"{', '.join(unknown)} is not among numbers ({', '.join(self.numbers)}); remove it"
            problems.append(Problem(("ranges",), text))
        return problems + [
            Problem(("ranges", name), f"must be two finite numbers, the lower first, found {list(ends)}")
            for name, ends in self.ranges.items()
            if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1])
        ]

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of one line, coded."""
        return (len(self.numbers) + sum(len(values) - 1 for values in self.categories.values()),)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.columns if self.components is None else (self.components,)


AnyImages: TypeAlias = Annotated[Slices | Volumes | Pictures | Features, Field(discriminator="kind")]


IMAGES: TypeAdapter[Slices | Volumes | Pictures | Features] = TypeAdapter(AnyImages)
