"""A hospital's intake: the studies that wait to be read, and each of them once it is read, or rejected with its reason.

Every kind of source - volumes, pictures, tables - opens into the same list of studies that wait. Reading one looks at
no other, so studies are read in parallel, and only prepared examples stay in memory.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.data.index import readable
from pipelines.data.study import Array, Item, Rejected, Unusable

T = TypeVar("T")
W = TypeVar("W")
AHEAD = 2  # studies that are read, per reader, before the first of them is taken


@dataclass(frozen=True)
class Examples:
    """What a network sees of one study.

    images: (K, *inputs) float32. lesion, gland: (K, *spatial) uint8, 0 or 1, or (K, 0) where such masks make no sense.
    position: (K,) float32, slice index from inferior to superior; 0 for a whole volume, a picture or a line of a table.
    mask: (K, *spatial) uint8, label maps of pictures, 0 = background; (K, 0) where there are none.
    """

    images: Array
    lesion: NDArray[np.uint8]
    gland: NDArray[np.uint8]
    position: NDArray[np.float32]
    mask: NDArray[np.uint8] = field(default_factory=lambda: no_masks(0))

    def __post_init__(self) -> None:
        if self.mask.shape[1:] == (0,):  # no map of nobody is none of each
            object.__setattr__(self, "mask", no_masks(len(self.images)))


@dataclass(frozen=True)
class ReadStudy:
    """A study that can be used: its examples, and the label of each. scanner: vendor and field strength. evidence,
    percentiles: as of `Study`.
    """

    patient: str
    study: str
    examples: Examples
    labels: Sequence[int]
    scanner: str
    evidence: str = ""
    percentiles: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class WaitingStudy:
    """A study that is not read yet. read: reads it, or raises `Unusable`."""

    patient: str
    study: str
    read: Callable[[], ReadStudy]


@dataclass(frozen=True)
class Intake:
    """A hospital's files, whose settings are in order. items: each of its files, or each line of a table. unselected:
    series, or lines of a table, that the settings did not ask for. unit: of the examples' values. classes: what the
    values of label maps stand for, 1 = the first; empty where there are no such maps. of: what the items are.
    """

    waiting: tuple[WaitingStudy, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int
    unit: str
    classes: tuple[str, ...] = ()
    of: Literal["files", "lines"] = "files"


def read_studies(waiting: Sequence[WaitingStudy], *, readers: int) -> Iterator[ReadStudy | Rejected]:
    """Read what waits, in its order; readers: as of `in_order`."""
    return in_order(waiting, read_study, readers=readers)


def in_order(
    items: Sequence[W], do: Callable[[W], T], *, readers: int, stopped: Callable[[], bool] = lambda: False
) -> Iterator[T]:
    """What `do` makes of each item, in their order.

    readers: how many items at a time, and a few ahead; 0 = one a processor, at most 8. stopped: whether nothing new
    should begin; what was begun is still handed on.
    """
    readers = readers or min(8, os.cpu_count() or 1)
    if readers <= 1:
        for one in items:
            if stopped():
                return
            yield do(one)
        return
    # Filters of warnings belong to the process: set once here, or readers would restore each other's.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(readers) as pool:
        ahead: deque[Future[T]] = deque()

        def taken(most: int) -> Iterator[T]:
            while len(ahead) > most:
                first = ahead.popleft()
                if not (stopped() and first.cancel()):
                    yield first.result()

        try:
            for one in items:
                if stopped():
                    break
                ahead.append(pool.submit(do, one))
                yield from taken(AHEAD * readers - 1)
            yield from taken(0)
        finally:
            pool.shutdown(cancel_futures=True)


def read_study(waiting: WaitingStudy) -> ReadStudy | Rejected:
    """Read one study. Whatever is wrong with its bytes ends as a rejection, never as an exception."""
    try:
        with readable(waiting.study):
            return waiting.read()
    except Unusable as error:
        return Rejected(waiting.study, error.reason, error.detail)


def no_masks(count: int) -> NDArray[np.uint8]:
    """The masks of examples that have none (count, 0)."""
    return np.zeros((count, 0), np.uint8)


def tried(problems: list[str], do: Callable[[], T]) -> T | None:
    """The result, or None and one problem more: settings' errors are told all at once."""
    try:
        return do()
    except ValueError as error:
        problems.append(str(error))
        return None
