"""Write docs/results/data/pythons.json from what each Python measured: versions, the default suite, start-up.

    python -m benchmarks.speed.pythons FOLDER

FOLDER holds, for each Python that was tried, `startup-3.13.json` (`startup.py --json`, run by a Python into
which the wheel is installed, with `--root` an empty folder), `versions-3.13.txt` (`pip list --format freeze`) and
`suite-3.13.txt` (what `python -m pytest -n 1` printed; its last lines count). What is missing is told as "not run".
How to get a Python beside that of the machine: docs/results/pythons.md.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_tables

PYTHONS = ("3.11", "3.12", "3.13")
PACKAGES = ("torch", "numpy", "monai", "opacus", "pydantic", "nvflare")
CALLS = ("consilium --help", "run --version", "run prostate_adc.yaml --check", "run prostate_adc.yaml --check, again")
ENDED = re.compile(r"((?:\d+ (?:failed|passed|skipped|errors?)(?:, )?)+).* in [\d.]+s")


def suite(text: str) -> str:
    """What the default suite ended with, or how far it came."""
    if found := ENDED.findall(text):
        return str(found[-1]).rstrip(", ")
    lines = [line for line in text.splitlines() if re.fullmatch(r"[.sFEx]+ *(\[ *\d+%\])?", line)]
    marks = "".join(re.sub(r"[^.sFEx]", "", line) for line in lines)
    return f"not ended: {marks.count('.')} passed, {marks.count('s')} skipped, {marks.count('F')} failed so far"


def row(python: str, folder: Path) -> list[str]:
    startup, versions = folder / f"startup-{python}.json", folder / f"versions-{python}.txt"
    text = folder / f"suite-{python}.txt"
    known = dict(line.split("==") for line in versions.read_text().split() if "==" in line) if versions.exists() else {}
    said = ", ".join(f"{name} {known[name]}" for name in PACKAGES if name in known)
    exact, cells = python, ["not run"] * len(CALLS)
    if startup.exists():
        measured = json.loads(startup.read_text())
        exact = measured["python"]
        rows = measured["rows"]
        cells = [f"{rows[name]['cpu_s']:.2f} ({rows[name]['per_import_torch']:.2f})" for name in CALLS]
    return [exact, said or "not installed", suite(text.read_text()) if text.exists() else "not run here", *cells]


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("folder", type=Path)
    options = line.parse_args()
    calls = [f"`{name}`, CPU s (of `import torch`)" for name in CALLS]
    rows = [row(python, options.folder) for python in PYTHONS]
    write_tables("pythons", {"pythons": make_table(["Python", "installed", "default suite", *calls], rows)})


if __name__ == "__main__":
    main()
