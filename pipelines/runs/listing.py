"""Which files and folders are there, where nothing may be overlooked.

`Path.glob` and `os.walk` leave out a folder that cannot be listed, as if it were empty. Whoever removes what nothing
refers to, or refuses because of what is there, must not take an error for an empty folder.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def list_paths(root: Path, pattern: str) -> list[Path]:
    """What `root.glob(pattern)` finds, sorted; `**` is no pattern of it. A folder that is missing counts as empty.

    Raises:
        OSError: a folder cannot be listed.
    """
    paths = [root]
    for part in pattern.removesuffix("/").split("/"):
        paths = [folder / name for folder in paths for name in fnmatch.filter(names_in(folder), part)]
    return sorted(path for path in paths if path.is_dir() or not pattern.endswith("/"))


def walk_folder_tree(folder: Path) -> Iterator[Path]:
    """All that lies below a folder, folders before what is in them; links are not followed.

    Raises:
        OSError: a folder cannot be listed.
    """
    for path in (folder / name for name in names_in(folder)):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk_folder_tree(path)


def names_in(folder: Path) -> list[str]:
    """Names of what is in a folder, sorted; none if there is no such folder. Raises: OSError: it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
