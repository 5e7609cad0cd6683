"""Which parameters travel: predicates on names. A network names its parts `stem`, `blocks.k`, `head`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import nn

Shared: TypeAlias = Callable[[str], bool]


def body(name: str) -> bool:
    """Everything but the head (FedPer)."""
    return not name.startswith("head.")


def without_effect(module: nn.Module, shared: Shared, method: str) -> list[str]:
    """A complaint when a predicate selects no parameter or every one: then the method is local training or FedAvg.

    Returns:
        At most one sentence; empty = the predicate splits this network.
    """
    names = [name for name, _ in module.named_parameters()]
    chosen = [name for name in names if shared(name)]
    if 0 < len(chosen) < len(names):
        return []
    what = "no parameter, which is local training" if not chosen else "every parameter, which is FedAvg"
    return [
        f"{method} would share {what}, on {type(module).__name__} with {len(names)} parameters: choose another network"
    ]
