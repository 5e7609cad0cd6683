"""Seconds of the processor that the page of all runs takes of a run that ends, by the number of runs in its folder.

    python -m benchmarks.speed.run_index RUN --runs 3 30 300 [--write]

RUN: the folder of a finished run, which is copied (as links to its files) so many times. *Nothing kept*: the first end
in a folder of which no run was read. *Kept*: the middle one of five ends after all were read.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables
from pipelines.runs.run_index import renew_index, write_index

COMMAND = "python -m benchmarks.speed.run_index RUN --runs 3 30 300 --write"
COLUMNS = ["runs in the folder", "kept, s of CPU", "nothing kept, s of CPU"]


def time_end(folder: Path) -> float:
    """Seconds of the processor of writing the page after one run has ended."""
    start = time.process_time()
    trouble = renew_index(folder, [folder / "run0000"])
    if trouble:
        raise RuntimeError(trouble)
    return time.process_time() - start


def measure_folder(run: Path, number: int) -> list[str]:
    """A row of the table, of a folder with this number of copies of a run."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        for k in range(number):
            shutil.copytree(run, folder / f"run{k:04d}", copy_function=os.link)
        first = time_end(folder)
        write_index(folder)
        ends = [time_end(folder) for _ in range(5)]
    return [str(number), f"{statistics.median(ends):.2f}", f"{first:.2f}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the cells."""
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--runs", nargs="+", type=int, default=[3, 30, 300])
    parser.add_argument("--write", action="store_true", help="docs/results/data/pages.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:  # what is imported late is no part of it
        shutil.copytree(options.run, Path(place) / "runs" / "run0000", copy_function=os.link)
        time_end(Path(place) / "runs")
    rows = [measure_folder(options.run, number) for number in options.runs]
    print("\n".join(" | ".join(row) for row in [COLUMNS, *rows]))
    if options.write:
        write_tables("pages", {"index": make_table(COLUMNS, rows, COMMAND)})


if __name__ == "__main__":
    main()
