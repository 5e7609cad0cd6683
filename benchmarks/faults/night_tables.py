"""Write docs/results/data/night.json from benchmarks/measured/night.json.

python -m benchmarks.faults.night_tables COMMIT && python -m benchmarks.tables.results_tables
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "benchmarks/measured/night.json"
PAGE = ROOT / "docs/results/data/night.json"
COMMAND = "CONSILIUM_DATA=… PYTHONPATH=tests python -m benchmarks.faults.night"


def told(counts: Mapping[str, Any]) -> str:
    """Counts in words."""
    return (
        ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in sorted(counts.items()) if number) or "none"
    )


def nights(found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for name, which in (("first", "the whole archive"), ("second", "nothing new"), ("third", "20 new studies")):
        one = found[name]
        series, ended = one["series"], {key: n for key, n in one["tasks"].items() if key != "left"}
        work = sum(ended.values())
        rows.append(
            [
                which,
                told(series),
                told(ended),
                f"{one['files']['received']}",
                f"{one['seconds']:.1f}",
                f"{one['wall']:.1f}",
                f"{one['seconds'] / work:.2f}" if work else "",
                f"{one['MiB']}",
                f"{one['code']}",
            ]
        )
    return rows


def broken(book: Mapping[str, Any]) -> list[list[str]]:
    """A row for each thing that went wrong on purpose: how the night ended, and what the archive had after the next."""
    rows = []

    def row(what: str, code: object, states: Mapping[str, int], reports: int, handed_over: int | str) -> None:
        rows.append([what, f"{code}", told(states), f"{reports}", f"{handed_over}"])

    if one := book.get("kills"):
        row(f"kill -9, {one['kills']} times ({told(one['killed after'])})", "–", one["states"], one["reports"],
            one["handed over"])  # fmt: skip
    for how, one in book.get("away", {}).items():
        row(f"the archive {how} for a minute", one["code"], one["states"], one["reports"], one["handed over"])
    if one := book.get("slow"):
        row("the archive sleeps nine tenths of the time", one["night"]["code"], one["states"], one["reports"], "")
    if one := book.get("changed"):
        row(f"{one['deleted']} studies deleted, {one['added']} images added meanwhile", one["code"], one["states"],
            one["reports"], one["handed over"])  # fmt: skip
    if (one := book.get("full")) and "skipped" not in one:
        row("a full disk", one["first"]["code"], one["states"], one["reports"], one["handed over"])
    return rows


def made(commit: str) -> dict[str, Any]:
    """The tables, of the figures that came with a commit."""
    book = json.loads(BOOK.read_text())
    about = {"command": COMMAND, "commit": commit, "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    tables: dict[str, Any] = {}
    if one := book.get("nights"):
        columns = ["night", "series", "ended", "files received", "seconds", "with start", "a series", "MiB", "code"]
        tables["nights"] = {**about, "columns": columns, "rows": nights(one)}
    columns = [
        "what went wrong",
        "code",
        "series in the end",
        "reports in the archive",
        "handed over, says the worklist",
    ]
    tables["broken"] = {**about, "columns": columns, "rows": broken(book)}
    return tables


def written(commit: str) -> None:
    PAGE.write_text(json.dumps(made(commit), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    written(sys.argv[1])
