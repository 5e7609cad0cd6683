"""Memory, processor time, bytes on the disk and bytes that leave of a run, against one size of it at a time.

    python -m benchmarks.speed.curves AXIS [--at 2 8 32] [--code FOLDER --name before]
    python -m benchmarks.tables.derived --write cost-curves

AXIS is one of AXES: images of a hospital, the side of an image, methods, hospitals or rounds; all else stays as the
axis's case says. Every figure is kept in benchmarks/measured/curves.json. The whole run is a process of its own. Memory
is what the process and those that it started hold of their own (RssAnon, Linux only), without pages of files, which the
system takes back: the largest value in each stage, looked at every 50 ms. Seconds are of the processor, so a busy
machine changes them little. Bytes of the disk are those of the run's folder at its end, by what holds them; bytes that
leave are those that hospitals' ledgers name. --code: another folder of the project, whose code is run instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from pipelines.data.tensors.file import tensor_bytes

NAME, COMMAND = "curves", "python -m benchmarks.speed.curves AXIS"
WEIGHED = (("disk", 2**20), ("left", 2**10))
STAGES = ("ingest", "train", "evaluate", "report")
SETTINGS = """
name: many
privacy: none
pooling: refused
threads: 1
sites: {sites}
images: {{kind: tensors, inputs: [1, {side}, {side}]}}
model: {{name: cnn, widths: {widths}}}
train:
  schedule: {{rounds: {rounds}}}
  work: {{batch: 64, lr: 0.01, epochs: null, steps: 5}}
  methods: {methods}
evaluate: {{copies: {copies}, public: {public}, reference: null}}
audit: {{membership: false, canaries: 0}}
"""


@dataclass(frozen=True)
class Case:
    """A run. images: of each hospital, two of each patient, `side` pixels square. public: whether each hospital's model
    is tested at all hospitals. siloed: each hospital trains alone; else methods are FedAvg, and FedProx with other
    weights, so that each costs the same.
    """

    images: int = 96
    side: int = 32
    methods: int = 1
    hospitals: int = 2
    rounds: int = 1
    widths: tuple[int, ...] = (16, 32, 64)
    public: bool = True
    copies: int = 10
    siloed: bool = False


@dataclass(frozen=True)
class Axis:
    """What varies, from which case, and its values."""

    case: Case
    values: tuple[int, ...]
    unit: str


AXES: Mapping[str, Axis] = {
    "images": Axis(Case(side=64, hospitals=1, widths=(8, 8), public=False), (2000, 8000, 32000), "images"),
    "side": Axis(Case(images=400, hospitals=1, widths=(8, 8)), (32, 64, 128, 256), "pixels a side"),
    "methods": Axis(Case(), (1, 4, 16), "methods"),
    "hospitals": Axis(Case(images=48), (2, 8, 32, 128), "hospitals"),
    "rounds": Axis(Case(), (1, 4, 16, 64), "rounds"),
    "copies": Axis(Case(images=48, hospitals=8, siloed=True), (10, 100, 1000), "copies of the bootstrap"),
}


def write_examples(path: Path, images: int, side: int, hospital: int) -> None:
    """So many images of noise, half of them brighter in a corner, two of each patient."""
    generator = np.random.default_rng(hospital)
    x, y = generator.standard_normal((images, 1, side, side), np.float32), generator.integers(0, 2, images)
    x[:, 0, :8, :8] += y[:, None, None] * 0.5
    path.write_bytes(tensor_bytes({"x": x, "y": y}, [f"h{hospital}p{image // 2}" for image in range(images)]))


def write_run(folder: Path, case: Case) -> None:
    """The files of the hospitals, and the settings."""
    sites = {}
    for hospital in range(case.hospitals):
        name = f"s{hospital:03d}"
        write_examples(folder / f"{name}.safetensors", case.images, case.side, hospital)
        sites[name] = {"source": {"kind": "tensors", "file": f"{name}.safetensors"}}
    first = "local" if case.siloed else "fedavg"
    methods: dict[str, Any] = {first: {"name": first}}
    methods |= {f"fedprox{number}": {"name": "fedprox", "mu": 0.01 * number} for number in range(1, case.methods)}
    text = SETTINGS.format(
        sites=json.dumps(sites),
        side=case.side,
        widths=list(case.widths),
        rounds=case.rounds,
        methods=json.dumps(methods),
        public=json.dumps(case.public),
        copies=case.copies,
    )
    (folder / "many.yaml").write_text(text)


def measure(case: Case, code: Path) -> dict[str, dict[str, float]]:
    """Run once. Returns: stage -> MiB and processor seconds; `before` is what comes before the first stage; `disk` and
    `left` are bytes by what holds them, and by request.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder, case)
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
            raise RuntimeError(f"the run of {case} ended with {run.returncode}")
        return {**figures, **count_bytes(folder / "runs/many")}


def count_bytes(run: Path) -> dict[str, dict[str, float]]:
    """Bytes on the disk by what holds them (of hospitals, all together), and bytes that left by request."""
    disk, left = defaultdict[str, float](float), defaultdict[str, float](float)
    for path in run.rglob("*"):
        if path.is_file():
            parts = path.relative_to(run).parts
            disk["/".join(["sites", *parts[2:3]]) if parts[0] == "sites" else parts[0]] += path.stat().st_size
    for ledger in run.glob("sites/*/ledger.jsonl"):
        for line in map(json.loads, ledger.read_text().splitlines()):
            left[str(line["request"])] += line["bytes"]
    return {"disk": dict(disk), "left": dict(left)}


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


