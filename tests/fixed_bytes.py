"""A source of bytes that repeats, in place of the operating system's."""

from __future__ import annotations

import random
from collections.abc import Callable


def bytes_of(seed: int) -> Callable[[int], bytes]:
    """A `Source` of `privacy.dp.entropy` that gives the same bytes each time."""
    return random.Random(seed).randbytes
