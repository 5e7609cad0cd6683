"""Faults of the operating system, injected one at a time: the n-th operation on a file of the current folder fails.

Operations are counted where Python meets the system: `open`, `os` and what safetensors does in a language of its own;
and every tensor that torch makes is an allocation. After one fault all goes well again. A power cut ends the process
at once, and takes from every file what was not yet forced to the disk.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import safetensors
import safetensors.torch
import torch
from torch.utils._python_dispatch import TorchDispatchMode

CUT = 98  # the exit code of a process whose power was cut
POWER = "power"  # the fault that is no error of the system
LIE = "lie"  # an fsync that does nothing and says that it did; the power is cut at the next one
FAULTS: dict[str, tuple[str, ...]] = {
    "open": ("EACCES", "EMFILE"),
    "read": ("EIO", "MemoryError"),
    "write": ("ENOSPC", "EIO"),
    "fsync": ("EIO", POWER, LIE),
    "rename": ("EIO", POWER),
    "mkdir": ("ENOSPC",),
    "unlink": ("EACCES", POWER),
    "list": ("EACCES",),
    "study": ("EMFILE", "MemoryError"),
    "allocation": ("MemoryError",),
}
"""Which faults an operation can meet. A `study` is a patient's file that is opened or read; another error of it, such
as EIO, is the file's, and its study is quarantined."""
STUDIES = "files"
"""The folder with patients' files, below the one that is looked at."""
TORCH = "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"
REAL = {name: getattr(os, name) for name in ("open", "read", "write", "fsync", "replace", "rename", "mkdir", "unlink")}
REAL |= {name: getattr(os, name) for name in ("remove", "rmdir", "listdir", "scandir", "close", "truncate")}
PLACE = ".place"
"""Ends the name of the file, beside the folder that is looked at, that says where a fault was met."""
NAMES = re.compile(r"(?<=out/)[a-z0-9]{16}(?=/)|(?<=sites/|files/)[ab](?=/)|[0-9a-f]{8,}|\btmp\w{8}\b|[0-9]+")
"""What differs between files of the same sort: the hospital, digests, names of temporary files and numbers."""
TESTS = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(TESTS) + os.sep
OPEN, SAVE, SAFE = io.open, safetensors.torch.save_file, safetensors.safe_open
Inode = tuple[int, int]


@dataclass
class Points:
    """The operations so far, by kind. at: the number of the one that fails, from 0; None: none does. met: which fault
    it did. places: if not None, what is done where for each operation (`place`). dirty: files with what they held when
    they were last forced to the disk: path and length.
    """

    root: Path
    kind: str = ""
    fault: str = ""
    at: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    met: str = ""
    places: dict[str, list[str]] | None = None
    dirty: dict[Inode, tuple[str, int]] = field(default_factory=dict)
    handles: dict[int, str] = field(default_factory=dict)

    def ours(self, path: object) -> bool:
        """Whether a path lies in the folder that is looked at."""
        if isinstance(path, int):
            return path in self.handles
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.abspath(os.fspath(path)).startswith(str(self.root))

    def meet(self, kind: str, path: object = "") -> str:
        """Count an operation; raises its fault, or returns the name of one that is no error."""
        if kind in ("open", "read", "list") and os.path.abspath(str(path)).startswith(f"{self.root}{os.sep}{STUDIES}"):
            kind = "study"
        number = self.counts.get(kind, 0)
        self.counts[kind] = number + 1
        if self.places is not None:
            self.places.setdefault(kind, []).append(self.place(path))
        if self.met == LIE and kind == "fsync":
            self.lose_power()
        if self.met or (kind, number) != (self.kind, self.at):
            return ""
        self.met = self.fault
        with OPEN(f"{self.root}{PLACE}", "w") as file:
            file.write(self.place(path))
        if self.fault == POWER:
            self.lose_power()
        if self.fault == "MemoryError":
            raise RuntimeError(f"{TORCH} 4096 bytes") if kind == "allocation" else MemoryError
        if self.fault != LIE:
            raise OSError(getattr(errno, self.fault), os.strerror(getattr(errno, self.fault)), str(path))
        return LIE

    def place(self, path: object) -> str:
        """Which sort of file is worked on, and the two innermost functions of the project that do it."""
        named = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        sort = self.sort(named) if named else ""
        frame, found = sys._getframe(1), list[str]()
        while frame is not None and len(found) < 2:
            code = frame.f_code
            if code.co_filename.startswith(PROJECT) and not code.co_filename.startswith(TESTS):
                found.append(f"{os.path.relpath(code.co_filename, PROJECT)}:{code.co_name}")
            frame = frame.f_back
        return " < ".join([sort, *found])

    def sort(self, path: str) -> str:
        """A path below the root without what differs between files of the same sort."""
        return re.sub(NAMES, "#", os.path.relpath(path, self.root))

    def lose_power(self) -> NoReturn:
        """End the process; of every file only what was forced to the disk is left."""
        for path, length in self.dirty.values():
            if os.path.isfile(path) and os.stat(path).st_size > length:  # a file without a name has its folder's
                REAL["truncate"](path, length)
        os._exit(CUT)

    def soil(self, inode: Inode, path: str, length: int) -> None:
        """A file is written to that had this length on the disk."""
        self.dirty.setdefault(inode, (path, length))

    def moved(self, old: str, new: str) -> None:
        """A file, or a folder with files, has another name now."""
        for inode, (path, length) in list(self.dirty.items()):
            if path == old or path.startswith(f"{old}{os.sep}"):
                self.dirty[inode] = (new + path[len(old) :], length)


