"""The settings of an external site: models from a file, and a folder of its own images.

A second kind of document for `python -m pipelines.run`, known by its key `models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field

from personalize.adaptation_baselines import Tent
from personalize.routing_outside import Routing
from pipelines.data.images import AnyImages
from pipelines.data.sources import DicomSource, Files, NiftiSource, PictureSource, Separator, TableSource
from pipelines.loader.names import name_problems
from pipelines.settings.route import NEEDS, AsTrained, OfAll
from privacy.message import Json
from privacy.release.policy import plugin_problems
from privacy.settings_error import Problem, out_of_range, refuse, unmet

FORBID: dict[str, Any] = {"extra": "forbid"}
OWN_KEY = "models"
OF_A_RUN = ("sites", "train")
FITTING: Mapping[str, tuple[str, ...]] = {
    "slices": ("dicom", "nifti"),
    "volumes": ("dicom", "nifti"),
    "pictures": ("picture",),
    "features": ("table",),
    "tensors": (),
}
"""Kinds of sources by kind of images."""


@dataclass(frozen=True, kw_only=True)
class PictureFolder:
    """Every picture below a folder."""

    __pydantic_config__: ClassVar = FORBID

    kind: Literal["picture"] = "picture"
    folder: str


@dataclass(frozen=True, kw_only=True)
class UnlabelledTable:
    """A CSV file without labels; keys as in `TableSource`."""

    __pydantic_config__: ClassVar = FORBID

    kind: Literal["table"] = "table"
    file: str
    columns: tuple[str, ...] = ()
    separator: Separator | None = None
    patient: str | None = None
    missing: tuple[str, ...] = ("", "?", "NA")
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Unlabelled: TypeAlias = Annotated[
    DicomSource | NiftiSource | PictureFolder | UnlabelledTable, Field(discriminator="kind")
]
How: TypeAlias = Annotated[Routing | Tent | OfAll | AsTrained, Field(discriminator="name")]


@dataclass(frozen=True, kw_only=True)
class ExternalSettings:
    """name: of the site; the random seed depends on it, too. models: the file that a run's stage `route` wrote. gland:
    a folder of gland masks, <patient>.nii.gz, for models that learnt with them; or no_gland, to centre on the image
    instead. how: how the models become one. out: the folder of results, outside of the images. threshold: score from
    which a study counts as positive, 0.5 if it is not given; for labels only. readers: studies read at a time, 0 = a
    processor each. plugins: installed packages that the models may need, name -> digest, as in a hospital's policy.
    """

    __pydantic_config__: ClassVar = FORBID

    name: str
    models: str
    source: Unlabelled
    gland: str | None = None
    no_gland: bool = False
    how: How = Routing()
    out: str
    threshold: float | None = None
    seed: int = 0
    threads: int = 1
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    readers: int = 0
    plugins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = name_problems(self.name)
        problems += out_of_range(self, threshold=(0, 1), threads=(1, 256))
        problems += plugin_problems(self.plugins)
        problems += unmet(self, readers=(self.readers >= 0, ">= 0"))
        if self.device == "cuda" and not torch.cuda.is_available():
            problems.append(Problem(("device",), "cuda, and torch finds no GPU here; say auto or cpu"))
        if self.gland is not None and self.no_gland:
            problems.append(Problem(("no_gland",), "and gland contradict each other; give one of them"))
        refuse(problems + self._place_problems())

    def _place_problems(self) -> list[Problem]:
        out, place = Path(self.out).resolve(), Path(place_of(self.source)).resolve()
        problems = []
        if out.exists() and not out.is_dir():
            problems.append(Problem(("out",), f"{self.out!r} is a file; give a folder"))
        from pipelines.batch.masks import is_mixed_with_studies  # writers of masks are slow to import

        if is_mixed_with_studies(out, place):
            text = "lies in the folder of images, where masks would be read as studies; give another one"
            problems.append(Problem(("out",), text))
        if isinstance(self.source, DicomSource) and not self.source.select:
            text = "missing; say which series are meant, as in select: {kind: adc}"
            problems.append(Problem(("source", "select"), text))
        return problems

    @property
    def computes_on(self) -> str:
        """The device that `device` means on this machine."""
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"


def is_external(data: Json) -> bool:
    """Whether a document is the settings of an external site, and not of a run."""
    return isinstance(data, dict) and OWN_KEY in data and not any(key in data for key in OF_A_RUN)


def place_of(source: DicomSource | NiftiSource | PictureFolder | UnlabelledTable) -> str:
    """The folder, or the table's file."""
    return source.file if isinstance(source, UnlabelledTable) else source.folder


def files_of(source: DicomSource | NiftiSource | PictureFolder | UnlabelledTable) -> Files:
    """The same source as a site in a federation would have it; labels and tables are never read."""
    if isinstance(source, PictureFolder):
        return PictureSource(folder=source.folder, table=".")
    if isinstance(source, UnlabelledTable):
        return TableSource(
            file=source.file,
            columns=source.columns,
            separator=source.separator,
            patient=source.patient,
            label="",
            missing=source.missing,
            where=source.where,
        )
    return source


def source_problems(source: Unlabelled, images: AnyImages) -> list[Problem]:
    """Why a source cannot give such images."""
    kinds = FITTING[images.kind]
    if not kinds:
        text = f"the models saw {images.kind}, which no folder holds; apply them in Python, docs/how-to/python.md"
        return [Problem(("models",), text)]
    text = f"the models saw images of kind {images.kind}: say {' or '.join(kinds)}, found {source.kind}"
    return [] if source.kind in kinds else [Problem(("source", "kind"), text)]


def missing_models(how: How, place: Mapping[str, object]) -> list[Problem]:
    """Which models `how` needs that a file does not have. there: part -> what the file has, or None."""
    lacking = [part for part in NEEDS[how.name] if place.get(part) is None]
    text = f"{how.name} needs the models that are {' and '.join(lacking)}, and the file has none; choose another"
    return [Problem(("how",), text)] if lacking else []
