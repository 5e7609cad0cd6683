"""What an unexpected error says of the machine: its disk, its memory, or neither."""

from __future__ import annotations

import errno
import re

from privacy.message import system_error

NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: |std::bad_alloc|Cannot allocate memory|can't start new thread|could not create a primitive$"
)
"""What a RuntimeError says if there is no memory: torch's for a tensor or a file that is mapped, C++'s, Python's for a
thread's stack, oneDNN's for what it makes of a layer."""
OF_MACHINE = frozenset(
    {
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
        *(errno.ESTALE, errno.ETIMEDOUT, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENODEV),
    }
)
"""Errors of the system that come from the machine or its network, whatever file was asked for."""

OF_PATH = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM),
        *(errno.ENAMETOOLONG, errno.ELOOP),
    }
)
"""Errors of the system that come from the path that was asked for."""


def classify_failure(error: BaseException) -> str:
    """What an unexpected error was in one word: `disk`, `memory`, or `failed` for all else.

    Libraries have exceptions of their own for a full disk or memory, so what they were raised from counts as well.
    """
    for link in list_causes(error):
        system = link if isinstance(link, OSError) else system_error(link)
        if system is not None:
            return "memory" if system.errno == errno.ENOMEM else "disk"
        if isinstance(link, MemoryError) or type(link).__name__ == "OutOfMemoryError":
            return "memory"
        if isinstance(link, RuntimeError) and NO_MEMORY.search(str(link)):
            return "memory"
    return "failed"


def of_machine(error: BaseException) -> bool:
    """Whether an error says nothing about the file that was read: with more memory or open files it would not occur."""
    return classify_failure(error) == "memory" or any(
        isinstance(link, OSError) and link.errno in OF_MACHINE for link in list_causes(error)
    )


def of_path(error: BaseException) -> bool:
    """Whether an error was raised because a path is wrong: nothing is there, or nothing that may be opened."""
    return any(isinstance(link, OSError) and link.errno in OF_PATH for link in list_causes(error))


def list_causes(error: BaseException) -> list[BaseException]:
    """An error, and what it was raised from (`raise ... from`), and so on."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__
    return links
