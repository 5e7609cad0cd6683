"""Figures as they are measured, so that a script goes on where it stopped, and tables with what brought them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.shared.places import MEASURED, ROOT, TABLES

Columns = Sequence[str]
Rows = Sequence[Sequence[str]]


def read_measured(place: str | Path) -> Any:
    """What was measured so far, by the name of its file in benchmarks/measured or by a path; empty at first."""
    path = MEASURED / f"{place}.json" if isinstance(place, str) else place
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_measured(place: str | Path, figures: object, *, sort: bool = False, indent: int | None = 1) -> None:
    """Replace what was measured so far. sort: keys by name. indent: 0 for one figure a line without spaces."""
    path = MEASURED / f"{place}.json" if isinstance(place, str) else place
    between = (",", ":") if indent == 0 else None
    text = json.dumps(
        figures, indent=indent, sort_keys=sort, ensure_ascii=False, separators=between, default=lambda one: one.item()
    )
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(f"{text}\n", encoding="utf-8")
    part.replace(path)


def make_table(columns: Columns, rows: Rows, command: str | None = None) -> dict[str, Any]:
    """A table. command: what measured it, where the page does not tell yet."""
    said = {} if command is None else {"command": command}
    return {**said, "columns": [*columns], "rows": [[*row] for row in rows]}


def write_tables(page: str, made: Mapping[str, Mapping[str, Any]]) -> None:
    """Put tables into a page's file, with today's date and this commit where they changed; its other tables stay."""
    path = TABLES / f"{page}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, table in made.items():
        before = known.get(name, {"command": None})
        if {key: before.get(key) for key in ("columns", "rows")} != {key: table[key] for key in ("columns", "rows")}:
            fresh = {key: value for key, value in before.items() if key != "stale"}
            known[name] = {**fresh, "commit": read_commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}", **table}
    path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_commit() -> str:
    """The commit of this code, short."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def say_epsilon(epsilon: float | None) -> str:
    """A guarantee in the name of a figure."""
    return "inf" if epsilon is None else f"{epsilon:g}"


def collect_splits(
    options: argparse.Namespace, groups: Mapping[str, Callable[[int], Iterable[tuple[str, float | None, float]]]]
) -> dict[str, dict[str, float]]:
    """`group | line | epsilon` -> split -> value, kept after each split. groups: split -> lines, epsilon and value."""
    import torch

    torch.set_num_threads(1)
    kept: dict[str, dict[str, float]] = read_measured(options.out)
    for split in range(options.first, options.first + options.splits):
        for group, lines in groups.items():
            for label, epsilon, value in lines(split):
                kept.setdefault(f"{group} | {label} | {say_epsilon(epsilon)}", {})[str(split)] = round(value, 5)
        write_measured(options.out, kept, sort=True)
        print(split, "done", flush=True)
    return kept
