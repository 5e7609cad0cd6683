"""Where a room keeps bytes on disk without knowing about disks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Folder(Protocol):
    """Named bytes. `write` is whole or not at all, and on the disk when it returns."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace."""
        ...

    def read(self, name: str) -> bytes:
        """Read. Raises: FileNotFoundError where there is nothing of that name."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is something of that name."""
        ...

    def names(self) -> Sequence[str]:
        """All names, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove; nothing happens where there is nothing of that name. After a loss of power it may be there again."""
        ...
