"""A site's own policy: what it lets go, to whom, and what a patient may be charged for it, whatever the coordinator
asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from privacy.events import Declaration, Declared, Event, leaves
from privacy.settings_error import SettingsError

REQUESTS = (
    "survey",
    "moments",
    "ingest",
    "score",
    "synthesize",
    "sample",
    "translate",
    "introduce",
    "train",
    "finish",
    "export",
    "evaluate",
    "audit",
    "pool",
    "route",
    "report",
    "holds",
)
COORDINATOR, SITES, OUTSIDE = "coordinator", "sites", "outside"
"""Who gets what a reply holds: the coordinator alone, or through it every other site as it is or in a mixture, or
hospitals outside the federation."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What all releases together may cost a patient, over the life of the hospital's ledger: (epsilon, delta)."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        found = [] if 0 < self.epsilon < math.inf else [f"epsilon must be > 0 and finite, found {self.epsilon}"]
        found += [] if 0 < self.delta < 1 else [f"delta must be in (0, 1), found {self.delta}"]
        if found:
            raise SettingsError(found)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a site answers.

    requests: the requests that it answers at all. algorithms: methods that it trains by; null = any. recipients:
    who may get an answer: the coordinator; and `sites`, where methods may hand what this site says on to all others,
    not only merged with what they say (APPLE's cores); and `outside`, where its models are handed to hospitals that
    take no part in the federation (test-time routing). pooling: whether its images may leave, for the central baseline
    or as shared images (`synthesis: real`). max_bytes: the largest reply. budget: the most that a patient may be
    charged; null = no limit, and no promise. public: facts that the hospital declares public and therefore outside any
    guarantee; null = counts without a budget, nothing with one, because who promises something says himself what he
    does not. max_failures: with a budget, how many failures may be told before nothing is any more, until a person has
    looked: each can be one bit about a patient.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    requests: tuple[str, ...] = tuple(name for name in REQUESTS if name != "pool")
    algorithms: tuple[str, ...] | None = None
    recipients: tuple[str, ...] = (COORDINATOR,)
    pooling: bool = False
    max_bytes: int = 2**30
    budget: Budget | None = None
    public: tuple[str, ...] | None = None
    max_failures: int = 20

    def __post_init__(self) -> None:
        found = []
        if unknown := sorted(set(self.requests) - set(REQUESTS)):
            found.append(f"policy.requests: unknown {', '.join(unknown)}; known are {', '.join(REQUESTS)}")
        if unknown := sorted(set(self.public or ()) - {"counts"}):
            found.append(f"policy.public: unknown {', '.join(unknown)}; known is counts")
        if unknown := sorted(set(self.recipients) - {COORDINATOR, SITES, OUTSIDE}):
            found.append(
                f"policy.recipients: unknown {', '.join(unknown)}; known are {COORDINATOR}, {SITES}, {OUTSIDE}"
            )
        if self.recipients and COORDINATOR not in self.recipients:
            others = ", ".join(sorted(self.recipients))
            found.append(f"policy.recipients: {others} get everything through the coordinator; say {COORDINATOR} too")
        if self.max_bytes < 1:
            found.append(f"policy.max_bytes must be at least 1, found {self.max_bytes}")
        if self.max_failures < 0:
            found.append(f"policy.max_failures must be at least 0, found {self.max_failures}")
        if self.budget is not None and self.pooling:
            found.append("policy.pooling: images leave without any guarantee, and a budget promises one; say false")
        if found:
            raise SettingsError(found)

    def allows(self, request: str) -> bool:
        """Whether the site answers this request (`pool` only by the word `pooling`)."""
        return self.pooling if request == "pool" else request in self.requests

    def declares(self, what: Declaration) -> bool:
        """Whether such facts may leave without noise. That something failed always may: silence would say it too."""
        if what == "failure":
            return True
        return self.budget is None if self.public is None else what in self.public


def declarations(event: Event) -> set[Declaration]:
    """What an event tells without noise."""
    return {one.what for one in leaves(event) if isinstance(one, Declared)}
