"""Pictures that the user declares public: they show no patients of this run, and only the coordinator reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError

from pipelines.data.requirements import list_needed_paths
from pipelines.data.sources import DicomSource, GlandMask, MaskLabels, NiftiSource, PictureSource, TableLabels
from privacy.message import Json
from privacy.settings_error import Problem, refuse


@dataclass(frozen=True, kw_only=True)
class PublicPictures:
    """folder: of pictures without labels (JPEG, PNG, ...). source, labels, gland: as of a hospital, instead of
    `folder`; without labels, all pictures are of class 0 and can only set a scale.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    folder: str | None = None
    source: Annotated[DicomSource | NiftiSource | PictureSource, Field(discriminator="kind")] | None = None
    labels: Annotated[MaskLabels | TableLabels, Field(discriminator="kind")] | None = None
    gland: GlandMask | None = None

    def __post_init__(self) -> None:
        problems = []
        if (self.folder is None) == (self.source is None):
            text = "give either folder, of pictures, or source, as of a hospital"
            problems.append(Problem(("folder",), text))
        if self.source is None and (self.labels or self.gland):
            problems.append(Problem(("source",), "missing; labels and gland are of a source"))
        refuse(problems)

    @property
    def place(self) -> str:
        """The folder of the pictures."""
        return self.folder or (self.source.folder if self.source else "")

    @property
    def has_labels(self) -> bool:
        """Whether they have labels from which a network can learn."""
        return self.labels is not None or isinstance(self.source, PictureSource)


def find_missing_pictures(data: Json) -> list[Problem]:
    """A problem for each folder and file of public pictures that does not exist.

    data: the settings of one as parsed YAML. Invalid settings are skipped; validation reports them.
    """
    try:
        pictures = TypeAdapter(PublicPictures).validate_json(json.dumps(data), strict=True)
    except ValidationError:
        return []
    if pictures.source is not None:
        return [
            needed.problem
            for needed in list_needed_paths(pictures.source, pictures.labels, pictures.gland)
            if not needed.exists
        ]
    if Path(pictures.place).is_dir():
        return []
    return [Problem(("folder",), f"{pictures.place!r} is no folder that exists; give one that is there")]
