"""The task of a run's networks: a class, a number or several findings of each example, or a class of each of its
pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from federation.findings import MOST_FINDINGS
from pipelines.data.images import Target
from pipelines.data.label_classes import PLAIN
from pipelines.data.label_maps import MOST_MASK_CLASSES as MOST_MASK_CLASSES
from pipelines.data.label_numbers import LabelRange
from pipelines.data.regions import find_region_problems
from pipelines.data.sources import IGNORE
from pipelines.loader.names import is_name
from privacy.settings_error import Problem, refuse, wrong_lengths

MOST_LABELS = 256


@dataclass(frozen=True, kw_only=True)
class Classification:
    """A class of each slice, volume, picture or line of a table.

    classes: their names, the first = 0, as they stand in the tables of labels; () = `negative` and `positive`, which
    tables call 0 and 1. ordered: whether each class is more severe than the one before it, as grades are.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["classification"] = "classification"
    classes: tuple[str, ...] = ()
    ordered: bool = False
    number: ClassVar[None] = None
    findings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        problems = [_name_problem(name) for name in self.classes if not is_name(name)]
        if self.classes and not 2 <= len(set(self.classes)) == len(self.classes) <= MOST_LABELS:
            text = f"2 to {MOST_LABELS} different names are needed, as in [benign, malignant]; found {self.classes}"
            problems.append(Problem(("classes",), text))
        if self.ordered and len(self.classes) < 3:
            problems.append(Problem(("ordered",), "it goes with three classes or more, the lowest first; name them"))
        refuse(problems)

    @property
    def target(self) -> None:
        """No mask."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.classes or PLAIN


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """A class of each pixel or voxel, 0 = background.

    target: `gland` and `lesion` are the masks of that name, one class each; `masks` are label maps, whose values stand
    for `classes`, 1 = the first. regions: structures that may overlap, each a union of classes, as in {whole: [edema,
    core], core: [core]}; networks learn the classes, and scores, sizes and written masks are of regions.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["segmentation"]
    target: Target
    classes: tuple[str, ...] = ()
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ordered: ClassVar[bool] = False
    number: ClassVar[None] = None
    findings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        problems = [_name_problem(name) for name in self.classes if not is_name(name)]
        if IGNORE in self.classes:
            text = f"{IGNORE} is no class, but what label maps do not tell: say it in source.masks.values alone"
            problems.append(Problem(("classes",), text))
        if self.target == "masks" and not 1 <= len(set(self.classes)) == len(self.classes) <= MOST_MASK_CLASSES:
            text = f"1 to {MOST_MASK_CLASSES} different names are needed, as in [disc, cup]; found {self.classes}"
            problems.append(Problem(("classes",), text))
        if self.target != "masks" and self.classes:
            text = f"the target {self.target} is one class of that name; remove it"
            problems.append(Problem(("classes",), text, needs=(("target",),)))
        if self.target != "masks" and self.regions:
            text = f"they are made of the classes of label maps, and the target {self.target} is one; remove them"
            problems.append(Problem(("regions",), text, needs=(("target",),)))
        elif not problems:
            wrong = find_region_problems(self.regions, self.classes)
            problems += [Problem(("regions", *filter(None, [name])), text) for name, text in wrong.items()]
        refuse(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes, the background first."""
        return ("background", *(self.classes or (self.target,)))

    @property
    def structures(self) -> tuple[str, ...]:
        """Names of what is scored and written: the regions, or else the classes without the background."""
        return tuple(self.regions) or self.names[1:]


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A number for each slice, volume, picture or line of a table: a volume, an age, a value, days.

    what, unit: see `LabelRange`. range: the lowest and the highest number, as everybody knows them beforehand, not as
    patients have them. outside: whether a study whose label lies outside of it is not used, or its label becomes the
    nearer end.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["regression"]
    what: str
    unit: str
    range: tuple[float, float]
    outside: Literal["quarantine", "clip"] = "quarantine"
    classes: ClassVar[tuple[str, ...]] = ()
    ordered: ClassVar[bool] = False
    names: ClassVar[tuple[str, ...]] = ("number",)
    findings: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, range=2))
        _ = self.number  # its checks are those of these settings

    @property
    def target(self) -> None:
        """No mask."""
        return None

    @property
    def number(self) -> LabelRange:
        """What is predicted, and its range."""
        low, high = self.range
        return LabelRange(what=self.what, unit=self.unit, low=low, high=high, clip=self.outside == "clip")


@dataclass(frozen=True, kw_only=True)
class SeveralFindings:
    """Several findings of each slice, volume, picture or line of a table, each yes, no or unknown, as a report of a
    chest X-ray names them. findings: their names; a table has a column for each.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["findings"]
    findings: tuple[str, ...]
    classes: ClassVar[tuple[str, ...]] = ()
    ordered: ClassVar[bool] = False
    number: ClassVar[None] = None

    def __post_init__(self) -> None:
        text = "{!r} is not made of a-z 0-9 _ -; where a column has another name, say so by findings of the source"
        problems = [Problem(("findings",), text.format(name)) for name in self.findings if not is_name(name)]
        if not 2 <= len(set(self.findings)) == len(self.findings) <= MOST_FINDINGS:
            text = f"2 to {MOST_FINDINGS} different names are needed, as in [edema, effusion]; found {self.findings}"
            problems.append(Problem(("findings",), text))
        refuse(problems)

    @property
    def target(self) -> None:
        """No mask."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of a network's outputs."""
        return self.findings


def _name_problem(name: str) -> Problem:
    """The problem of a class name with characters that are not allowed."""
    text = f"{name!r} is not made of a-z 0-9 _ -; where tables say it otherwise, map it by values of the source"
    return Problem(("classes",), text)


AnyTask: TypeAlias = Annotated[
    Classification | Segmentation | Regression | SeveralFindings, Field(discriminator="kind")
]
