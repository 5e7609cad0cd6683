"""What a hospital sets for itself: its files, its policy, its patients who are out, its own part of the methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from harmonize.veto import Limits
from pipelines.cohort.dicom import DicomSource
from pipelines.cohort.features import TableSource
from pipelines.cohort.labels import GlandMask, MaskLabels, TableLabels
from pipelines.cohort.nifti import NiftiSource
from pipelines.cohort.partition import Part
from pipelines.cohort.phantom import PhantomSource
from pipelines.cohort.picture import PictureSource
from privacy.policy import Policy

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """The hospital is on a machine of its own, and what it has stands in its own site.yaml (--engine flare)."""

    __pydantic_config__: ClassVar = FORBID

    kind: Literal["elsewhere"] = "elsewhere"


AnySource: TypeAlias = Annotated[
    Elsewhere | PhantomSource | DicomSource | NiftiSource | PictureSource | TableSource, Field(discriminator="kind")
]
AnyLabels: TypeAlias = Annotated[MaskLabels | TableLabels, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class SiteSettings:
    """One hospital: its files, its policy, and what it sets for itself.

    home: the hospital's own folder, outside of runs: its ledger, which every run goes on with, and its
    `policy.yaml`, which outranks `policy` here; null = the run's folder. labels, gland: of volumes; a phantom
    writes its own, and tables hold theirs. methods: label of a method -> fields that this site overrides for its
    own part. work: fields of the local work that it overrides. veto: its own limits of a translation, which outrank the
    run's. max_rejected: share of studies that may be unusable.
    exclude, test: patients, by identifier or pseudonym, who must not be used (withdrawn consent, for instance), and
    who alone are this site's test split. readers: studies read at a time, 0 = one for each processor, at most 8.
    part: in simulations, which part of its source this site has; the others have other sites. Without a number the site
    stands for all parts.
    """

    __pydantic_config__: ClassVar = FORBID

    source: AnySource
    labels: AnyLabels | None = None
    gland: GlandMask | None = None
    policy: Policy = Policy()
    veto: Limits | None = None
    home: str | None = None
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    work: Mapping[str, Any] = field(default_factory=dict)
    max_rejected: float = 0.2
    exclude: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    readers: int = 0
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.labels is None and self.gland is None and isinstance(self.source, DicomSource | NiftiSource):
            raise ValueError("labels: missing; say where the labels are, as in labels: {kind: table, file: labels.csv}")
        if isinstance(self.source, PhantomSource) and (self.labels is not None or self.gland is not None):
            raise ValueError("labels: a phantom writes its own labels and gland masks; remove labels and gland")
        if isinstance(self.source, PictureSource | TableSource) and (self.labels is not None or self.gland is not None):
            raise ValueError("labels: a table holds its labels (source.label); remove labels and gland")
        if isinstance(self.source, Elsewhere) and (self.labels or self.gland or self.part or self.home):
            raise ValueError("source: elsewhere: files, part and home are the hospital's own affair; remove them here")
        if both := sorted(set(self.exclude) & set(self.test)):
            raise ValueError(f"test: {len(both)} patients are excluded as well; name each in one of the two")
        if self.part is not None and (self.home is not None or self.policy.budget is not None):
            raise ValueError(
                "part: is for simulations, and a home or a budget is a real hospital's; remove one of the two"
            )
        if not 0 <= self.readers <= 64:
            raise ValueError(f"readers must be in [0, 64], found {self.readers}")
        if not 0 <= self.max_rejected <= 1:
            raise ValueError(f"max_rejected must be a share in [0, 1], found {self.max_rejected}")
