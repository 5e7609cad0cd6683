"""The parameters of private data access: clipping, sampling and noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from privacy.settings_error import out_of_range, refuse


@dataclass(frozen=True, kw_only=True)
class Protection:
    """How patients are protected; every noise is a multiple of the sensitivity (the most that one patient can change).

    All values are bounded so that nothing overflows or loses digits: an infinity, or a rounded norm, could reveal a
    patient despite the noise.

    clip: C. sampling: q. views: K. noise: of gradients. validation_noise: of `measure`. counts_noise: of `shares`.
    votes_noise: of `votes`. With None the value is not released (NaN, uniform, an error). loss_bound: a patient's
    statistic is clipped to [0, bound]. chunk: without effect, because patients pass one at a time; read so that older
    settings stay valid. cut: name of the division into splits. hospitals: over how many hospitals a gradient is summed
    before anybody sees it (`privacy.secure_sum`), each with noise of its own; 1 = what leaves is this hospital's alone.
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
    hospitals: int = 1

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
                hospitals=(1, 10**4),
            )
        )
