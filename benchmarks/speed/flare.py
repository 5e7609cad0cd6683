"""What a round costs over FLARE, against the same round in one process.

python -m benchmarks.speed.flare --mb 1 10 200 --rounds 6
python -m benchmarks.speed.flare --mb 10 --hospitals 12
python -m benchmarks.speed.flare --mb 10 --rounds 4 --cells 4 16 64 (see flare_cells.py)

Four hospitals, or as many as asked for, as real processes on this machine, mutual TLS over loopback, an MLP of so many
MB sent to and from each hospital every round, and hardly any work. Seconds a round are those between two saves of the
coordinator's state; the median, without the first. No network between machines is in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import yaml

from benchmarks.shared.options import make_parser
from benchmarks.speed import flare_cells

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from evaluation.csv_text import csv_text
from flare_processes import Federation, federation

COLUMNS = 13


def table(path: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [[*(f"{v:.4f}" for v in draw.normal(size=COLUMNS)), i % 2] for i in range(24)]
    path.write_text(csv_text([*(f"x{i}" for i in range(COLUMNS)), "label"], rows))


def settings(folder: Path, mb: float, rounds: int, hospitals: int) -> dict[str, object]:
    sites = {}
    for seed in range(hospitals):
        name = f"h{seed:02d}"
        table(folder / f"{name}.csv", seed)
        sites[name] = {"source": {"kind": "table", "file": str(folder / f"{name}.csv"), "label": "label"}}
    hidden = round(mb * 1e6 / 4 / (COLUMNS + 1 + 2))
    return {
        "name": "far",
        "privacy": "none",
        "sites": sites,
        "images": {"kind": "features", "numbers": [f"x{i}" for i in range(COLUMNS)]},
        "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
        "model": {"name": "mlp", "hidden": [hidden]},
        "train": {
            "schedule": {"rounds": rounds},
            "work": {"lr": 1e-2, "batch": 8, "epochs": None, "steps": 1, "optimizer": "sgd"},
            "methods": {"fedavg": {"name": "fedavg"}},
        },
        "evaluate": {"copies": 0, "public": False, "reference": None},
        "audit": {"membership": False},
    }


def watched(process: subprocess.Popen[str], runs: Path, far: Federation | None) -> tuple[float, float]:
    """Seconds a round, and the most memory that the server and its job held, in MB."""
    times: list[float] = []
    last, memory = 0.0, 0.0
    while process.poll() is None:
        for state in runs.glob("far/federation/**/state"):
            now = state.stat().st_mtime
            if now != last:
                times.append(now)
                last = now
        if far is not None:
            memory = max(memory, sum(rss(one) for one in far.everything_of("server")))
        time.sleep(0.02)
    if process.returncode:
        raise RuntimeError(process.stdout.read() if process.stdout else "")
    steps = [b - a for a, b in pairwise(times)]
    return statistics.median(steps[1:-1]), memory / 1e6


def rss(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0.0


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--mb", type=float, nargs="+", default=[1, 10, 200])
    line.add_argument("--rounds", type=int, default=6)
    line.add_argument("--hospitals", type=int, default=4)
    line.add_argument("--cells", type=int, nargs="+", help="numbers of hospitals: what is held, as flare_cells.py says")
    line.add_argument("--together", action="store_true", help="with --cells: all at once, held in memory")
    options = line.parse_args()
    for mb in options.mb if options.cells else ():
        flare_cells.cells(options.cells, mb, options.rounds, options.together)
    if options.cells:
        return
    print(
        "| MB a message | in one process, s a round | over FLARE | extra | server's memory, MB |\n|---|---|---|---|---|"
    )
    for mb in options.mb:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            said = settings(folder, mb, options.rounds, options.hospitals)
            config = folder / "far.yaml"
            config.write_text(yaml.safe_dump(said))
            near = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "pipelines.run", str(config), "--until", "train"],
                cwd=folder,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            own, _ = watched(near, folder / "runs", None)
            with federation(folder, said["sites"]) as far:  # type: ignore[arg-type]
                process = far.submit(config, "--until", "train", "--silence", "300")
                over, memory = watched(process, folder / "coordinator" / "runs", far)
            print(
                f"| {mb:g} | {own:.2f} | {over:.2f} | {over - own:.2f} s, {over / own:.2f}× | {memory:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
