"""What an unexpected error says of the machine: its disk, its memory, or neither."""

from __future__ import annotations

import errno

from privacy.message import system_error

ALLOCATOR = "DefaultCPUAllocator: "
"""How torch's RuntimeError begins if there is no memory for a tensor, behind where it happened."""
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


def failure(error: BaseException) -> str:
    """What an unexpected error was in one word: `disk`, `memory`, or `failed` for all else.

    Libraries have exceptions of their own for a full disk or memory, so what they were raised from counts as well.
    """
    for one in chained(error):
        if isinstance(one, OSError) or system_error(one) is not None:
            return "disk"
        if isinstance(one, MemoryError) or type(one).__name__ == "OutOfMemoryError" or ALLOCATOR in str(one):
            return "memory"
    return "failed"


def of_machine(error: BaseException) -> bool:
    """Whether an error says nothing of the file that was read: with more memory or open files it would not be."""
    return failure(error) == "memory" or any(
        isinstance(one, OSError) and one.errno in OF_MACHINE for one in chained(error)
    )


def of_path(error: BaseException) -> bool:
    """Whether an error was raised because a path is wrong: nothing is there, or nothing that may be opened."""
    return any(isinstance(one, OSError) and one.errno in OF_PATH for one in chained(error))


def chained(error: BaseException) -> list[BaseException]:
    """An error, and what it was raised from (`raise ... from`), and so on."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__
    return links
