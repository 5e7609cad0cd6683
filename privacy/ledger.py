"""The ledger: one line of JSON for everything that left a site, on disk before it leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from privacy.message import Json


def append(ledger: Path, line: dict[str, Json]) -> None:
    """Add one line and force it to the disk. A torn last line of an earlier crash is closed first, never
    overwritten.
    """
    ledger.parent.mkdir(parents=True, exist_ok=True)
    new = not ledger.exists()
    with ledger.open("ab+") as file:
        if file.tell() and not _ends_with_newline(file.fileno()):
            file.write(b"\n")
        file.write(json.dumps(line, sort_keys=True, allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if new:
        folder = os.open(ledger.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _ends_with_newline(descriptor: int) -> bool:
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1) == b"\n"


def lines(ledger: Path) -> Iterator[dict[str, Json]]:
    """Read the ledger. A torn line (the write during which the machine died; its reply never left) is reported as
    such.
    """
    if not ledger.exists():
        return
    for number, text in enumerate(ledger.read_text(errors="replace").splitlines(), start=1):
        try:
            yield json.loads(text)
        except ValueError:
            yield {"torn": True, "line": number}
