"""Ask again what may be asked again, not too fast, and not for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pipelines.pacs.archive import Unreachable
from pipelines.pacs.settings import Limits

T = TypeVar("T")
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds; doubled each time
jitter = random.SystemRandom()


class Passing(Exception):
    """A failure that may pass: no connection, no answer in time, an archive that says it is busy.

    wait: seconds that the archive asked for.
    """

    def __init__(self, what: str, wait: float = 0.0) -> None:
        super().__init__(what)
        self.wait = wait


@dataclass
class Pace:
    """Keeps to `per_second` over everything that one archive is asked."""

    limits: Limits
    free: float = field(default=0.0)

    def turn(self) -> None:
        """Wait until the next request may begin."""
        if self.limits.per_second is None:
            return
        time.sleep(max(0.0, self.free - time.monotonic()))
        self.free = time.monotonic() + 1 / self.limits.per_second

    def again(self, action: Callable[[], T]) -> T:
        """The result of an action that is safe to repeat, tried `retries` times more while it raises `Passing`.

        Raises:
            Unreachable: it raised `Passing` each time.
        """
        for tried in range(self.limits.retries + 1):
            self.turn()
            try:
                return action()
            except Passing as error:
                if tried == self.limits.retries:
                    times = f" ({tried + 1} times)" if tried else ""
                    raise Unreachable(f"{error}{times}") from error
                doubled: float = min(FIRST_WAIT * 2**tried, LONGEST_WAIT)
                time.sleep(max(doubled * jitter.uniform(0.5, 1.0), min(error.wait, LONGEST_WAIT)))
        raise Unreachable("never asked")


def run_within(seconds: float, action: Callable[[], T]) -> T:
    """The result of an action that takes at most so long. One that takes longer is left alone, and ends with us.

    Raises:
        Passing: it takes longer.
        BaseException: whatever the action raises.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise Passing(f"no whole answer within {seconds:g} s")
    return results[0]
