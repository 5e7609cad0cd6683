"""How a site protects its patients: the numbers of private data access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privacy.settings_error import out_of_range, refuse


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How patients are protected; noises are multiples of what one patient can change.

    Everything has bounds within which nothing overflows and no digit is lost: beyond them an infinity, or a norm that
    was rounded, could show a patient past any noise.

    clip: C. sampling: q. views: K. noise: of gradients. validation_noise: of `measure`. counts_noise: of `shares`.
    votes_noise: of `votes`. None means not paid for, and so not told (NaN, uniform, an error). loss_bound: a patient's
    statistic is clipped to [0, bound].
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
    votes_noise: float | None = None
    loss_bound: float = 2.0
    chunk: int | None = None
    cut: str = ""

    def __post_init__(self) -> None:
        refuse(
            out_of_range(
                self,
                clip=(1e-4, 1e4),
                sampling=(1e-6, 1.0),
                views=(1, 1000),
                noise=(0.0, 1e4),
                validation_noise=(0.0, 1e6),
                counts_noise=(0.0, 1e6),
                votes_noise=(0.0, 1e6),
                loss_bound=(1e-3, 1e6),
                chunk=(1, 10**6),
            )
        )
