"""Which files are written while something is done, so that whoever promised them can look after them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_NOTED: ContextVar[list[Path] | None] = ContextVar("noted", default=None)


def note_written(path: Path) -> None:
    """Say that a file has been written whole. Does nothing outside `noting`."""
    noted = _NOTED.get()
    if noted is not None:
        noted.append(path)


@contextmanager
def note_files() -> Iterator[list[Path]]:
    """The files that are written within, in this order; a file that was written twice is there twice."""
    noted: list[Path] = []
    token = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(token)
