"""Files that a loss of power does not take any more once a function here has returned."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

PART = ".part"
LONGEST = 60
"""Characters of a name in the name of its unfinished file, which must not grow too long."""


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write or replace a file, whole or not at all. Its folder is made. mode: less the umask.

    Raises:
        OSError: the disk.
    """
    make_folder(path.parent)
    part = path.with_name(f".{path.name[:LONGEST]}{PART}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    flush_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they are there.

    Raises:
        OSError: the disk.
    """
    missing = list(takewhile(lambda folder: not folder.is_dir(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        flush_folder(folder.parent)


def flush(files: Iterable[Path]) -> None:
    """Force files that were written to the disk, and their names.

    Raises:
        OSError: the disk.
    """
    paths = list(files)
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for folder in {path.parent for path in paths}:
        flush_folder(folder)


def flush_folder(path: Path) -> None:
    """Force the names in a folder to the disk, if the system can (Windows cannot open folders).

    Raises:
        OSError: the disk.
    """
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
