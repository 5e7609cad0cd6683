"""Tables of a folder's results: each is written completely or not at all, and stays in the hospital.

The table of refused inputs grows over all calls: no call loses a row of an earlier one. Rows with the same input,
reason and detail are one row; its `last` is the time of the last call that refused the input. Inputs that were
corrected since then have an older time.
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
from pipelines.data.accounts import Account, reject_unserved_patients
from pipelines.data.study import Rejected
from privacy.durable import PART, write_whole

Refusal: TypeAlias = tuple[str, str, str]
"""The refused input, the reason's code, and what to do."""


def remove_part_files(folder: Path) -> None:
    """Remove unfinished files of a killed call from a folder, which would be passed on with the others.

    Raises:
        OSError: the disk.
    """
    for path in folder.glob(f".*{PART}"):
        path.unlink(missing_ok=True)


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file. Names in it may be in any encoding.

    Raises:
        OSError, csv.Error: it cannot be read, or is no table.
    """
    return read_csv_text(path.read_bytes().decode("utf-8", "surrogateescape"))


def table_bytes(header: Sequence[str], rows: Sequence[Sequence[object]]) -> bytes:
    """Rows in order, as a CSV file."""
    return csv_text(header, sorted(rows, key=str)).encode("utf-8", "surrogateescape")


def list_refusals(refused: Sequence[Rejected], accounts: Sequence[Account]) -> list[Refusal]:
    """Rows of the quarantine: refused inputs, and patients without any selected image."""
    return [
        (refusal.study, refusal.reason, refusal.detail) for refusal in (*refused, *reject_unserved_patients(accounts))
    ]


def add_refusals(path: Path, first_column: str, refused: Sequence[Refusal]) -> None:
    """Add refusals to the table. first_column: its name, such as `file`. A file of another kind at this path is
    renamed.

    Raises:
        OSError: the disk.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    header = (first_column, "reason", "detail", "first", "last")
    earlier = _read_earlier_table(path, header)
    rows = {
        (row[first_column], row["reason"], row["detail"]): (row.get("first", ""), row.get("last", ""))
        for row in earlier
    }
    for refusal in refused:
        rows[refusal] = (rows.get(refusal, (now, now))[0], now)
    lines = sorted(((*what, *when) for what, when in rows.items()), key=lambda row: (row[0], row[3], row[1:]))
    write_whole(path, csv_text(header, lines).encode("utf-8", "surrogateescape"))


def _read_earlier_table(path: Path, header: Sequence[str]) -> list[dict[str, str]]:
    """The rows of an earlier table, with or without times; any other file is renamed and gives no rows."""
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return []
    if not text or _is_complete_table(text, header):
        return read_csv_text(text)
    os.replace(path, path.with_name(f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%S}.old"))
    return []


def _is_complete_table(text: str, header: Sequence[str]) -> bool:
    """Whether a text is a CSV table with the first three columns of the header, and all rows have one length."""
    try:
        first, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except csv.Error:
        return False
    return set(header[:3]) <= set(first) and all(len(row) == len(first) for row in rows)
