"""Bytes of the parts of hospitals' own pages, and how many images of patients they have, of two versions of a run.

    python -m benchmarks.studies.page_bytes RUN RUN --names BEFORE NOW --write

RUN: the folder of a run, of which the pages of `SITES` are read. A part is a section of a page; *all else* is tables,
style and script.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.records import make_table, write_tables

SITES = ("north", "south")
PARTS = {
    "cases to look at": ("cases",),
    "images, and maps of each method": ("images",),
    "image spaces": ("spaces",),
    "figures": ("figure", "figures", "noted"),
}
SECTION = re.compile(r'(?=<section[^>]*aria-labelledby="(\w+)")')


def measure_parts(page: Path) -> dict[str, int]:
    """Bytes of each part of a page, of all else, and of the whole."""
    text = page.read_text(encoding="utf-8")
    _, *cut = SECTION.split(text)
    sizes: dict[str, int] = {}
    for name, section in zip(cut[::2], cut[1::2], strict=True):
        sizes[name] = sizes.get(name, 0) + len(section.encode())
    parts = {part: sum(sizes.get(name, 0) for name in names) for part, names in PARTS.items()}
    whole = len(text.encode())
    return {**parts, "all else": whole - sum(parts.values()), "whole page": whole}


def count_images(page: Path) -> int:
    """Images of patients, each with what is laid over it."""
    return len(re.findall(r'(?:alt|aria-label)="Image: ', page.read_text(encoding="utf-8")))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path)
    parser.add_argument("--names", nargs=2, default=("before", "now"), help="of the versions")
    parser.add_argument("--write", action="store_true", help="docs/results/data/pages.json")
    options = parser.parse_args(arguments)
    pages = {
        f"{site}, {name}": run / "sites" / site / "report.html"
        for site in SITES
        for name, run in zip(options.names, options.runs, strict=True)
    }
    columns = {column: measure_parts(page) for column, page in pages.items()}
    rows = [
        [part, *(f"{sizes[part] / 1000:,.0f}".replace(",", " ") for sizes in columns.values())]
        for part in next(iter(columns.values()))
    ]
    rows.append(["images, how many", *(str(count_images(page)) for page in pages.values())])
    print("\n".join(" | ".join(row) for row in [["kB", *columns], *rows]))
    if options.write:
        command = "python -m benchmarks.studies.page_bytes BEFORE/runs/prostate_adc NOW/runs/prostate_adc --write"
        write_tables("pages", {"bytes": make_table(["kB", *columns], rows, command)})


if __name__ == "__main__":
    main()
