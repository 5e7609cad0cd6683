"""What a run's networks learn: a label of each example, or a class of each of its pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from pipelines.data.images import AnyImages, Target
from pipelines.data.requirements import unmasked
from pipelines.data.sources import DicomSource, NiftiSource, PictureSource
from pipelines.loader.names import named
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.sites import Elsewhere, SiteSettings
from privacy.settings_error import SettingsError

MOST = 7  # classes beside the background


@dataclass(frozen=True, kw_only=True)
class Classification:
    """A label, 0 or 1, of each slice, volume, picture or line of a table."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["classification"] = "classification"

    @property
    def target(self) -> None:
        """No mask."""
        return None

    @property
    def names(self) -> tuple[str, ...]:
        """What the labels 0 and 1 are called."""
        return ("negative", "positive")


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """A class of each pixel or voxel, 0 = background.

    target: `gland` and `lesion` are the masks of that name, one class each; `masks` are the label maps of pictures,
    whose values stand for `classes`, 1 = the first.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["segmentation"]
    target: Target
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = [f"classes: {name!r} is not made of a-z 0-9 _ -" for name in self.classes if not named(name)]
        if self.target == "masks" and not 1 <= len(set(self.classes)) == len(self.classes) <= MOST:
            problems.append(f"classes: 1 to {MOST} different names are needed, as in [disc, cup]; found {self.classes}")
        if self.target != "masks" and self.classes:
            problems.append(f"classes: the target {self.target} is one class of that name; remove it")
        if problems:
            raise SettingsError(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """What the classes are called, the background first."""
        return ("background", *(self.classes or (self.target,)))


AnyTask: TypeAlias = Annotated[Classification | Segmentation, Field(discriminator="kind")]


def without_masks(task: AnyTask, site: SiteSettings, images: AnyImages) -> list[str]:
    """Why a site cannot give what is to be learnt; empty = it can."""
    source = site.source
    if task.target is None and isinstance(source, DicomSource | NiftiSource) and site.labels is None:
        return ["labels: missing; say where the labels are, as in labels: {kind: table, file: labels.csv}"]
    if task.target in ("gland", "lesion") and images.kind not in ("slices", "volumes"):
        return [f"source: the target {task.target} needs images of kind slices or volumes, found {images.kind}"]
    if isinstance(source, PhantomSource | Elsewhere):
        return []
    problems = unmasked(source, site.labels, images, site.gland, task.target)
    masks = source.masks if isinstance(source, PictureSource) else None
    if task.target == "masks" and masks is not None and set(masks.classes) != set(task.names[1:]):
        found, needed = ", ".join(masks.classes), ", ".join(task.names[1:])
        problems.append(f"source.masks.values: classes are {found}, and the task's are {needed}; give values of these")
    return problems
