"""Write the tables of docs/results/*.md from the figures in docs/results/data/*.json.

    python -m benchmarks.tables.results_tables

A page has the marks `<!-- table KEY -->` and `<!-- end -->`; what stands between them is written anew from the table
KEY of the JSON file of the same name: its columns and rows, the command that measured it, and the day and commit that
brought the figures here. `stale` says why a table is older than the code. A measurement that is made again goes into
the JSON, never into the page.
"""

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import NotRequired, TypedDict

import yaml

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/results"
BETWEEN = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Table(TypedDict):
    """Cells are Markdown; `command` is null where a column has it."""

    command: str | None
    commit: str
    date: str
    stale: NotRequired[str]
    columns: list[str]
    rows: list[list[str]]


def figures(page: Path) -> dict[str, Table]:
    """The tables of a page, by key."""
    path = page.parent / "data" / f"{page.stem}.json"
    found: dict[str, Table] = json.loads(path.read_text()) if path.exists() else {}
    if page.stem == "planted-faults":
        found["faults"]["rows"] = planted(found["faults"]["rows"])
    return found


def planted(rows: list[list[str]]) -> list[list[str]]:
    """Name and first trial of each fault, with what the list of faults says of it today."""
    known = {one["name"]: one for one in yaml.safe_load((ROOT / "benchmarks/faults/planted_faults.yaml").read_text())}

    def row(name: str, at_first: str) -> list[str]:
        fault = known[name]
        files = dict.fromkeys(one["file"] for one in fault["edits"])
        tests = "; ".join(one.removeprefix("tests/").replace("::", " · ") for one in fault["tests"])
        return [name, fault["area"], f"`{', '.join(files)}`", at_first, f"`{tests}`"]

    return [row(name, at_first) for name, at_first in rows]


def rendered(table: Table) -> str:
    """A table in Markdown with what measured it below."""
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    command = f"Measured with `{table['command']}`; recorded" if table["command"] else "Recorded"
    stale = f" **Older than the code:** {table['stale']}" if "stale" in table else ""
    told = f"{command} on {table['date']} in commit `{table['commit']}`.{stale}"
    return f"{text}\n\n{textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False)}\n"


def with_tables(text: str, tables: dict[str, Table]) -> str:
    """A page with its tables written anew. Raises KeyError where page and figures do not name the same tables."""
    named = [key for _, key, _ in BETWEEN.findall(text)]
    if sorted(named) != sorted(tables):
        raise KeyError(f"the page names the tables {sorted(named)}, the figures {sorted(tables)}")
    return BETWEEN.sub(lambda found: f"{found[1]}\n{rendered(tables[found[2]])}\n{found[3]}", text)


def write_pages() -> None:
    """Write the tables of all pages."""
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text()
        if (new := with_tables(text, figures(page))) != text:
            page.write_text(new)
            sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    make_parser(__doc__).parse_args()
    write_pages()
