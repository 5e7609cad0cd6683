"""A limit on what a rehearsal may ask of data access, so that it ends soon however many steps a method is set to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

LOOKS = 10_000
"""Draws, gradients, measures and so on in one request, of each kind."""
NUMBERS = 2**34
"""Numbers in all gradients of one request: a network of 2^20 parameters may take 16,384 of them."""


class TooLong(ValueError):
    """A request would use patients' data too often, or with too large a network, to end in reasonable time."""


@dataclass
class Roof:
    """What a rehearsal asked of its data access so far."""

    asked: Counter[str] = field(default_factory=Counter)
    numbers: int = 0

    def count(self, what: str, numbers: int = 0) -> None:
        """Count one more access. numbers: how many numbers its result has.

        Raises:
            TooLong: the limit is exceeded.
        """
        self.asked[what] += 1
        self.numbers += numbers
        if self.asked[what] > LOOKS:
            raise TooLong(
                f"one round would ask data access for a {what} more than {LOOKS:,} times: lower the steps or epochs of "
                "the work and of the method, or raise privacy.sampling"
            )
        if self.numbers > NUMBERS:
            raise TooLong(
                f"one round would ask for gradients of more than {NUMBERS:,} numbers in all: lower the steps or "
                "epochs of the work and of the method, or take a smaller network"
            )
