"""Upper limits on sizes and counts in a run's settings, which every hospital enforces."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from math import prod

import torch

from federation.descent import Work
from federation.parameters import count, read
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.prompts import no_prompt

PARAMETERS = 2**28
"""Most parameters of a method's networks, and most numbers in one example: 1 GiB each."""
LAYERS = 1000
"""The longest list in the settings of a network."""
REPEATS = 10**6
"""The largest whole number in the settings of a method, and of steps or epochs; far more than any needs."""


def size_problems(algorithm: AnyAlgorithm, task: Task, work: Work) -> list[str]:
    """A sentence for each limit that is exceeded; nothing is built or trained.

    Several numbers within their limits may still multiply to very long work: in private training the rehearsal limits
    it (`privacy.dp.access_limit`); in plain training a person may stop a round.
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
    return found or no_prompt(algorithm.name, task) or _too_large(algorithm, task)


@lru_cache(maxsize=64)
def size_of(algorithm: AnyAlgorithm, task: Task) -> int:
    """Number of parameters and buffers of a method's network, counted without allocating them.

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
