"""The table of what was refused, over all calls: no call loses a row of an earlier one.

A row is the same if input, reason and detail are; then only the time of the last call that refused it changes. What was
refused in the last call has that call's time in `last`; what was mended since has an older one.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from evaluation.csv_text import csv_text, read_csv_text

Refusal: TypeAlias = tuple[str, str, str]
"""What was refused, the reason's one word, and what to do."""


def keep_refusals(path: Path, named: str, refused: Sequence[Refusal]) -> None:
    """Add refusals to the table. named: the first column, such as `file`. A file that is no such table is put aside.

    Raises:
        OSError: the disk.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    header = (named, "reason", "detail", "first", "last")
    earlier = _read(path, header)
    rows = {(row[named], row["reason"], row["detail"]): (row.get("first", ""), row.get("last", "")) for row in earlier}
    for one in refused:
        rows[one] = (rows.get(one, (now, now))[0], now)
    lines = sorted(((*what, *when) for what, when in rows.items()), key=lambda row: (row[0], row[3], row[1:]))
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(csv_text(header, lines).encode("utf-8", "surrogateescape"))
    os.replace(part, path)


def _read(path: Path, header: Sequence[str]) -> list[dict[str, str]]:
    """The rows of an earlier table, also of one without times; of another file none, and it gets another name."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    if not text or _whole(text, header):
        return read_csv_text(text)
    os.replace(path, path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}.old"))
    return []


def _whole(text: str, header: Sequence[str]) -> bool:
    try:
        first, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error:
        return False
    return set(header[:3]) <= set(first) and all(len(row) == len(first) for row in rows)
