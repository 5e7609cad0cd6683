"""Settings of one hospital: its files, its policy, its excluded patients, its overrides of methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from harmonize.veto import Limits
from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource, build_folder_source
from pipelines.data.partition import Part
from pipelines.data.readers import READERS, is_reader, resolve_source
from pipelines.data.requirements import find_label_maps, list_needed_paths
from pipelines.data.sources import (
    DicomSource,
    GlandMask,
    MaskLabels,
    NiftiSource,
    PictureSource,
    TableLabels,
    TableSource,
    TensorSource,
)
from pipelines.pacs.settings import archive_problems
from pipelines.phantom.patients import PhantomSource
from privacy.message import Json
from privacy.release.policy import Policy
from privacy.settings_error import Problem, out_of_range, refuse, unmet

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The hospital is on another machine, and its own site.yaml describes its files (--engine flare)."""

    __pydantic_config__: ClassVar = FORBID

    kind: Literal["elsewhere"] = "elsewhere"


AnySource: TypeAlias = Annotated[
    Elsewhere
    | PhantomSource
    | DicomSource
    | DicomWebSource
    | DicomNodeSource
    | NiftiSource
    | PictureSource
    | TableSource
    | TensorSource,
    READERS,
]
VOLUME_SOURCES = (DicomSource, DicomWebSource, DicomNodeSource, NiftiSource)
LABELS_MISSING = (
    "missing; say where the labels are, as in labels: {kind: table, file: labels.csv}; or, in a run that only "
    "harmonizes, unlabelled: true"
)
AnyLabels: TypeAlias = Annotated[MaskLabels | TableLabels, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """One hospital: its files, its policy, and its overrides.

    home: the hospital's own folder, outside of runs: its ledger, which all runs extend, and its `policy.yaml`, which
    overrides `policy` here; null = the run's folder. labels, gland: of volumes; a phantom writes its own, and tables
    contain theirs. unlabelled: volumes have no labels, which only a run without `train` can do without. methods: label
    of a method -> fields that this site overrides. work: fields of the local work that it overrides. veto: its own
    limits of a translation, which override the run's. max_rejected: share of studies that may be unusable. exclude:
    patients, by identifier or pseudonym, that must not be used (for instance after withdrawn consent). test: patients
    that form this site's test split. readers: studies read at a time, 0 = one for each processor, at most 8. part: in
    simulations, this site's part of its source; without a number, all parts.
    """

    __pydantic_config__: ClassVar = FORBID

    source: AnySource
    labels: AnyLabels | None = None
    unlabelled: bool = False
    gland: GlandMask | None = None
    policy: Policy = Policy()
    veto: Limits | None = None
    home: str | None = None
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    work: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    max_rejected: float = 0.2
    exclude: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    readers: int = 0
    part: Part | None = None

    def __post_init__(self) -> None:
        has_masks_or_labels = self.labels is not None or self.gland is not None
        problems = []

        def add_problem(field: str, text: str) -> None:
            problems.append(Problem((field,), text))

        source = resolve_source(self.source)
        has_maps = find_label_maps(source) is not None
        if not (has_masks_or_labels or has_maps or self.unlabelled) and isinstance(source, VOLUME_SOURCES):
            problems.append(Problem(("labels",), LABELS_MISSING, needs=(("gland",), ("source", "masks"))))
        if self.unlabelled and (self.labels is not None or has_maps or not isinstance(source, VOLUME_SOURCES)):
            add_problem("unlabelled", "it is for studies without labels, and these have some; remove it, or labels")
        if isinstance(self.source, PhantomSource) and has_masks_or_labels:
            add_problem("labels", "a phantom writes its own labels and gland masks; remove labels and gland")
        if isinstance(source, PictureSource | TableSource) and has_masks_or_labels:
            add_problem("labels", "a table holds its labels (source.label); remove labels and gland")
        if isinstance(source, TensorSource) and has_masks_or_labels:
            add_problem("labels", "the file holds its labels (y) or masks (mask); remove labels and gland")
        if isinstance(self.source, Elsewhere) and (self.labels or self.gland or self.part or self.home):
            add_problem("source", "elsewhere: files, part and home are the hospital's own affair; remove them here")
        if excluded_tests := sorted(set(self.exclude) & set(self.test)):
            add_problem("test", f"{len(excluded_tests)} patients are excluded as well; name each in one of the two")
        if self.part is not None and (self.home is not None or self.policy.budget is not None):
            add_problem(
                "part", "is for simulations, and a home or a budget is a real hospital's; remove one of the two"
            )
        problems += out_of_range(self, readers=(0, 64))
        problems += unmet(self, max_rejected=(0 <= self.max_rejected <= 1, "a share in [0, 1]"))
        refuse(problems)


def find_missing_site_files(data: Json) -> list[Problem]:
    """A problem for each folder and file in a hospital's settings that does not exist.

    data: the settings as parsed YAML. Invalid settings are skipped; validation reports them.
    """
    parts = {key: _parse_part(adapter, data, key) for key, adapter in FILES.items()}
    if parts["source"] is None or isinstance(parts["source"], Elsewhere | PhantomSource) or is_reader(parts["source"]):
        return []
    source = parts["source"]
    if isinstance(source, DicomWebSource | DicomNodeSource):
        problems = [problem.within("source") for problem in archive_problems(source)]
        source = build_folder_source(source, ".")
    else:
        problems = []
    return problems + [
        needed.problem for needed in list_needed_paths(source, parts["labels"], parts["gland"]) if not needed.exists
    ]


FILES: Mapping[str, TypeAdapter[Any]] = {
    "source": TypeAdapter(AnySource),
    "labels": TypeAdapter(AnyLabels),
    "gland": TypeAdapter(GlandMask),
}


def _parse_part(adapter: TypeAdapter[Any], data: Json, key: str) -> Any:
    """One part of a hospital's settings, by its key; None if it is missing or invalid."""
    if not isinstance(data, dict) or data.get(key) is None:
        return None
    try:
        return adapter.validate_json(json.dumps(data[key]), strict=True)
    except ValidationError:
        return None
