"""Limits on the numbers in a run's settings: no hospital builds larger networks or counts further, whoever asks."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from math import prod

import torch

from federation.descent import Work
from federation.parameters import count, read
from federation.task import Task
from personalize import AnyAlgorithm

PARAMETERS = 2**28
"""Of a network with all that a method puts beside it, and numbers in one example: 1 GiB of each."""
LAYERS = 1000
"""The longest list in the settings of a network."""
REPEATS = 10**6
"""The largest whole number in the settings of a method, and of steps or epochs: none of them needs one like it."""


def size_problems(algorithm: AnyAlgorithm, task: Task, work: Work) -> list[str]:
    """What exceeds the limits, a sentence each; nothing is built or trained to find out.

    Several numbers within their limits may still multiply to very long work: in private training the rehearsal limits
    it (`privacy.dp.roof`); in plain training a person may stop a round.
    """
    named = {**asdict(algorithm), "steps": work.steps, "epochs": work.epochs}
    found = [f"{name} must be <= {REPEATS}, found {value}" for name, value in named.items() if _excessive(value)]
    lists = {name: value for name, value in vars(task.model).items() if isinstance(value, list | tuple)}
    found += [
        f"model.{name} must have at most {LAYERS} entries, found {len(value)}"
        for name, value in lists.items()
        if len(value) > LAYERS
    ]
    if min(task.inputs, default=0) < 1 or prod(task.inputs) > PARAMETERS:
        found.append(f"inputs must be positive sides of at most {PARAMETERS} numbers, found {list(task.inputs)}")
    return found or _too_large(algorithm, task)


@lru_cache(maxsize=64)
def size_of(algorithm: AnyAlgorithm, task: Task) -> int:
    """Parameters and buffers of a method's network, counted without giving them any memory.

    Raises:
        RuntimeError, OverflowError: no such network can be built.
    """
    with torch.device("meta"):
        return count(read(algorithm.network(task)))


def _too_large(algorithm: AnyAlgorithm, task: Task) -> list[str]:
    try:
        size = size_of(algorithm, task)
    except (RuntimeError, OverflowError) as error:
        return [f"model: no such network can be built ({error}): change its widths, the method's, or the inputs"]
    if size <= PARAMETERS:
        return []
    return [f"model: at most {PARAMETERS} parameters, found {size} with {algorithm.name}: choose a smaller network"]


def _excessive(value: object) -> bool:
    return isinstance(value, int) and value > REPEATS
