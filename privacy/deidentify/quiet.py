"""Silences the DICOM reader: its warnings quote values, and a quoted value may name a patient."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)  # per thread, because readers run in parallel


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Inside, Python's warnings and pydicom's log are silent."""
    before = _SILENT.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _SILENT.reset(before)


def _not_silent(_: logging.LogRecord) -> bool:
    """Whether a log record may pass: not inside `silence_warnings`."""
    return not _SILENT.get()


logging.getLogger("pydicom").addFilter(_not_silent)
