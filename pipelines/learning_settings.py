"""The part of a run's settings that is about learning: splits, methods, evaluation, audits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from federation.descent import Work
from federation.models import AnyModel
from federation.participant import Checkpoint
from federation.rounds import Schedule
from personalize import AnyAlgorithm
from pipelines.names import unfit_labels
from pipelines.overriding import overridden
from pipelines.variants import Variant

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Split:
    """Shares of each site's patients. test: 0 where every site names its own `test` patients."""

    __pydantic_config__: ClassVar = FORBID

    train: float = 0.5
    validation: float = 0.15
    test: float = 0.35

    def __post_init__(self) -> None:
        parts = (self.train, self.validation, self.test)
        if min(parts) < 0 or self.train == 0 or abs(sum(parts) - 1) > 1e-9:
            raise ValueError(f"split: shares must be >= 0, train > 0, and sum to 1, found {list(parts)}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """methods: label -> method. work: the local work of all; method_work: label -> fields that differ for one
    method. method_model: label -> the network of one method, where it is not the run's `model`. method_images: label ->
    the space of `harmonize.translate` in which one method learns, where images are not used as they were read.
    """

    __pydantic_config__: ClassVar = FORBID

    methods: Mapping[str, Annotated[AnyAlgorithm, Field(discriminator="name")]]
    schedule: Schedule
    work: Work = Work()
    method_work: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    method_model: Mapping[str, Annotated[AnyModel, Field(discriminator="name")]] = field(default_factory=dict)
    method_images: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [f"methods: {said}" for said in unfit_labels(self.methods)]
        if not self.methods:
            problems.append("methods: empty; name at least one, as in methods: {fedavg: {name: fedavg}}")
        problems += [
            f"{group}.{label}: no such method; methods are {', '.join(self.methods)}"
            for group, named_there in (
                ("method_work", self.method_work),
                ("method_model", self.method_model),
                ("method_images", self.method_images),
            )
            for label in sorted(set(named_there) - set(self.methods))
        ]
        for label in set(self.method_work) & set(self.methods):
            try:
                overridden(self.work, self.method_work[label])
            except ValueError as error:
                problems.append(f"method_work.{label}: {error}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """checkpoint: which model of a site is scored. copies: of the bootstrap. reference: of the gains: a method, a
    variant, or null. variants: label -> a method scored once more, calibrated by each hospital.
    """

    __pydantic_config__: ClassVar = FORBID

    checkpoint: Checkpoint = "global"
    copies: int = 200
    public: bool = True
    reference: str | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [f"variants: {said}" for said in unfit_labels(self.variants)]
        if not 0 <= self.copies <= 2000:
            problems.append(f"evaluate.copies must be in [0, 2000], found {self.copies}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True, kw_only=True)
class Audits:
    """membership: whether hospitals attack their own models, to tell who was in training. canaries: made-up patients
    on whom the protection of a private run is tried; 0 = not, 1000 find a noise that is four times too small."""

    __pydantic_config__: ClassVar = FORBID

    membership: bool = True
    canaries: int = 1000

    def __post_init__(self) -> None:
        if not (self.canaries == 0 or 100 <= self.canaries <= 10_000):
            raise ValueError(f"audit.canaries must be 0, or in [100, 10000], found {self.canaries}")
