"""Silence of the DICOM reader: what it warns of, it quotes, and a quoted value may name a patient."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, neither Python's warnings nor pydicom's log say anything."""
    log = logging.getLogger("pydicom")
    log.addFilter(_nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False
