"""Upper limits on sizes and counts in a run's settings, which every hospital enforces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import prod

from federation.algorithm import find_class_needs
from federation.descent import Work
from federation.sizes import PARAMETERS, TooLarge, check_size
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.prompts import no_prompt

LAYERS = 1000
"""The longest list in the settings of a network."""
REPEATS = 10**6
"""The largest whole number in the settings of a method, and of steps or epochs; far more than any needs."""


def find_size_problems(algorithm: AnyAlgorithm, task: Task, work: Work) -> list[str]:
    """A sentence for each limit that is exceeded; nothing is built or trained.

    Several numbers within their limits may still multiply to very long work: in private training the rehearsal limits
    it (`privacy.dp.access_limit`); in plain training a person may stop a round.
    """
    named = {**dict(_list_settings(asdict(algorithm))), "steps": work.steps, "epochs": work.epochs}
    problems = [f"{name} must be <= {REPEATS}, found {value}" for name, value in named.items() if _is_excessive(value)]
    lists = {name: value for name, value in vars(task.model).items() if isinstance(value, list | tuple)}
    problems += [
        f"model.{name} must have at most {LAYERS} entries, found {len(value)}"
        for name, value in lists.items()
        if len(value) > LAYERS
    ]
    if min(task.inputs, default=0) < 1 or prod(task.inputs) > PARAMETERS:
        problems.append(f"inputs must be positive sides of at most {PARAMETERS} numbers, found {list(task.inputs)}")
    return problems or no_prompt(algorithm, task) or find_class_needs(algorithm, task) or _too_large(algorithm, task)


def _too_large(algorithm: AnyAlgorithm, task: Task) -> list[str]:
    try:
        check_size(algorithm, task)
    except (RuntimeError, OverflowError) as error:
        return [f"model: no such network can be built ({error}): change its widths, the method's, or the inputs"]
    except TooLarge as error:
        return [f"model: {error}"]
    return []


def _list_settings(settings: Mapping[str, object], within: str = "") -> Iterator[tuple[str, object]]:
    """(name, value) of settings and of those inside them, as in `of.head_steps`."""
    for name, value in settings.items():
        yield (f"{within}{name}", value)
        if isinstance(value, dict):
            yield from _list_settings(value, f"{within}{name}.")


def _is_excessive(value: object) -> bool:
    return isinstance(value, int) and value > REPEATS
