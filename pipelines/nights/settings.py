"""night.yaml: which archive is asked for what, which model is applied, and what goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from pipelines.data.sources import Unit
from pipelines.loader.command_of_file import meant_for
from pipelines.loader.files import read_document
from pipelines.loader.validation import validate_settings
from pipelines.pacs.settings import ArchiveSettings
from privacy.message import Json, as_mapping
from privacy.settings_error import Problem, out_of_range, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
AnyArchive: TypeAlias = Annotated[ArchiveSettings, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Which series are looked for, each night. modality, description: of the series; * and ? stand for any text and any
    letter. days: how far back, by the study's date; null = all, those without a date too. more: DICOM keyword -> text,
    as in StudyDescription: "*prostate*".
    """

    __pydantic_config__: ClassVar = FORBID

    modality: str = "MR"
    description: str = ""
    days: int | None = 7
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from pydicom.datadict import tag_for_keyword  # slow to import

        problems = out_of_range(self, days=(0, 36_500))
        problems += [
            Problem(("more", keyword), "no such DICOM keyword; use one of PS3.6, as in StudyDescription")
            for keyword in self.more
            if tag_for_keyword(keyword) is None
        ]
        refuse(problems)


@dataclass(frozen=True, kw_only=True)
class Read:
    """How a series is read, as the options of `predict` say it. select: DICOM keyword -> text in the header. unit: of
    ADC maps that do not say that they are ADC. gland: a folder of masks, <patient>.nii.gz; no_gland: a model that
    learnt with them cuts about the image's centre instead.
    """

    __pydantic_config__: ClassVar = FORBID

    select: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = "auto"
    gland: str | None = None
    no_gland: bool = False


@dataclass(frozen=True, kw_only=True)
class Write:
    """What goes back: of a classifier a structured report of each series' score, of a model for masks a DICOM
    Segmentation. identity: patient = in the patient's study, with name and numbers; deidentified = without, in a study
    of its own, by the hospital's secret in the file `key`. threshold: score from which a series counts as positive, of
    two classes. captures: of a network that scores slices, also a picture of the most sensitive slice with its map.
    store: false = results stay in the state folder, and nothing is handed over.
    """

    __pydantic_config__: ClassVar = FORBID

    identity: Literal["patient", "deidentified"] = "patient"
    key: str | None = None
    threshold: float = 0.5
    captures: bool = False
    store: bool = True

    def __post_init__(self) -> None:
        refuse(out_of_range(self, threshold=(0.0, 1.0)))


@dataclass(frozen=True, kw_only=True)
class Keep:
    """For how many days what is kept. images: retrieved ones, after their results are stored; 0 = removed at once.
    results: files that were handed over. nights: tables and logs. The worklist keeps its lines: without them a series
    would be done again.
    """

    __pydantic_config__: ClassVar = FORBID

    images: int = 0
    results: int = 30
    nights: int = 365

    def __post_init__(self) -> None:
        refuse(out_of_range(self, images=(0, 36_500), results=(0, 36_500), nights=(1, 36_500)))


@dataclass(frozen=True, kw_only=True)
class Night:
    """archive: that is asked. results_to: that takes results; null = the same. model: file of a finished model, or with
    `recommended: true` a hospital's folder. state: our own folder, for the worklist, images on their way, results,
    tables and logs. minutes: after which the night stops at a safe point; null = when all is done. tries: nights in
    which a series may fail before it is refused.
    """

    __pydantic_config__: ClassVar = FORBID

    archive: AnyArchive
    results_to: AnyArchive | None = None
    ask: Ask = field(default_factory=Ask)
    model: str
    recommended: bool = False
    state: str
    read: Read = field(default_factory=Read)
    write: Write = field(default_factory=Write)
    keep: Keep = field(default_factory=Keep)
    minutes: float | None = None
    tries: int = 5

    def __post_init__(self) -> None:
        refuse(out_of_range(self, minutes=(0.1, 10_000.0), tries=(1, 1000)))


def read_night(path: str) -> Night:
    """Read a night's settings.

    Raises:
        ConfigError: everything that is wrong with them, or that they cannot be read.
    """
    place = Path(path).resolve().parent
    return validate_settings(
        meant_for(read_document(path), "night", path), Night, lambda data: _find_missing_paths(as_mapping(data), place)
    )


def _find_missing_paths(data: Mapping[str, Json], place: Path) -> list[Problem]:
    """Files and folders that are not there. place: the folder of the settings."""
    named = [(("model",), data.get("model")), (("read", "gland"), as_mapping(data.get("read") or {}).get("gland"))]
    problems = [
        Problem(where, f"there is no such file or folder: {path}; paths are relative to the folder of this file")
        for where, path in named
        if isinstance(path, str) and not (place / path).exists()
    ]
    model, state = (place / str(data.get(name)) for name in ("model", "state"))
    if model.is_dir() and not data.get("recommended"):
        problems.append(Problem(("model",), "is a folder; give a file ready/METHOD.safetensors, or recommended: true"))
    if state.exists() and not state.is_dir():
        problems.append(Problem(("state",), "is a file; give a folder of its own"))
    return problems