class _Raw(io.FileIO):
    """A file of ours, whose reads and writes are counted."""

    points: Points

    def write(self, data: Any) -> int:
        try:
            self.points.meet("write", self.name)
        except OSError:
            REAL["write"](self.fileno(), bytes(data)[: len(bytes(data)) // 2])  # what a full disk still takes
            raise
        return super().write(data)

    def readall(self) -> bytes:
        self.points.meet("read", self.name)
        return super().readall()

    def readinto(self, buffer: Any) -> int:
        self.points.meet("read", self.name)
        return super().readinto(buffer)


def _inode(what: int | str) -> Inode:
    found = os.fstat(what) if isinstance(what, int) else os.stat(what)
    return found.st_dev, found.st_ino


def _opener(points: Points) -> Callable[..., Any]:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not points.ours(file) or isinstance(file, int):
            return OPEN(file, mode, buffering, encoding, errors, newline, closefd, opener)
        points.meet("open", file)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.points = points
        if raw.writable():
            length = 0 if set("wx") & set(mode) else os.fstat(raw.fileno()).st_size
            named = raw.name if isinstance(raw.name, str | os.PathLike) else file
            points.soil(_inode(raw.fileno()), os.path.abspath(os.fspath(named)), length)
        if buffering == 0:
            return raw
        both = raw.readable() and raw.writable()
        wrapped = io.BufferedRandom if both else io.BufferedWriter if raw.writable() else io.BufferedReader
        buffered: Any = wrapped(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

    return opened


def _os(points: Points) -> dict[str, Callable[..., Any]]:
    def simple(name: str, kind: str) -> Callable[..., Any]:
        def done(*args: Any, **more: Any) -> Any:
            if args and points.ours(args[0]):
                points.meet(kind, args[0])
            return REAL[name](*args, **more)

        return done

    def opened(path: Any, flags: int, *args: Any, **more: Any) -> int:
        ours = points.ours(path)
        if ours:
            points.meet("open", path)
        length = os.stat(path).st_size if ours and os.path.exists(path) and not flags & os.O_TRUNC else 0
        handle: int = REAL["open"](path, flags, *args, **more)
        if ours:
            points.handles[handle] = os.path.abspath(os.fspath(path))
            if flags & (os.O_WRONLY | os.O_RDWR):
                points.soil(_inode(handle), points.handles[handle], length)
        return handle

    def closed(handle: int) -> None:
        points.handles.pop(handle, None)
        REAL["close"](handle)

    def written(handle: int, data: Any) -> int:
        if points.ours(handle):
            try:
                points.meet("write", points.handles[handle])
            except OSError:
                REAL["write"](handle, bytes(data)[: len(data) // 2])
                raise
        return int(REAL["write"](handle, data))

    def synced(handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        inode = _inode(number)
        if points.meet("fsync", number) != LIE:
            REAL["fsync"](handle)
            points.dirty.pop(inode, None)

    def moved(name: str) -> Callable[..., Any]:
        def done(old: Any, new: Any, **more: Any) -> None:
            if points.ours(old):
                points.meet("rename", old)
            REAL[name](old, new, **more)
            points.moved(os.path.abspath(os.fspath(old)), os.path.abspath(os.fspath(new)))

        return done

    kinds = {"read": "read", "mkdir": "mkdir", "unlink": "unlink", "remove": "unlink", "rmdir": "unlink"}
    made = {name: simple(name, kind) for name, kind in (kinds | {"listdir": "list", "scandir": "list"}).items()}
    return made | {
        "open": opened,
        "close": closed,
        "write": written,
        "fsync": synced,
        "replace": moved("replace"),
        "rename": moved("rename"),
    }


class _Allocations(TorchDispatchMode):
    """Counts what torch computes: each result is memory that may not be there."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self.points = points

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.points.meet("allocation")
        return func(*args, **(kwargs or {}))


@contextmanager
def injected(points: Points, *, allocations: bool = False) -> Iterator[Points]:
    """Count all operations on files below `points.root`, and let one fail. allocations: count tensors, too (slow)."""

    def saved(tensors: Any, filename: Any, metadata: Any = None) -> None:
        try:
            points.meet("write", filename)
        except OSError as error:
            text = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            raise safetensors.SafetensorError(text) from None
        SAVE(tensors, filename, metadata)
        points.soil(_inode(str(filename)), os.path.abspath(filename), 0)

    def read(filename: Any, *args: Any, **more: Any) -> Any:
        points.meet("read", filename)
        return SAFE(filename, *args, **more)

    patches: list[tuple[Any, str, Any]] = [(os, name, new) for name, new in _os(points).items()]
    patches += [(builtins, "open", _opener(points)), (io, "open", _opener(points))]
    patches += [(safetensors.torch, "save_file", saved), (safetensors, "safe_open", read)]
    before = [(where, name, getattr(where, name)) for where, name, _ in patches]
    for where, name, new in patches:
        setattr(where, name, new)
    try:
        if allocations:
            with _Allocations(points):
                yield points
        else:
            yield points
    finally:
        for where, name, old in before:
            setattr(where, name, old)


def tensors_can_be_made() -> bool:
    """Whether torch works here: called before a copy of the process is made, so that it has started its threads."""
    return bool(torch.ones(1).item())
