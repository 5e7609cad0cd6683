"""Collect the files that are written during some work, so that the caller can check them afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_COLLECTED: ContextVar[list[Path] | None] = ContextVar("noted", default=None)


def note_written_file(path: Path) -> None:
    """Note that a file was written completely. Does nothing outside `collect_written_files`."""
    paths = _COLLECTED.get()
    if paths is not None:
        paths.append(path)


@contextmanager
def collect_written_files() -> Iterator[list[Path]]:
    """The files that are written in the `with` block, in order; a file that is written twice is listed twice."""
    paths: list[Path] = []
    token = _COLLECTED.set(paths)
    try:
        yield paths
    finally:
        _COLLECTED.reset(token)
