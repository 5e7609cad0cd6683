"""List the files of a hospital's folder, and detect files that change while they are read.

Inboxes of a PACS change all the time. So each file gets a stamp before its header is read, which is compared after its
pixels were read: a file that was removed, changed or replaced in between is rejected with its own reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from pipelines.data.study import Item, Rejected, Unusable
from privacy.system_errors import of_machine

T = TypeVar("T")
WAIT = "Let the transfer end, then run again"
OF_SYSTEM = ("vanished", "no_permission", "disk_error")
"""Reasons that the system gives, whatever the file holds."""


class Stamp(NamedTuple):
    """A file's size in bytes, the time of its last change in ns, and its inode, to detect changes."""

    size: int
    changed: int
    inode: int


@dataclass(frozen=True)
class Walk:
    """files: regular files, sorted by name. left: other entries, and links to files outside. rejected: folders that
    cannot be read or have vanished.
    """

    files: tuple[Path, ...]
    left: tuple[Item, ...]
    rejected: tuple[Rejected, ...]


def list_files(folder: Path) -> list[Path]:
    """All regular files below `folder`, sorted by name, each once; a link is followed only to a file inside it.

    Hidden files and folders (names that begin with a dot) are skipped: version control and file managers make them.
    """
    return list(walk_folder(folder).files)


def walk_folder(folder: Path) -> Walk:
    """As `walk`, with the other entries: an item for each hidden file, for each hidden folder as a whole, for each link
    that is not followed and for each pipe, socket or device.
    """
    root = resolve_path(folder)
    files: dict[Path, Path] = {}
    left: list[Item] = []
    errors: list[OSError] = []
    for parent, folders, names in os.walk(root, followlinks=False, onerror=errors.append):
        for name in sorted(folders):
            left += _skipped_folder_items(root, Path(parent, name))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            real = resolve_path(path) if path.is_symlink() else path
            if (item := _skipped_entry_item(root, path, real)) is not None:
                left.append(item)
            elif real not in files or real == path:
                files[real] = path
    closed = [_reject_unreadable_folder(root, error) for error in errors]
    items = [Item(rejection.study, "part", studies=(rejection.study,)) for rejection in closed]
    return Walk(tuple(sorted(files.values())), (*left, *items), tuple(closed))


def resolve_path(path: Path) -> Path:
    """The path behind all links. A link to itself is returned as it is, where `Path.resolve` raises."""
    return Path(os.path.realpath(path))


def relative_name(root: Path, path: Path) -> str:
    """A file's path relative to the folder, with `/` between its parts."""
    return path.relative_to(root).as_posix()


def stamp_file(path: Path) -> Stamp:
    """The file's stamp now.

    Raises:
        Unusable: `vanished` (it is gone, or no longer a regular file), `no_permission` or `disk_error`.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise explain_failure(path.name, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise Unusable("vanished", f"{path.name} was a file and is none any more. {WAIT}.")
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def check_unchanged(stamps: Mapping[Path, Stamp]) -> None:
    """Refuse files that have changed since they were stamped.

    Raises:
        Unusable: `vanished`, `no_permission`, `disk_error` or `still_written`.
    """
    for path, before in stamps.items():
        now = stamp_file(path)
        if now != before:
            raise Unusable(
                "still_written",
                f"{path.name} changed while it was read ({before.size} bytes before, {now.size} now). {WAIT}.",
            )


def read_steadily(stamps: Mapping[Path, Stamp], read: Callable[[], T]) -> T:
    """The result of `read`, if the files did not change meanwhile; a change takes precedence over any other error.

    Raises:
        Unusable: as `check_unchanged`.
        Exception: whatever `read` raises where no file changed.
    """
    check_unchanged(stamps)
    try:
        return read()
    finally:
        check_unchanged(stamps)


def explain_failure(name: str, error: OSError) -> Unusable:
    """The reason for a failed system call on a file: `vanished`, `no_permission` or `disk_error`, one of `OF_SYSTEM`.

    Raises:
        OSError: the error is the machine's and not the file's: too many files are open, the network is down.
    """
    if of_machine(error):
        raise error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Unusable("vanished", f"{name} was there and is gone. {WAIT}.")
    if isinstance(error, PermissionError):
        return Unusable("no_permission", f"{name} may not be read by this user. Give read permission.")
    why = error.strerror or type(error).__name__
    return Unusable("disk_error", f"{name} cannot be read ({why}). Check the disk or the network, copy it again.")


def _skipped_folder_items(root: Path, path: Path) -> list[Item]:
    """The item of a folder that is not searched: a link to another place, or a hidden folder; else none."""
    name = f"{relative_name(root, path)}/"
    if path.is_symlink() and not resolve_path(path).is_relative_to(root):
        detail = "A link to a folder elsewhere; it is not followed. Copy the files, or give that folder."
        return [Item(name, "not_selected", reason="link_outside", detail=detail)]
    if path.name.startswith(".") and not path.is_symlink():
        return [Item(name, "not_imaging", reason="hidden", detail="A hidden folder; it is not looked into.")]
    return []


def _skipped_entry_item(root: Path, path: Path, real: Path) -> Item | None:
    """The reason why an entry of a folder is not used; None if it is a regular file inside the folder."""
    name = relative_name(root, path)
    if path.name.startswith("."):
        return Item(name, "not_imaging", reason="hidden", detail="A hidden file. Rename it if it holds an image.")
    try:
        regular = stat.S_ISREG(real.lstat().st_mode)
    except OSError:
        return Item(name, "not_imaging", reason="broken_link", detail="It leads to nothing. Remove it.")
    if not real.is_relative_to(root):
        detail = "A link to a file elsewhere; it is not followed. Copy the file here."
        return Item(name, "not_selected", reason="link_outside", detail=detail)
    return None if regular else Item(name, "not_imaging", reason="no_file", detail="A pipe, a socket or a device.")


def _reject_unreadable_folder(root: Path, error: OSError) -> Rejected:
    """The rejection of a folder that the system could not list."""
    path = Path(os.fsdecode(error.filename)) if error.filename else root
    name = f"{relative_name(root, path) if path.is_relative_to(root) else path.name}/"
    why = explain_failure(name, error)
    return Rejected(name, why.reason, why.detail)
