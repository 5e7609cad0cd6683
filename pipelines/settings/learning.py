"""Settings of splits, methods, evaluation and audits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field

from federation.descent import Work
from federation.merging import MEAN, Krum, Mean, Median, NormBounded, Rule, TrimmedMean
from federation.models import NamedModel
from federation.participant import Checkpoint
from federation.pretraining import Pretrained
from federation.rounds import Schedule
from federation.upload import Int8
from federation.weights import Weights
from personalize import NamedAlgorithm
from pipelines.data.split import Fold
from pipelines.loader.names import label_problems
from pipelines.loader.overrides import override_settings
from pipelines.settings.variants import Variant
from privacy.attacks.inversion import Inversion
from privacy.settings_error import Problem, out_of_range, problems_of, refuse, unmet

AnyStart: TypeAlias = Annotated[Pretrained | Weights, Field(discriminator="name")]
AnyRule: TypeAlias = Annotated[Mean | Median | TrimmedMean | Krum | NormBounded, Field(discriminator="name")]
FORBID: dict[str, Any] = {"extra": "forbid"}
MISSING_SHARE = math.nan
"""Marks a missing share; compared by identity. Its value follows from the other shares."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Shares of each site's patients. test: 0 if every site names its own `test` patients.

    folds: cross-validation: patients are divided into so many folds, of which number `fold`, 0 = first, is the test;
    `test` is then 1 / folds, `train` is the rest without `validation`, and both may be left out.
    """

    __pydantic_config__: ClassVar = FORBID

    train: float = MISSING_SHARE
    validation: float = 0.15
    test: float = MISSING_SHARE
    folds: int | None = None
    fold: int | None = None

    def __post_init__(self) -> None:
        test = 0.35 if self.folds is None or self.folds < 2 else 1 / self.folds
        train = 0.5 if self.folds is None else 1 - test - self.validation
        problems = self._fold_problems(train, test)
        for name, share in (("train", train), ("test", test)):
            if getattr(self, name) is MISSING_SHARE:
                object.__setattr__(self, name, share)
        parts = (self.train, self.validation, self.test)
        if not (min(parts) >= 0 and self.train > 0 and abs(sum(parts) - 1) <= 1e-9):
            problems.append(Problem((), f"shares must be >= 0, train > 0, and sum to 1, found {list(parts)}"))
        refuse(problems)

    def _fold_problems(self, train: float, test: float) -> list[Problem]:
        """Problems of `folds` and `fold`, and of shares that contradict them. train, test: the shares that follow from
        folds.
        """
        if self.folds is None:
            text = f"{self.fold}, and folds is missing; say how many there are"
            return [] if self.fold is None else [Problem(("fold",), text, needs=(("folds",),))]
        problems = out_of_range(self, folds=(2, 100))
        if self.fold is None:
            text = f"missing; say which fold is the test, 0 to {self.folds - 1}; every run has one"
            problems.append(Problem(("fold",), text))
        elif not 0 <= self.fold < max(self.folds, 1):
            text = f"must be in [0, {self.folds - 1}], 0 is the first of {self.folds}, found {self.fold}"
            problems.append(Problem(("fold",), text))
        prefix = f"and with folds {self.folds} and validation {self.validation} it is"
        problems += [
            Problem((name,), f"{value}, {prefix} {share:.6g}; remove it")
            for name, value, share in (("train", self.train, train), ("test", self.test, test))
            if value is not MISSING_SHARE and not abs(value - share) <= 1e-9
        ]
        return problems

    @property
    def place(self) -> Fold | None:
        """The fold that is the test; None without cross-validation."""
        return None if self.folds is None or self.fold is None else Fold(self.fold, self.folds)


MOST_TRAININGS = 50


@dataclass(frozen=True, kw_only=True)
class Training:
    """methods: label -> method. work: the local work of all; method_work: label -> fields that differ for one
    method. method_model: label -> a method's network, if not the run's `model`. method_images: label -> the space of
    `harmonize.translate`, or of `augment`, in which a method trains, if not on images as they were read. start: how
    networks begin, null = with random numbers; method_start: label -> a method's start, if another. secure_sum: the
    coordinator sees sums over hospitals and no hospital's parameters (`privacy.secure_sum`). repeats: how often each
    method is trained, with other seeds on the same patients: the page's intervals are then over trainings too. merge:
    how replies become one model, for all methods; method_merge: label -> another rule (`federation.merging`). upload:
    how tensors of replies are packed before they are sent (`federation.upload`); null = not.
    """

    __pydantic_config__: ClassVar = FORBID

    methods: Mapping[str, NamedAlgorithm]
    schedule: Schedule
    work: Work = Work()
    method_work: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    method_model: Mapping[str, NamedModel] = field(default_factory=dict)
    method_images: Mapping[str, str] = field(default_factory=dict)
    start: AnyStart | None = None
    method_start: Mapping[str, AnyStart | None] = field(default_factory=dict)
    repeats: int = 1
    secure_sum: bool = False
    merge: AnyRule = MEAN
    method_merge: Mapping[str, AnyRule] = field(default_factory=dict)
    upload: Int8 | None = None

    def __post_init__(self) -> None:
        problems = label_problems(self.methods, "methods") + out_of_range(self, repeats=(1, MOST_TRAININGS))
        further = {name_training(label, k) for label in self.methods for k in list_trainings(self.repeats)[1:]}
        problems += [
            Problem(("methods",), f"the label {label!r} is kept for a further training (repeats); give it another name")
            for label in sorted(further & set(self.methods))
        ]
        problems += [
            Problem((group, label), f"no such method; methods are {', '.join(self.methods)}")
            for group in ("method_work", "method_model", "method_images", "method_start", "method_merge")
            for label in sorted(set(getattr(self, group)) - set(self.methods))
            if self.methods
        ]
        for label in set(self.method_work) & set(self.methods):
            try:
                override_settings(self.work, self.method_work[label])
            except ValueError as error:
                problems += [problem.within("method_work", label) for problem in problems_of(error)]
        refuse(problems)

    def start_of(self, label: str) -> Pretrained | Weights | None:
        """How a method's network begins; None: with random numbers."""
        return self.method_start.get(label, self.start)

    def rule_of(self, label: str) -> Rule:
        """How the replies of a method are merged."""
        return self.method_merge.get(label, self.merge)


