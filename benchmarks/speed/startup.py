"""How much CPU each command takes before it works, beside `import torch` on the same machine at the same time.

    python -m benchmarks.speed.startup [--root FOLDER] [--times 3] [--json FILE] [--calls NAME ...]

CPU seconds are user and system time of a new process, all its threads included; of several tries the least, because a
busy machine only adds. The tries of all commands alternate. The second `--check` finds the phantoms' files that the
first one wrote. ROOT: another copy of the code, e.g. an older one.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]
COMMANDS = ("run", "init", "study", "predict", "translate", "deidentify", "ledger", "clean", "site")
CHECK = ["-m", "pipelines.run", "prostate_adc.yaml", "--check"]


def calls() -> dict[str, list[str]]:
    """What is measured: a name, and Python's arguments."""
    found = {"import torch": ["-c", "import torch"], "import monai": ["-c", "import monai"]}
    found |= {f"{name} --help": ["-m", f"pipelines.{name}", "--help"] for name in COMMANDS}
    found["consilium --help"] = ["-m", "pipelines", "--help"]
    found["run --version"] = ["-m", "pipelines.run", "--version"]
    found["run, a wrong flag"] = ["-m", "pipelines.run", "--nonsense"]
    found["run, a file that is no YAML"] = ["-m", "pipelines.run", "bad.yaml"]
    found["clean, an empty folder"] = ["-m", "pipelines.clean", "runs"]
    found["run prostate_adc.yaml --check"] = CHECK
    found["run prostate_adc.yaml --check, again"] = CHECK
    return found


def measured(arguments: Sequence[str], folder: Path, root: Path) -> tuple[float, float]:
    """CPU seconds of one call, and seconds until it printed its first line."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(  # noqa: S603 - our own commands
        [sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if process.stdout is None:
        raise RuntimeError("unreachable: stdout is a pipe")
    process.stdout.readline()
    first = time.monotonic() - begun
    process.stdout.read()
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, first


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--root", type=Path, default=ROOT)
    line.add_argument("--times", type=int, default=3)
    line.add_argument("--json", metavar="FILE")
    line.add_argument("--calls", nargs="+", choices=tuple(calls()), default=tuple(calls()), help="beside import torch")
    options = line.parse_args()
    chosen = {name: words for name, words in calls().items() if name in {"import torch", *options.calls}}
    tries: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "bad.yaml").write_text("sites: [1\n")
            (folder / "runs").mkdir()
            for name, arguments in chosen.items():
                tries[name].append(measured(arguments, folder, options.root.resolve()))
    torch = min(cpu for cpu, _ in tries["import torch"])
    rows = {
        name: {
            "cpu_s": round(min(cpu for cpu, _ in found), 2),
            "per_import_torch": round(min(cpu for cpu, _ in found) / torch, 2),
            "first_line_s": None if name.startswith("import") else round(min(first for _, first in found), 2),
        }
        for name, found in tries.items()
    }
    said = {"python": platform.python_version(), "processors": os.cpu_count(), "times": options.times, "rows": rows}
    for name, row in rows.items():
        print(f"{name:40} {row['cpu_s']:7.2f} s {row['per_import_torch']:6.2f} x import torch")
    if options.json:
        Path(options.json).write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
