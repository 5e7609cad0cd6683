"""What a YAML says of variants: a trained method scored once more, fitted to each hospital on its own images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from federation.calibration import QUANTILE, How, Quantile, adaptable
from federation.finetuning import Tuning, tunable
from federation.participant import Checkpoint
from privacy.settings_error import SettingsError

if TYPE_CHECKING:
    from pipelines.settings.config import Config


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A line of its own in every table. Nothing is asked of other hospitals for it.

    of: the label of the method whose models are scored. calibration: `centred` (logits shifted and scaled by the
    hospital's own unlabelled training images), `adabn` (batch-norm statistics of those images), both, or `fine_tuned`
    (trained on at the hospital, as `tuning` says; scored at home only); null = as it is. checkpoint: which model of a
    site, where not that of `evaluate`. quantile: of
    the training logits, which becomes probability 0.5; `prevalence` = 1 - the hospital's own share of positive training
    examples, which looks at their labels, at home; null = 0.62. Only for `centred` and `adabn_centred`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    of: str
    calibration: How | Literal["fine_tuned"] | None = None
    checkpoint: Checkpoint | None = None
    quantile: Quantile | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.quantile is not None and self.quantile != "prevalence" and not 0 <= self.quantile <= 1:
            problems.append(f"quantile must be in [0, 1], 'prevalence' or null, found {self.quantile}")
        if self.calibration is None and self.checkpoint is None:
            problems.append("says nothing that differs from the method; give a calibration or a checkpoint")
        if self.quantile is not None and "centred" not in (self.calibration or ""):
            problems.append(f"quantile must be null for {self.calibration}, which shifts no logits; remove it")
        if (self.tuning is None) == (self.calibration == "fine_tuned"):
            problems.append(
                f"tuning belongs to fine_tuned, as in tuning: {{epochs: 5}}, and to no other; found "
                f"{'none' if self.tuning is None else 'one'} with {self.calibration}"
            )
        if problems:
            raise SettingsError(problems)

    @property
    def at(self) -> Quantile:
        """The quantile that is used."""
        return QUANTILE if self.quantile is None else self.quantile


def unfit_variants(config: Config) -> list[str]:
    """Why variants make no sense in this run; empty = fine. Their labels are looked at elsewhere."""
    problems = []
    variants: Mapping[str, Variant] = config.evaluate.variants
    methods = config.train.methods
    for label, variant in variants.items():
        place = f"evaluate.variants.{label}"
        if label in methods:
            problems.append(f"{place}: is a method already; give the variant a label of its own, as {label}_centred")
        if variant.of not in methods:
            problems.append(f"{place}.of: {variant.of!r} is no method; methods are {', '.join(methods)}")
        elif variant.checkpoint not in (None, "latest") and config.split.validation == 0:
            problems.append(
                f"{place}.checkpoint: {variant.checkpoint} is chosen by validation loss, and split.validation is 0; "
                "give validation patients, or remove it"
            )
        elif variant.tuning is not None and not _tunable(config, variant.of, variant.tuning):
            problems.append(f"{place}.tuning.trainable: the network of {variant.of} has no head of its own; say all")
        elif "adabn" in (variant.calibration or "") and not _has_batch_norm(config, variant.of):
            problems.append(
                f"{place}.calibration: {variant.calibration} recomputes batch-norm statistics, and the network of "
                f"{variant.of} has none; give it norm: batch where it has a norm, or say centred"
            )
    if variants and config.privacy != "none":
        problems.append(
            "evaluate.variants: offsets, statistics and tuned models come from training patients without noise, and "
            "would reach the histogram of test patients that a private run releases, which no epsilon covers; remove "
            "them, or say privacy: none"
        )
    return problems


def _tunable(config: Config, label: str, tuning: Tuning) -> bool:
    """Whether the network of a method has what shall be tuned. True of one that cannot be built."""
    try:
        with torch.random.fork_rng(devices=[]):
            return tunable(config.train.methods[label].network(config.task_of(label)), tuning)
    except (RuntimeError, ValueError, MemoryError):
        return True


def _has_batch_norm(config: Config, label: str) -> bool:
    """Whether the network of a method can be adapted. True of one that cannot be built, which is told elsewhere."""
    try:
        with torch.random.fork_rng(devices=[]):
            return adaptable(config.train.methods[label].network(config.task_of(label)))
    except (RuntimeError, ValueError, MemoryError):
        return True
