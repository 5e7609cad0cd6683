"""Named seeds derived from one logged seed. Privacy noise is never drawn from these seeds, but from the entropy of the
system.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for (seed, names), the same on every machine: sha256 of the parts as JSON."""
    text = json.dumps([seed, *names])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generators (dropout, initialization) for a block, and restore them afterwards."""
    with torch.random.fork_rng():
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # the same, but torch queues no seeding, with a stack trace, for devices that do not exist
            torch.default_generator.manual_seed(seed)
        yield
