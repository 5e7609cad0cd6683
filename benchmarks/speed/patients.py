"""Memory and processor time of each stage of a run against how many images a hospital has.

    python -m benchmarks.speed.patients [--images 2000 8000 32000] [--code FOLDER]

Every figure is kept in benchmarks/measured/patients.json; `python -m benchmarks.tables.derived --write speed` writes
the table. One hospital has so many images of 64 x 64 pixels in a file, two of each patient; FedAvg of a small CNN takes
one round of five steps. The whole run is a process of its own. Memory is what the process and those that it started
hold of their own (RssAnon, Linux only), without pages of files, which the system takes back: the largest value in each
stage, looked at every 50 ms. Seconds are of the processor, so a busy machine changes them little. --code: another
folder of the project, whose code is run instead.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from pipelines.data.tensors.file import tensor_bytes

NAME = "patients"
COMMAND = "python -m benchmarks.speed.patients"
SIDE = 64
STAGES = ("ingest", "train", "evaluate", "report")
SETTINGS = """
name: many
privacy: none
pooling: refused
threads: 1
sites: {a: {source: {kind: tensors, file: a.safetensors}}}
images: {kind: tensors, inputs: [1, 64, 64]}
model: {name: cnn, widths: [8, 8]}
train:
  schedule: {rounds: 1}
  work: {batch: 64, lr: 0.01, epochs: null, steps: 5}
  methods: {fedavg: {name: fedavg}}
evaluate: {copies: 10, public: false, reference: null}
audit: {membership: false, canaries: 0}
"""


def write_examples(path: Path, images: int) -> None:
    """So many images of noise, half of them brighter in a corner, two of each patient."""
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((images, 1, SIDE, SIDE), np.float32), generator.integers(0, 2, images)
    x[:, 0, :8, :8] += y[:, None, None] * 0.5
    path.write_bytes(tensor_bytes({"x": x, "y": y}, [f"p{image // 2}" for image in range(images)]))


def measure(images: int, code: Path) -> dict[str, dict[str, float]]:
    """Run once. Returns: stage -> MiB and processor seconds; `before` is what comes before the first stage."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_examples(folder / "a.safetensors", images)
        (folder / "many.yaml").write_text(SETTINGS)
        environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        run = subprocess.Popen(
            [sys.executable, "-m", "pipelines.run", "many.yaml"],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        stage, figures = ["before"], dict[str, dict[str, float]]()
        watch = threading.Thread(target=_watch, args=(run, stage, figures))
        watch.start()
        for line in run.stderr or ():
            if begun := re.search(r"> (\w+): begins", line):
                stage[0] = begun[1]
            elif re.match(r"audit +done", line):
                stage[0] = "report"  # it has no line of its own
        watch.join()
        if run.wait():
            raise RuntimeError(f"the run of {images} images ended with {run.returncode}")
        return figures


def _watch(run: subprocess.Popen[str], stage: list[str], figures: dict[str, dict[str, float]]) -> None:
    """Add up what the run holds and takes, by stage, until it ends."""
    spent = 0.0
    while run.poll() is None:
        memory, seconds = 0.0, 0.0
        for process in _list_processes(run.pid):
            try:
                status = Path(f"/proc/{process}/status").read_text()
                ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
            except OSError:
                continue  # it has ended
            memory += int(held[1]) / 1024 if (held := re.search(r"RssAnon:\s+(\d+)", status)) else 0.0
            seconds += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        row = figures.setdefault(stage[0], {"mib": 0.0, "seconds": 0.0})
        row["mib"] = max(row["mib"], memory)
        row["seconds"] += max(0.0, seconds - spent)
        spent = max(spent, seconds)
        time.sleep(0.05)


def _list_processes(process: int) -> list[int]:
    """A process and all that it started."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return [process]
    return [process, *(each for child in children for each in _list_processes(int(child)))]


def tables(kept: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, dict[str, object]]:
    """Memory over that before the first stage, and seconds, by stage and number of images; the last column is by which
    power of the images memory and seconds grow between the two largest numbers.
    """
    rows = []
    for code, by_images in kept.items():
        counts = sorted(map(int, by_images))
        for stage in STAGES:
            cells, growths = [], []
            for count in counts:
                row = by_images[str(count)].get(stage, {"mib": math.nan, "seconds": math.nan})
                memory = max(1.0, row["mib"] - by_images[str(count)]["before"]["mib"])
                growths.append((memory, max(0.1, row["seconds"])))
                cells.append(f"{memory:.0f} MiB, {row['seconds']:.1f} s")
            powers = [
                math.log(last / first) / math.log(counts[-1] / counts[-2])
                for first, last in zip(growths[-2], growths[-1], strict=True)
            ]
            rows.append([code, stage, *cells, f"{powers[0]:.1f}, {powers[1]:.1f}"])
    columns = ["code", "stage", *(f"{count:,} images, {count * SIDE**2 / 2**18:,.0f} MiB" for count in counts)]
    return {"patients": make_table([*columns, "power: memory, seconds"], rows, COMMAND)}


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[2000, 8000, 32000])
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--name", default="now", help="of the code in the table")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    for images in options.images:
        figures = measure(images, options.code.resolve())
        kept = read_measured(NAME)
        write_measured(NAME, {**kept, options.name: {**kept.get(options.name, {}), str(images): figures}})
        print(images, {stage: {key: round(value, 1) for key, value in row.items()} for stage, row in figures.items()})


if __name__ == "__main__":
    main()
