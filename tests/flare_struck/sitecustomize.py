"""Python imports this first in every process of a federation that `benchmarks/faults/faults_over_flare.py` starts: the
one for which a fault is armed meets it, and no other does; nor does a later process of the same sort.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

ARMED = "CONSILIUM_ARMED"
"""In the environment: a file with `process`, `root`, `kind`, `fault` and `at` (`injected.Points`); or with `list`, a
file for the places of all operations. process: words that are all in the command of the process that is meant."""


class _Listed(dict[str, list[str]]):
    """Places that go into a file at once, because FLARE's processes may end at any time."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def setdefault(self, kind: str, default: object = None) -> _Listed:  # type: ignore[override]
        self.kind = kind
        return self

    def append(self, place: str) -> None:
        WRITE(self.file, f"{self.kind}\t{place}\n".encode())


def strike(path: Path) -> None:
    """Let this process meet what is armed, if it is the one."""
    said = json.loads(path.read_text())
    if not all(word in " ".join(sys.orig_argv) for word in said["process"]):
        return
    path.rename(path.with_suffix(".taken"))
    sys.path.append(str(Path(__file__).parents[1]))
    import plainly
    from injected import Points, injected

    points = Points(Path(said["root"]), said.get("kind", ""), said.get("fault", ""), said.get("at"))
    if "list" in said:
        points.places = _Listed(said["list"])
    for held in (plainly.plain(), injected(points)):
        held.__enter__()
        HELD.append(held)


WRITE = os.write
HELD: list[object] = []
with suppress(FileNotFoundError):
    if ARMED in os.environ:
        strike(Path(os.environ[ARMED]))