def tables(kept: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """The curves of all axes, and by which powers they grow."""
    columns = ["axis", "value", "code", *(f"{stage}: MiB, s" for stage in STAGES), "MiB on the disk", "KiB that left"]
    rows, powers = [], []
    for name in AXES:
        for code, by_value in kept.get(name, {}).items():
            values = sorted(map(int, by_value))
            for value in values:
                figures = by_value[str(value)]
                cells = [f"{memory:.0f}, {seconds:.1f}" for memory, seconds in map(_above(figures), STAGES)]
                sums = [f"{sum(figures[what].values()) / of:,.0f}" if what in figures else "" for what, of in WEIGHED]
                rows.append([name, f"{value:,}", code, *cells, *sums])
            spans = list(itertools.pairwise(values))
            for first, last in dict.fromkeys([*spans[:1], *spans[-1:]]):
                low, high = by_value[str(first)], by_value[str(last)]
                told = _describe_growth(low, high, last / first)
                powers.append([name, f"{first:,} to {last:,}", code, *told])
    power_columns = ["axis", "from, to", "code", "seconds: power (stage that adds most)", "memory", "disk", "left"]
    return {"curves": make_table(columns, rows, COMMAND), "powers": make_table(power_columns, powers, COMMAND)}


def _above(figures: Mapping[str, Mapping[str, float]]) -> Callable[[str], tuple[float, float]]:
    """MiB above what there was before the first stage, and seconds, of a stage."""
    start = figures["before"]["mib"]

    def read(stage: str) -> tuple[float, float]:
        row = figures.get(stage, {"mib": start, "seconds": 0.0})
        return max(0.0, row["mib"] - start), row["seconds"]

    return read


def _describe_growth(
    low: Mapping[str, Mapping[str, float]], high: Mapping[str, Mapping[str, float]], times: float
) -> list[str]:
    """By which power of what varies seconds, memory, and bytes on the disk and of replies grow. Which stage adds most
    seconds, or has the most memory in the end.
    """
    first, last = ({stage: _above(each)(stage) for stage in STAGES} for each in (low, high))
    added = {stage: last[stage][1] - first[stage][1] for stage in STAGES}
    seconds = [sum(row[1] for row in each.values()) for each in (first, last)]
    memory = [max(row[0] for row in each.values()) for each in (first, last)]
    cells = [
        f"{_power(*seconds, times)} ({max(STAGES, key=lambda stage: added[stage])})",
        f"{_power(*memory, times)} ({max(STAGES, key=lambda stage: last[stage][0])})",
    ]
    for what, _ in WEIGHED:
        each = [sum(figures[what].values()) if what in figures else math.nan for figures in (low, high)]
        cells.append(_power(*each, times))
    return cells


def _power(before: float, after: float, times: float) -> str:
    """The power, to a tenth; empty if it was not measured."""
    power = math.log(max(after, 0.1) / max(before, 0.1)) / math.log(times) if before == before else math.nan
    return "" if math.isnan(power) else f"{power:z.1f}"


def tables_of_images(kept: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Memory over that before the first stage, and seconds, by stage and number of images; the last column is by which
    power of the images memory and seconds grow between the two largest numbers.
    """
    rows, side = [], AXES["images"].case.side
    for code, by_images in kept["images"].items():
        counts = sorted(map(int, by_images))
        for stage in STAGES:
            figures = [_above(by_images[str(count)])(stage) for count in counts]
            cells = [f"{memory:.0f} MiB, {seconds:.1f} s" for memory, seconds in figures]
            growths = [(max(1.0, memory), max(0.1, seconds)) for memory, seconds in figures]
            powers = [
                math.log(last / first) / math.log(counts[-1] / counts[-2])
                for first, last in zip(growths[-2], growths[-1], strict=True)
            ]
            rows.append([code, stage, *cells, f"{powers[0]:.1f}, {powers[1]:.1f}"])
    columns = ["code", "stage", *(f"{count:,} images, {count * side**2 / 2**18:,.0f} MiB" for count in counts)]
    return {"patients": make_table([*columns, "power: memory, seconds"], rows, COMMAND.replace("AXIS", "images"))}


def table_of_a_million(kept: Mapping[str, Any]) -> dict[str, object]:
    """What a million images would take, by a straight line through the two largest numbers that were measured."""
    by_images, rows = kept["images"]["now"], []
    few, many = sorted(map(int, by_images))[-2:]
    for stage in STAGES:
        first, last = (_above(by_images[str(count)])(stage) for count in (few, many))
        far = [b + (1_000_000 - many) * max(0.0, b - a) / (many - few) for a, b in zip(first, last, strict=True)]
        rows.append([stage, f"{last[0]:.0f}, {last[1]:.1f}", f"{far[0]:,.0f}", f"{far[1] / 60:.1f}"])
    columns = ["stage", f"measured at {many:,}: MiB, s", "extrapolated to 1,000,000: MiB", "extrapolated: min of CPU"]
    return make_table(columns, rows, COMMAND.replace("AXIS", "images"))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("axis", choices=AXES)
    parser.add_argument("--at", type=int, nargs="+", help="values, in place of the axis's own")
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--name", default="now", help="of the code in the table")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    axis = AXES[options.axis]
    for value in options.at or axis.values:
        figures = measure(replace(axis.case, **{options.axis: value}), options.code.resolve())
        kept = read_measured(NAME)
        by_code = kept.setdefault(options.axis, {}).setdefault(options.name, {})
        by_code[str(value)] = figures
        write_measured(NAME, kept)
        print(value, {stage: {key: round(number, 1) for key, number in row.items()} for stage, row in figures.items()})


if __name__ == "__main__":
    main()
