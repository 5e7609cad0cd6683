"""Which cases of a test that is marked `repeats(most)` the default suite leaves out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any


def list_left_out(items: Sequence[Any]) -> list[Any]:
    """The cases that only `--thorough` runs. items: pytest's; those that are slow anyhow count for nothing, and those
    that need a GPU are drawn apart from the others: most machines skip them.
    """
    cases: dict[tuple[str, bool], list[Any]] = {}
    for item in items:
        if item.get_closest_marker("repeats") and not item.get_closest_marker("slow"):
            needs_gpu = item.get_closest_marker("gpu") is not None
            cases.setdefault((item.nodeid.partition("[")[0], needs_gpu), []).append(item)
    left = list[Any]()
    for each in cases.values():
        chosen = choose_cases(each, *each[0].get_closest_marker("repeats").args)
        left += [item for item in each if item not in chosen]
    return left


def choose_cases(cases: Sequence[Any], most: int) -> list[Any]:
    """About so many cases, drawn by their names: among them each value of every parameter that has no more values than
    that. Tests with the same parameters choose different ones, so that together they see most of them.
    """
    drawn = sorted(cases, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
    values = {item.nodeid: set(item.callspec.indices.items()) for item in cases}
    counts = Counter(name for name, _ in set().union(*values.values()))
    chosen, seen = list[Any](), set[tuple[str, int]]()
    for item in drawn:
        new = {value for value in values[item.nodeid] - seen if counts[value[0]] <= most}
        chosen += [item] if new else []
        seen |= new
    return chosen + [item for item in drawn if item not in chosen][: max(0, most - len(chosen))]
