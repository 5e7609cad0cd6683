"""Blanked images that a person confirmed: KEY.confirmed.csv, a line for each image, next to the key.

An image is identified by a keyed digest of its pixels before and after, its rectangles and its UID
(`privacy.deidentify.burned.Blanked`). A changed rectangle or pixel gives another digest, which is not confirmed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from evaluation.csv_text import csv_text, read_csv_text
from privacy.deidentify.keyed import keyed_digest
from privacy.durable import write_whole

HEADER = ("image", "sheet", "confirmed")
DIGEST = re.compile(r"[0-9a-f]{64}")


def confirmations_path(key: Path) -> Path:
    """Path of the table of images confirmed under a key."""
    return key.with_name(f"{key.name}.confirmed.csv")


def sheet_digest(key: bytes, images: Sequence[str]) -> str:
    """A sheet's digest, 16 hexadecimal digits, from the digests of all images on it."""
    return keyed_digest(key, "contact sheet", "\n".join(sorted(images)))[:16]


def read_confirmed_images(key: Path) -> frozenset[str]:
    """The digests of all images that were confirmed.

    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    return frozenset(row["image"] for row in _read_rows(key))


def is_confirmed(key: Path, sheet: str) -> bool:
    """Whether a sheet was confirmed earlier."""
    return any(row["sheet"] == sheet for row in _read_rows(key))


def record_confirmation(key: Path, sheet: str, images: Sequence[str]) -> None:
    """Record that a person confirmed the images of a sheet.

    Raises:
        ValueError, OSError: as `read_confirmed_images`; or the disk.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    rows = [tuple(row[name] for name in HEADER) for row in _read_rows(key)] + [(image, sheet, now) for image in images]
    write_whole(confirmations_path(key), csv_text(HEADER, rows).encode())


def _read_rows(key: Path) -> list[dict[str, str]]:
    path = confirmations_path(key)
    try:
        rows = read_csv_text(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (UnicodeError, csv.Error):
        rows = [{}]
    if not all(row.keys() == set(HEADER) and DIGEST.fullmatch(row["image"]) for row in rows):
        raise ValueError(f"{path} is damaged: give back an earlier copy, or remove it and confirm the images again")
    return rows
