"""Write docs/results/data/night.json from benchmarks/measured/night.json.

python -m benchmarks.tables.derived --write night
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.shared.records import make_table


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


def tables(book: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the page."""
    made: dict[str, Any] = {}
    if one := book.get("nights"):
        columns = ["night", "series", "ended", "files received", "seconds", "with start", "a series", "MiB", "code"]
        made["nights"] = make_table(columns, nights(one))
    columns = [
        "what went wrong",
        "code",
        "series in the end",
        "reports in the archive",
        "handed over, says the worklist",
    ]
    made["broken"] = make_table(columns, broken(book))
    return made
