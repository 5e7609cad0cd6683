"""Once a function here has returned, a loss of power cannot take what it wrote."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

PART = ".part"
LONGEST = 60
"""Characters of a name in the name of its unfinished file, which must not grow too long."""
NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system says that cannot force the names in a folder to the disk, as some on a network."""


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, flush_name: bool = True) -> None:
    """Write or replace a file, whole or not at all. Its folder is made.

    mode: less the umask. flush_name: whether its name is forced to the disk, too; else a caller that writes many files
    does it once, with `flush_folder`. Until then a loss of power may take the new file, but leaves no damaged one.

    Raises:
        OSError: the disk.
    """
    make_folder(path.parent)
    part = path.with_name(f".{path.name[:LONGEST]}{PART}")
    try:
        _write_file(part, data, mode)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if flush_name:
        flush_folder(path.parent)


def write_once(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file that is not there yet, such as a key, whole or not at all.

    Raises:
        FileExistsError: it is there.
        OSError: the disk, or there is no such folder.
    """
    part = path.with_name(f".{path.name[:LONGEST]}{PART}")
    if os.path.lexists(path):
        with suppress(OSError):  # as where secrets are mounted read-only
            part.unlink(missing_ok=True)  # a killed call may have left it, which is one more copy of a key
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    try:
        _write_file(part, data, mode)
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links; it was not there just before
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    flush_folder(path.parent)


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it, unless they are there. mode: of the folder, less the umask.

    Raises:
        OSError: the disk.
    """
    missing = list(takewhile(lambda folder: not folder.is_dir(), (path, *path.parents)))
    path.mkdir(parents=True, exist_ok=True, mode=mode)
    for folder in missing:
        flush_folder(folder.parent)


def flush_files(files: Iterable[Path]) -> None:
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
    """Force the names in a folder to the disk, if the system and its file system can (Windows cannot open folders).

    Raises:
        OSError: the disk.
    """
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in NO_FSYNC:
                raise
        finally:
            os.close(handle)


def _write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file and force its bytes, but not its name, to the disk."""
    with open(path, "wb", opener=lambda name, how: os.open(name, how, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
