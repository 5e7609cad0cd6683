"""A limit on the data accesses of a rehearsal, so that it ends soon whatever the number of a method's steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

LOOKS = 10_000
"""The most draws, gradients, measures and so on in one request, of each kind."""
NUMBERS = 2**34
"""The most numbers in all gradients of one request: 16,384 gradients of a network of 2^20 parameters."""


class TooLong(ValueError):
    """A request would use patients' data too often, or with too large a network, to end in reasonable time."""


@dataclass
class AccessLimit:
    """Counts a rehearsal's data accesses and refuses too many."""

    asked: Counter[str] = field(default_factory=Counter)
    numbers: int = 0

    def count(self, what: str, numbers: int = 0) -> None:
        """Count one more access. numbers: the size of its result.

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
