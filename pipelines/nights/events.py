"""The night's log: one JSON object a line, for machines. It names tasks by their number in the worklist, and no
patient, UID, accession number, description or path: nothing in it can tell who was examined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from privacy.message import Json

Event: TypeAlias = Literal["begin", "found", "fetched", "worked", "stored", "refused", "later", "unreachable", "end"]


@dataclass(frozen=True)
class Log:
    """Appends to a file. night: number that all its lines have."""

    path: Path
    night: str

    def __call__(self, event: Event, *, task: int | None = None, seconds: float | None = None, **facts: Json) -> None:
        """Append a line. facts: counts, codes and reasons; never a text that came from a file or from the archive.

        Raises:
            OSError: the disk.
        """
        line: dict[str, Json] = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "night": self.night}
        line |= {"event": event}
        if task is not None:
            line["task"] = task
        if seconds is not None:
            line["seconds"] = round(seconds, 3)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, **facts}, sort_keys=False) + "\n")


def count_facts(files: Mapping[str, int]) -> dict[str, Json]:
    """Numbers of files, as facts of a line."""
    return {f"files_{name}": number for name, number in sorted(files.items())}
