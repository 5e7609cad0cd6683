"""Readers of packages: they write a hospital's images in a form that this program reads, inside the hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, cast, get_args

from federation.registry import Group
from pipelines.data.archive_sources import DicomNodeSource, DicomWebSource
from pipelines.data.sources import Files
from privacy.settings_error import Problem, SettingsError


class Reader(Protocol):
    """Settings of a hospital's images in a form that is not read here: a frozen dataclass with its keys in YAML.

    Everything after it (pseudonyms, checks of files, splits, quarantine) is as for the source that it describes.
    """

    @property
    def kind(self) -> str:
        """Its name in YAML."""
        ...

    def described(self, folder: str) -> Files:
        """The source of files for the images when they lie in a folder. Nothing is read or written."""
        ...

    def write(self, folder: Path) -> None:
        """Write the images, as they are now, into a folder of the hospital's own, in place of what lies there."""
        ...


READERS = Group("readers", "reader", (*get_args(Files), DicomWebSource, DicomNodeSource), Reader, tag="kind")


def is_reader(source: object) -> bool:
    """Whether a source is a package's or a registered reader."""
    return callable(getattr(source, "described", None)) and callable(getattr(source, "write", None))


def resolve_source(source: Any, folder: str = ".") -> Any:
    """The source of files that stands for a reader's images in a folder; any other source is returned unchanged.

    Raises:
        SettingsError: the reader describes none.
    """
    if not is_reader(source):
        return source
    try:
        file_source = cast(Reader, source).described(folder)
    except Exception as error:  # its own code
        text = f"the reader {source.kind} cannot be used ({type(error).__name__}: {error})"
        raise SettingsError([Problem(("source",), text)]) from error
    if not isinstance(file_source, get_args(Files)):
        text = f"the reader {source.kind} must describe one of our sources of files, found {type(file_source).__name__}"
        raise SettingsError([Problem(("source",), text)])
    return file_source
