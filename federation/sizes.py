"""The number of values in a network, counted before memory is allocated."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import nn

from federation.models.adapted import fixed_in
from federation.task import Task

PARAMETERS = 2**28
"""Most parameters of a method's networks, and most numbers in one example: 1 GiB each."""


class Builds(Protocol):
    """An object that builds a network for a task, such as a method."""

    @property
    def name(self) -> str: ...
    def network(self, task: Task) -> nn.Module: ...
    def __hash__(self) -> int: ...


class TooLarge(ValueError):
    """A network has more parameters than `PARAMETERS`."""


@lru_cache(maxsize=64)
def count_network_values(algorithm: Builds | None, task: Task) -> int:
    """Number of parameters and buffers of a method's network, counted without allocating them. algorithm None: the
    task's network.

    Raises:
        RuntimeError, OverflowError, ValueError: no such network can be built.
    """
    with torch.device("meta"):
        module = task.network() if algorithm is None else algorithm.network(task)
    return sum(value.numel() for value in (*module.state_dict().values(), *fixed_in(module).values()))


def check_size(algorithm: Builds | None, task: Task) -> None:
    """Check that a network is not larger than a hospital builds. algorithm None: the task's network.

    Raises:
        TooLarge: it is larger.
        RuntimeError, OverflowError, ValueError: as `count_network_values`.
    """
    if (size := count_network_values(algorithm, task)) > PARAMETERS:
        whose = "" if algorithm is None else f" with {algorithm.name}"
        raise TooLarge(f"at most {PARAMETERS} parameters, found {size}{whose}: choose a smaller network")
