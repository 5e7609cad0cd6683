"""Numbers that no run can mean: refused in every setting, whichever class it belongs to.

A class states what its own numbers mean. This is the outer bound of all of them: a run of 10^15 rounds ends with the
universe, and a deadline of a nanosecond loses every reply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from privacy.settings_error import Path, Problem

if TYPE_CHECKING:
    from privacy.message import Json

MOST = 10**6
"""The largest whole number of anything that is counted: rounds, epochs, steps, copies, patients, pixels."""
LARGER: Mapping[str, int] = {
    "seed": 2**63 - 1,
    "max_bytes": 2**40,
    "max_model_bytes": 2**40,
    "values": 2**31,
    "codes": 2**31,
}
"""Keys of whole numbers that count nothing, or bytes, or are values of pixels; the largest below them."""
GREATEST, LEAST = 1e9, 1e-15
"""The largest and smallest size of a number that is not whole; 0, and infinity where a class allows it, are others."""


def find_absurd_numbers(data: Json, skipped: frozenset[str]) -> list[Problem]:
    """Every number beyond all bounds. skipped: keys below which values may name patients."""
    return [
        problem
        for path, value in _list_numbers(data, (), skipped)
        if (problem := _number_problem(path, value)) is not None
    ]


def _list_numbers(value: Json, path: Path, skipped: frozenset[str]) -> Iterator[tuple[Path, int | float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in skipped:
                yield from _list_numbers(inner, (*path, key), skipped)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _list_numbers(inner, (*path, index), skipped)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def _number_problem(path: Path, value: int | float) -> Problem | None:
    if isinstance(value, int):
        most = next((LARGER[key] for key in reversed(path) if isinstance(key, str) and key in LARGER), MOST)
        return None if abs(value) <= most else Problem(path, f"must be at most {most:,} in size, found {value:.3g}")
    if value == 0 or not math.isfinite(value) or LEAST <= abs(value) <= GREATEST:
        return None
    return Problem(path, f"must be 0, or between {LEAST:g} and {GREATEST:g} in size, found {value:g}")
