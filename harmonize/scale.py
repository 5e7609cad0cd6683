"""Conversion between a cohort's units and [-1, 1], the range of all networks here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from torch import Tensor

from privacy.settings_error import Problem, refuse

Progress: TypeAlias = Callable[[int, int, str], None]
"""progress(done, total, what): shows progress; raises if the run is to stop."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """low, high: the values that become -1 and 1, in the unit of the cohort's images; values outside are clipped.

    They are settings, never read from patients: a range set by a patient's brightest pixel would reveal that value.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            text = f"must be less than high, both finite; found {self.low} and {self.high}"
            refuse([Problem(("low",), text)])

    def into(self, x: Tensor) -> Tensor:
        """From the cohort's unit into [-1, 1]."""
        return ((x - self.low) * (2.0 / (self.high - self.low)) - 1.0).clamp(-1.0, 1.0)

    def back(self, x: Tensor) -> Tensor:
        """From [-1, 1] into the cohort's unit."""
        return (x + 1.0) * ((self.high - self.low) / 2.0) + self.low


def ignore_progress(done: int, total: int, what: str) -> None:
    """Show nothing."""
