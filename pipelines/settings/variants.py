"""Settings of variants: a trained method that is scored once more, after each hospital fits it to its own images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.calibration import QUANTILE, How, Quantile
from federation.finetuning import Tuning
from federation.participant import Checkpoint
from privacy.settings_error import Problem, refuse


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A separate line in every table, computed by each hospital alone.

    of: the label of the method whose models are scored. calibration: `centred` (logits shifted and scaled by the
    hospital's own unlabelled training images), `adabn` (batch-norm statistics of those images), both, `matched` (the
    moments of its norms' channels as on the images of all hospitals that trained the model), `fine_tuned` (trained
    further at the hospital, as `tuning` says; scored only there), or `largest` (of masks: of a class only the largest
    component, where that raises the Dice of the hospital's own validation patients); null = not calibrated.
    checkpoint: which model of a site, if not that of `evaluate`. quantile: of the training logits, which becomes
    probability 0.5; `prevalence` = 1 - the hospital's own share of positive training examples, for which the hospital
    looks at its labels; null = 0.62. Only for `centred` and `adabn_centred`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    of: str
    calibration: How | Literal["fine_tuned", "largest"] | None = None
    checkpoint: Checkpoint | None = None
    quantile: Quantile | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.quantile is not None and self.quantile != "prevalence" and not 0 <= self.quantile <= 1:
            problems.append(Problem(("quantile",), f"must be in [0, 1], 'prevalence' or null, found {self.quantile}"))
        if self.calibration is None and self.checkpoint is None:
            text = "says nothing that differs from the method; give a calibration or a checkpoint"
            problems.append(Problem((), text))
        if self.quantile is not None and "centred" not in (self.calibration or ""):
            text = f"must be null for {self.calibration}, which shifts no logits; remove it"
            problems.append(Problem(("quantile",), text, needs=(("calibration",),)))
        if (self.tuning is None) == (self.calibration == "fine_tuned"):
            found_text = f"{'none' if self.tuning is None else 'one'} with {self.calibration}"
            text = f"belongs to fine_tuned, as in tuning: {{epochs: 5}}, and to no other; found {found_text}"
            problems.append(Problem(("tuning",), text, needs=(("calibration",),)))
        refuse(problems)

    @property
    def at(self) -> Quantile:
        """The quantile that is used."""
        return QUANTILE if self.quantile is None else self.quantile
