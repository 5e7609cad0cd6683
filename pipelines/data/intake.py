"""A hospital's intake: the studies that wait to be read, and the result of each: its examples, or its rejection.

Every kind of source - volumes, pictures, tables, tensors - opens into the same list of waiting studies. They are read
independently, so they are read in parallel, and only prepared examples stay in memory.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Semaphore
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.data.index import Candidate, convert_read_errors
from pipelines.data.measures import MeasuredStudy
from pipelines.data.study import Array, Item, Rejected, Unusable, WholePicture, WholeStudy

T = TypeVar("T")
W = TypeVar("W")
READ_AHEAD = 2  # studies per reader that are read in advance
TRIED = 64  # headers by which a disk is judged
SLOW = 3.0  # times what the processor needs
AT_ONCE = 8  # headers that are read at a time from a slow disk
VOXELS = 2**27
"""Of the studies that are read at a time, about 20 bytes each; a larger one is read alone."""


@dataclass(frozen=True)
class Examples:
    """One study as network inputs, with masks.

    images: (K, *inputs) float32. lesion, gland: (K, *spatial) uint8, 0 or 1, or (K, 0) where such masks do not apply.
    position: (K,) float32, slice index from inferior to superior; 0 for a whole volume, a picture or a line of a table.
    mask: (K, *spatial) uint8, label maps of pictures, 0 = background; (K, 0) where there are none.
    """

    images: Array
    lesion: NDArray[np.uint8]
    gland: NDArray[np.uint8]
    position: NDArray[np.float32]
    mask: NDArray[np.uint8] = field(default_factory=lambda: empty_masks(0))

    def __post_init__(self) -> None:
        if self.mask.shape[1:] == (0,):  # without label maps there still is one (empty) row per example
            object.__setattr__(self, "mask", empty_masks(len(self.images)))


@dataclass(frozen=True)
class ReadStudy:
    """A study that can be used: its examples, and the label of each. scanner: vendor and field strength. evidence,
    percentiles: as of `Study`. candidate: its headers and files, of volumes.
    """

    patient: str
    study: str
    examples: Examples
    labels: Sequence[int]
    scanner: str
    evidence: str = ""
    percentiles: tuple[float, float, float] | None = None
    candidate: Candidate | None = None


@dataclass(frozen=True)
class WaitingStudy:
    """A study that is not read yet. read: reads it, or raises `Unusable`. foresee: raises those errors of `read` that
    names, labels and masks already show; it reads no image. measure: measures the study before it is prepared, or
    raises `Unusable`. voxels: of its image, by the header; 0 if unknown. read_whole: reads it on its own grid, with its
    masks, or raises `Unusable`.
    """

    patient: str
    study: str
    read: Callable[[], ReadStudy]
    foresee: Callable[[], None] = lambda: None
    measure: Callable[[], MeasuredStudy] = lambda: _measure_nothing()
    voxels: int = 0
    read_whole: Callable[[], WholeStudy | WholePicture] = lambda: _read_nothing()


@dataclass(frozen=True)
class Intake:
    """A hospital's files, with valid settings. items: each of its files, or each line of a table. unselected: number
    of series, or lines of a table, that the settings did not select. unit: of the examples' values. classes: names of
    the values of label maps, 1 = the first; empty if there are no such maps. of: the kind of the items.
    splits: patient -> split, if the source has its own division; None = the run divides patients.
    """

    waiting: tuple[WaitingStudy, ...]
    rejected: tuple[Rejected, ...]
    items: tuple[Item, ...]
    unselected: int
    unit: str
    classes: tuple[str, ...] = ()
    of: Literal["files", "lines", "examples"] = "files"
    splits: Mapping[str, str] | None = None


def read_studies(waiting: Sequence[WaitingStudy], *, readers: int) -> Iterator[ReadStudy | Rejected]:
    """Read the waiting studies, in their order; readers: as in `limit_readers`."""
    return run_in_order(waiting, read_study, readers=limit_readers(waiting, readers))


def limit_readers(waiting: Sequence[WaitingStudy], readers: int) -> int:
    """How many studies are read at a time, so that they fit into memory together. readers: as in `run_in_order`."""
    largest = max((study.voxels for study in waiting), default=0)
    most = max(1, VOXELS // max(1, largest) - 1)  # the thread that waits for results reads one, too
    return min(readers or most, most) if most < 8 else readers


def run_in_order(
    items: Sequence[W], do: Callable[[W], T], *, readers: int, stopped: Callable[[], bool] = lambda: False
) -> Iterator[T]:
    """The result of `do` for each item, in their order.

    readers: the number of parallel threads, which read a few items ahead; 0 = one per processor, at most 8. stopped:
    whether to start no further items; results of started items are still yielded.
    """
    readers = readers or min(8, os.cpu_count() or 1)
    if readers <= 1:
        for item in items:
            if stopped():
                return
            yield do(item)
        return
    # Warning filters belong to the process: set them once here, or threads would restore each other's.
    with warnings.catch_warnings(action="ignore"):
        workers = _Workers(do, readers)
        try:
            for item in items:
                if stopped():
                    break
                workers.give(item)
                yield from workers.results(READ_AHEAD * readers - 1, stopped)
            yield from workers.results(0, stopped)
        finally:
            workers.end()


class _Workers(Generic[W, T]):
    """At most `most` threads, which process items in the order of `give`.

    A `ThreadPoolExecutor` waits for the start signal of a new thread; if memory is so short that the thread ends
    before, it waits for ever. Here no code waits for a thread to start: `results` itself computes a result that no
    thread has started.
    """

    def __init__(self, do: Callable[[W], T], most: int) -> None:
        self._do, self._free = do, Semaphore(most)
        self._ahead: deque[Future[T]] = deque()
        self._given: deque[tuple[Future[T], W]] = deque()

    def give(self, item: W) -> None:
        """Let a thread work on an item, now or as soon as one is free."""
        self._ahead.append(Future())
        self._given.append((self._ahead[-1], item))
        if self._free.acquire(blocking=False):
            with suppress(RuntimeError, MemoryError):  # no thread can be started
                start_new_thread(self._work, ())

    def results(self, most: int, stopped: Callable[[], bool]) -> Iterator[T]:
        """Results in the order of their items, until at most `most` are not yielded. stopped: see `run_in_order`."""
        while len(self._ahead) > most:
            first = self._ahead[0]
            cancelled = stopped() and first.cancel()
            if self._is_next(first):
                self._run_next()
            finished = [] if cancelled else [first.result()]
            self._ahead.popleft()
            yield from finished

    def end(self) -> None:
        """Cancel the items that are not started, and wait for the others."""
        wait([future for future in self._ahead if not future.cancel()])

    def _is_next(self, future: Future[T]) -> bool:
        """Whether this is the next item, which no thread has taken yet."""
        try:
            return self._given[0][0] is future
        except IndexError:  # threads took them all, perhaps a moment ago
            return False

    def _work(self) -> None:
        """Work on items until none is waiting: the life of one thread."""
        while self._run_next():
            pass
        self._free.release()

    def _run_next(self) -> bool:
        """Work on the next item; False if there is none."""
        try:
            future, item = self._given.popleft()
        except IndexError:
            return False
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(self._do(item))
            except BaseException as error:
                future.set_exception(error)
        return True


def read_ahead(items: Sequence[W], do: Callable[[W], T]) -> Iterator[T]:
    """The result of `do` for each item, in their order; several run at a time if the disk is slow.

    Parsing headers holds Python's lock, so threads only cost while a disk answers at once; over a network most of the
    time is spent waiting. The first items are read one after the other, to measure which case it is.
    """
    started, busy_before, waits_before = time.perf_counter(), time.thread_time(), _count_waits()
    for item in items[:TRIED]:
        yield do(item)
    slow = (
        time.perf_counter() - started > SLOW * (time.thread_time() - busy_before)
        and _count_waits() - waits_before >= TRIED
    )
    yield from run_in_order(items[TRIED:], do, readers=AT_ONCE if slow else 1)


def _count_waits() -> float:
    """How often this thread has waited, but not for a processor; a large number where the system does not count it."""
    if sys.platform != "linux":
        return time.perf_counter_ns()
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def read_study(waiting: WaitingStudy) -> ReadStudy | Rejected:
    """Read one study. Any error in its bytes becomes a rejection, never an exception."""
    return _run_or_reject(waiting.study, waiting.read)


def measure_study(waiting: WaitingStudy) -> MeasuredStudy | Rejected:
    """Measure one study. Any error in its bytes becomes a rejection, never an exception."""
    return _run_or_reject(waiting.study, waiting.measure)


def read_whole_study(waiting: WaitingStudy) -> WholeStudy | WholePicture | Rejected:
    """Read one study on its own grid. Any error in its bytes becomes a rejection, never an exception."""
    return _run_or_reject(waiting.study, waiting.read_whole)


def _read_nothing() -> WholeStudy:
    """Of studies that have no grid. Raises: Unusable: `no_volume`."""
    raise Unusable("no_volume", "it is no image with masks of its own grid. Give DICOM, NIfTI or pictures with masks.")


def _measure_nothing() -> MeasuredStudy:
    """Of studies without masks. Raises: Unusable: `no_mask`."""
    raise Unusable("no_mask", "there is no mask for it, and a fingerprint is of what masks show. Add one.")


def foresee_rejection(waiting: WaitingStudy) -> Rejected | None:
    """The rejection of a study that is certain without reading its image; None if there is none."""
    return _run_or_reject(waiting.study, waiting.foresee)


def _run_or_reject(study: str, do: Callable[[], T]) -> T | Rejected:
    """The result of `do`, or the rejection of this study if it raises `Unusable`."""
    try:
        with convert_read_errors(study):
            return do()
    except Unusable as error:
        return Rejected(study, error.reason, error.detail)


def empty_masks(count: int) -> NDArray[np.uint8]:
    """Empty masks (count, 0), for examples without masks."""
    return np.zeros((count, 0), np.uint8)


def try_collecting(problems: list[str], do: Callable[[], T]) -> T | None:
    """The result, or None with its error added to `problems`, so that all errors in settings are reported at once."""
    try:
        return do()
    except ValueError as error:
        problems.append(str(error))
        return None
