"""What each method cost in bytes and in rounds, for the coordinator's page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from evaluation.gains import rounds_to_reach
from evaluation.report import MethodCost
from pipelines.coordinator.artifacts import CENTRAL
from privacy.message import Json, as_mapping


def costs(trained: list[Any], said: Mapping[str, Mapping[str, Json]], reference: str | None) -> Iterator[MethodCost]:
    """What each method cost, by the sites' ledgers. One site's bytes are the largest."""
    lowest = next((lowest_loss(result) for result in trained if result["label"] == reference), None)
    for result in trained:
        sent = [whole(as_mapping(facts["sent"]).get(result["train_run"], 0)) for facts in said.values()]
        received = 0 if result["name"] == CENTRAL else result["received"]  # nothing is sent to sites for it
        yield MethodCost(
            result["label"],
            result["parameters"],
            max(sent, default=0),
            received,
            result["rounds"],
            total=sum(sent) + received * len(sent),
            reached=None if lowest is None else reached(result, lowest),
        )


def lowest_loss(result: Mapping[str, Any]) -> float | None:
    """The lowest validation loss over all sites of any round; None without one."""
    return min((float(loss) for loss in result["totals"].values() if math.isfinite(loss)), default=None)


def reached(result: Mapping[str, Any], lowest: float) -> int | None:
    """The first round of a method whose aggregated validation loss is at most `lowest`."""
    losses = [result["totals"].get(str(number), math.inf) for number in range(1, result["rounds"] + 1)]
    return rounds_to_reach([-loss for loss in losses], -lowest)


def whole(value: Json) -> int:
    """What should be a whole number; 0 where it is none."""
    return value if isinstance(value, int) else 0
