"""Storage of named bytes, independent of the file system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Folder(Protocol):
    """Named bytes. `write` is atomic, and on the disk when it returns."""

    def write(self, name: str, data: bytes) -> None:
        """Write or replace."""
        ...

    def write_parts(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """As `write`, of parts one after another, which are not joined in memory."""
        ...

    def read(self, name: str) -> bytes:
        """Read. Raises: FileNotFoundError if the name does not exist."""
        ...

    def map(self, name: str) -> memoryview:
        """What `read` reads, as writable memory that belongs to the reader; of a large file each page is read when it
        is needed.
        """
        ...

    def has(self, name: str) -> bool:
        """Whether the name exists."""
        ...

    def names(self) -> Sequence[str]:
        """All names, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove; does nothing if the name does not exist. After a loss of power it may be there again."""
        ...
