"""Open an archive, of either kind; its client is imported here, where it is used."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pipelines.pacs.archive import Archive
from pipelines.pacs.settings import ArchiveSettings, DicomWeb, archive_problems
from privacy.settings_error import refuse

PACKAGES = ("dicomweb_client", "requests", "urllib3", "retrying", "pynetdicom")


class Missing(Exception):
    """An optional package is not installed."""


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Inside, these packages and pydicom log nothing and warn of nothing, in any thread: they quote headers."""
    loggers = [logging.getLogger(name) for name in (*PACKAGES, "pydicom")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=rf"({'|'.join(PACKAGES)}|pydicom)(\.|$)")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def open_archive(settings: ArchiveSettings) -> Iterator[Archive]:
    """An archive for as long as the block lasts. Nothing is asked yet, so it opens while the archive is away.

    Raises:
        SettingsError: a secret or a certificate cannot be read, or others may read it.
        Missing: the client's package is not installed.
    """
    refuse(archive_problems(settings))
    with ExitStack() as stack:
        stack.enter_context(silence_libraries())
        try:
            if isinstance(settings, DicomWeb):
                from pipelines.pacs.dicomweb import open_web as opened_web

                archive: Archive = stack.enter_context(opened_web(settings))
            else:
                from pipelines.pacs.node import open_node as opened_node

                archive = stack.enter_context(opened_node(settings))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] not in PACKAGES:
                raise
            raise Missing(f"{error.name} is not installed; pip install consilium[pacs]") from error
        yield archive
