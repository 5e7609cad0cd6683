"""How a site protects its patients: the numbers of the private door."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How patients are protected; noises are multiples of what one patient can change.

    clip: C. sampling: q. views: K. noise: of gradients. validation_noise: of `measure`. counts_noise: of `shares`. None
    means not paid for, and so not told (NaN, uniform). loss_bound: a patient's statistic is clipped to [0, bound].
    chunk: patients whose gradients lie in memory at a time; None: by the size of their images. cut: names the division
    into splits.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    clip: float = 1.0
    sampling: float = 0.2
    views: int = 4
    noise: float = 1.0
    validation_noise: float | None = None
    counts_noise: float | None = None
    loss_bound: float = 2.0
    chunk: int | None = None
    cut: str = ""

    def __post_init__(self) -> None:
        rules = (
            ("clip", self.clip, "> 0", self.clip > 0),
            ("sampling", self.sampling, "in (0, 1]", 0 < self.sampling <= 1),
            ("views", self.views, ">= 1", self.views >= 1),
            ("noise", self.noise, ">= 0", self.noise >= 0),
            ("loss_bound", self.loss_bound, "> 0", self.loss_bound > 0),
            ("chunk", self.chunk or 1, ">= 1 or None", self.chunk is None or self.chunk >= 1),
        )
        found = [
            f"{name} must be {rule}, found {value}"
            for name, value, rule, good in rules
            if not (good and math.isfinite(value))
        ]
        if found:
            raise ValueError("; ".join(found))