def list_trainings(repeats: int) -> tuple[int | None, ...]:
    """The numbers of a method's trainings: None for the first, then 2, 3, ..."""
    return (None, *range(2, min(repeats, MOST_TRAININGS) + 1))


def name_training(label: str, training: int | None) -> str:
    """The name of a method's training: the label of the first, with its number for each further one."""
    return label if training is None else f"{label}--{training}"


NO_TRAINING = Training(methods={}, schedule=Schedule(rounds=1))
"""Of a run that harmonizes images and trains nothing."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """checkpoint: which model of a site is scored (`federation.participant`). copies: of the bootstrap. reference: of
    the gains: a method, a variant, or null. variants: label -> a method scored once more, calibrated by each hospital.
    window: in segmentation, the sides of the network's input window, smaller than an image; null = whole images.
    rounds: whether hospitals also tell score, confusion and seconds of each round, on validation patients.
    """

    __pydantic_config__: ClassVar = FORBID

    checkpoint: Checkpoint = "global"
    copies: int = 200
    public: bool = True
    reference: str | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    window: tuple[int, ...] | None = None
    rounds: bool = False

    def __post_init__(self) -> None:
        refuse(label_problems(self.variants, "variants") + out_of_range(self, copies=(0, 2000)))

    def is_averaged(self, label: str) -> bool:
        """Whether a method's average over rounds is scored, so that hospitals must keep it in training."""
        return self.checkpoint == "average" or any(
            variant.of == label and variant.checkpoint == "average" for variant in self.variants.values()
        )


@dataclass(frozen=True, kw_only=True)
class Audits:
    """membership: whether hospitals try membership inference on their own models. canaries: synthetic patients that
    test the protection of a private run; 0 = none; 1000 detect noise that is four times too small. inversion: how
    hospitals try to reconstruct training images from gradients and features of their own models; null = not.
    """

    __pydantic_config__: ClassVar = FORBID

    membership: bool = True
    canaries: int = 1000
    inversion: Inversion | None = None

    def __post_init__(self) -> None:
        good = self.canaries == 0 or 100 <= self.canaries <= 10_000
        refuse(unmet(self, canaries=(good, "0, or in [100, 10000]")))
