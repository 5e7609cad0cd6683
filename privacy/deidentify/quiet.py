"""Silence of the DICOM reader: what it warns of, it quotes, and a quoted value may name a patient."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)  # of this thread: readers work side by side


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, neither Python's warnings nor pydicom's log say anything."""
    before = _SILENT.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _SILENT.reset(before)


def _spoken(_: logging.LogRecord) -> bool:
    return not _SILENT.get()


logging.getLogger("pydicom").addFilter(_spoken)
