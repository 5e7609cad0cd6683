"""A site's own policy: what it lets go, whatever the coordinator asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

REQUESTS = (
    "survey",
    "moments",
    "ingest",
    "introduce",
    "train",
    "finish",
    "export",
    "evaluate",
    "pool",
    "report",
    "holds",
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site answers, and how large an answer may be.

    requests: the requests that it answers at all. pooling: whether its images may leave for the central baseline.
    max_bytes: the largest reply.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    requests: tuple[str, ...] = tuple(name for name in REQUESTS if name != "pool")
    pooling: bool = False
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        unknown = sorted(set(self.requests) - set(REQUESTS))
        if unknown:
            raise ValueError(f"policy.requests: unknown {', '.join(unknown)}; known are {', '.join(REQUESTS)}")
        if self.max_bytes < 1:
            raise ValueError(f"policy.max_bytes must be at least 1, found {self.max_bytes}")

    def allows(self, request: str) -> bool:
        """Whether the site answers this request (`pool` only by the word `pooling`)."""
        return self.pooling if request == "pool" else request in self.requests
