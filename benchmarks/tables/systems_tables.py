"""The table of docs/results/systems.md, from benchmarks/tables/systems.yaml: every system of the papers, one row each.

    python -m benchmarks.tables.derived --write systems

A figure of ours is the address of its cell (`cells.py`) in braces: `{page.table[row; column]}` with its
interval, `{=page.table[row; column]}` alone. `claims` are what the words of a row say of cells.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table
from benchmarks.tables.cells import cell

COLUMNS = ["row", "system", "key in YAML", "law", "ours", "the paper's", "why they differ"]


def systems() -> list[dict[str, Any]]:
    """The rows, in order."""
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / "benchmarks/tables/systems.yaml").read_text(encoding="utf-8"))
    return sorted(found, key=lambda one: one["row"])


def filled(text: str) -> str:
    """A text with each address replaced by its figure. Raises: ValueError: as `cells.cell`."""

    def figure(found: re.Match[str]) -> str:
        text = cell(found[2], "systems")
        return re.split(" ± | \\(", text)[0] if found[1] else text

    return re.sub(r"\{(=?)([^{}]+\](?:#\d+)?)\}", figure, text)


def cells(one: dict[str, Any]) -> list[str]:
    """A row of the table."""
    law = one["law"].replace("::", " · ")
    ours = filled(one["ours"]) + (f" ([{one['page']}]({one['page']}.md))" if one["page"] else "")
    return [f"{one['row']}", one["system"], f"`{one['key']}`", f"`{law}`", ours, one["paper"], one["why"]]


def tables() -> dict[str, Any]:
    """The table, of the figures that other pages have."""
    return {"systems": make_table(COLUMNS, [cells(one) for one in systems()])}
