"""List files and folders, for callers that must not miss any.

`Path.glob` and `os.walk` leave out a folder that cannot be listed, as if it were empty. Code that removes unreferenced
files, or refuses because a file exists, must not take such an error for an empty folder.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path


def list_paths(root: Path, pattern: str) -> list[Path]:
    """The paths that `root.glob(pattern)` finds, sorted; `**` is not supported. A missing folder counts as empty.

    Raises:
        OSError: a folder cannot be listed.
    """
    paths = [root]
    for part in pattern.removesuffix("/").split("/"):
        paths = [folder / name for folder in paths for name in fnmatch.filter(list_names(folder), part)]
    return sorted(path for path in paths if path.is_dir() or not pattern.endswith("/"))


def walk_folder_tree(folder: Path) -> Iterator[Path]:
    """All paths below a folder, each folder before its contents; links are not followed.

    Raises:
        OSError: a folder cannot be listed.
    """
    for path in (folder / name for name in list_names(folder)):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from walk_folder_tree(path)


def list_names(folder: Path) -> list[str]:
    """Names of a folder's entries, sorted; none if there is no such folder. Raises: OSError: it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
