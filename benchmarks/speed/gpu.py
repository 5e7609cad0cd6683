"""All that waits for a GPU, for whoever has one for ten minutes: make gpu, or

    python -m benchmarks.speed.gpu [--device cpu] [--small] [--only PART ...] [--pfl PYTHON] [--out FILE]

Each part is a program of its own with a time limit of its own, and what fails or is cut off keeps no other part from
running. After every part all figures so far are written, so that a machine that is taken away costs one part. On a GPU
they go to benchmarks/measured/gpu.json and into the tables of docs/results/gpu.md; a trial (`--device cpu`, `--small`,
another `--out`) writes its file, and the tables beside it. Peak: of the GPU's memory that torch holds.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import BUILD, MEASURED, ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured, write_tables

COMMAND = "make gpu"
NOT_RUN = "not run"
Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What is run, and for how long at most. asked: the arguments of python; small: in a trial on a CPU. {device} and
    {json} are the device and the file for figures, {out} a folder for what else is written.
    """

    title: str
    seconds: int
    asked: str
    small: str


def measure(network: str, seconds: int, title: str, numbers: str, small: str) -> Part:
    begin = f"-m benchmarks.speed.throughput --device {{device}} --json {{json}} --network {network}"
    return Part(title, seconds, f"{begin} {numbers}", f"{begin} {small} --times 1")


def step(kind: str, seconds: int, title: str) -> Part:
    begin = f"-m benchmarks.speed.gpu_steps {kind} --device {{device}} --json {{json}}"
    return Part(title, seconds, begin, f"{begin} --small")


TINY = "--images 4 --side 32 --batch 2 --widths 8 8"
PARTS: Mapping[str, Part] = {
    "tests": Part(
        "tests that are marked gpu", 150, "-m pytest -m gpu -vv -p no:cacheprovider",
        "-m pytest -vv -p no:cacheprovider tests/federation/test_device.py -k balanced",
    ),
    "cnn": measure("cnn", 25, "CNN, 64 × 64, batches of 32", "--images 256 --times 2", TINY),
    "resnet18": measure("resnet18", 45, "ResNet-18, 3 × 112 × 112, batches of 32",
                        "--images 64 --side 112 --times 1", "--images 2 --side 32 --batch 2"),
    "unet3d": measure("unet3d", 25, "U-Net of volumes, 64³, batches of 2", "--images 8 --batch 2 --times 2",
                      "--images 2 --side 16 --batch 1"),
    "planned": measure("planned", 55, "plan of the liver at 8 GiB, 112 × 160 × 128, batches of 2",
                       "--images 4 --batch 2 --times 1", "--images 2 --side 16 --batch 1"),
    "private": Part("private steps of small networks, 32 patients", 45,
                    "-m benchmarks.speed.private_step 32 --only cnn cam mlp --device {device} --json {json}",
                    "-m benchmarks.speed.private_step 2 --only cnn cam mlp --device {device} --json {json} --turns 1"),
    "cyclegan": step("cyclegan", 25, "CycleGAN, 64 × 64, batches of 24"),
    "wgan": step("wgan", 25, "WGAN-GP, 64 × 64, 32 patients"),
    "windows": step("windows", 20, "a volume of 160 × 320 × 320 by mirrored windows of the plan"),
    "adc_gpu": Part("prostate_adc_gpu.yaml with few patients and steps", 50,
                    "-m pytest -vv -p no:cacheprovider tests/pipelines/test_gpu.py -m gpu -k configuration",
                    "-m pipelines.run prostate_adc_gpu.yaml --check"),
    "default": Part("prostate_adc.yaml with two rounds, from reading to its page", 75,
                    "-m pipelines.run prostate_adc.yaml --set device={device} --set train.schedule.rounds=2",
                    f"-m pipelines.run {ROOT}/tests/golden/tiny/tiny.yaml --set device={{device}} "
                    "--set train.schedule.rounds=1"),
}  # fmt: skip
"""All in nine minutes at most, the most important first."""
TRIAL = 5  # times as long may a trial take: its machine may be slow or busy
IN_A_FOLDER = ("adc_gpu", "default")
"""Parts that write a run where they are started; tests run where they are."""


def run_part(name: str, part: Part, *, device: str, small: bool, seconds: float, out: Path) -> Figures:
    """Run one part, for so many seconds at most: how it ended, and what it wrote until then."""
    figures = out / f"{name}.json"
    figures.unlink(missing_ok=True)
    words = (part.small if small else part.asked).format(device=device, json=figures, out=out)
    folder = out if name in IN_A_FOLDER and "pytest" not in words else ROOT
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    begun, log = time.perf_counter(), out / f"{name}.txt"
    with log.open("w", encoding="utf-8") as lines:
        running = subprocess.Popen(  # noqa: S603
            [sys.executable, *words.split()], cwd=folder, stdout=lines, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
        )  # fmt: skip
        try:
            code = running.wait(timeout=seconds)
            ended = "done" if code == 0 else f"failed: exit {code}"
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, 9)
            running.wait()
            ended = f"cut off after {seconds:.0f} s"
    told: Figures = {"command": f"python {words.replace(str(figures), 'FILE')}", "ended": ended}
    told["seconds"] = round(time.perf_counter() - begun, 1)
    if figures.exists():
        told["figures"] = json.loads(figures.read_text(encoding="utf-8"))
    if tests := count_tests(log.read_text(encoding="utf-8", errors="replace")):
        told["tests"] = tests
    return told


def count_tests(text: str) -> dict[str, int]:
    """How many tests passed, failed or were skipped in a log of pytest, and how many it had chosen."""
    counts: dict[str, int] = {}
    for outcome in re.findall(r"::.* (PASSED|FAILED|SKIPPED|ERROR)\b", text):
        counts[outcome.lower()] = counts.get(outcome.lower(), 0) + 1
    chosen = re.search(r"/ (\d+) selected", text) or re.search(r"collected (\d+) items?", text)
    return {**counts, "chosen": int(chosen[1])} if chosen else counts


def run_all(
    parts: Mapping[str, Part], told: Figures, write: Callable[[Figures], None], *, device: str, small: bool,
    minutes: float, out: Path,
) -> None:  # fmt: skip
    """Run the parts in turn, and write all figures after each. minutes: for all of them together."""
    end = time.perf_counter() + 60 * minutes * (TRIAL if small else 1)
    for name, part in parts.items():
        left = min(part.seconds * (TRIAL if small else 1), end - time.perf_counter())
        if left <= 1:
            print(f"{name}: {NOT_RUN}, no time is left", flush=True)
            continue
        print(f"{name}: {part.title}, {left:.0f} s at most", flush=True)
        told["parts"][name] = run_part(name, part, device=device, small=small, seconds=left, out=out)
        print(f"{name}: {told['parts'][name]['ended']} in {told['parts'][name]['seconds']} s", flush=True)
        write(told)


def tables(measured: Figures) -> dict[str, dict[str, Any]]:
    """The tables of docs/results/gpu.md: how each part ended, and what was measured; what was not run says so."""
    parts = measured.get("parts", {})
    ended = [
        [part.title, parts.get(name, {}).get("ended", NOT_RUN), say_tests(parts.get(name, {})),
         say(parts.get(name, {}).get("seconds"))]
        for name, part in PARTS.items()
    ]  # fmt: skip
    steps = [row for name, part in PARTS.items() for row in step_rows(part, parts.get(name, {}))]
    return {
        "minutes": make_table(["part", "how it ended", "tests: passed of chosen", "s"], ended, COMMAND),
        "steps": make_table(
            ["what", "way", "ms a step", "images/s", "times the bare loop or plain step", "peak, MiB"], steps, COMMAND
        ),
    }


def step_rows(part: Part, told: Figures) -> list[list[str]]:
    """A row for each way that a part measured; one that says so if it has not."""
    if "throughput" not in part.asked and "gpu_steps" not in part.asked and "private_step" not in part.asked:
        return []
    rows = told.get("figures", {}).get("rows", {})
    keys = ("ms_a_step", "images_a_second", "over_bare", "peak_mib")
    return [[part.title, way, *(say(row.get(key)) for key in keys)] for way, row in rows.items()] or [
        [part.title, "", NOT_RUN, "", "", ""]
    ]


def say(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def say_tests(told: Figures) -> str:
    counts = told.get("tests", {})
    return f"{counts.get('passed', 0)} of {counts.get('chosen', 0)}" if counts else ""


def describe_machine(device: str) -> Figures:
    """The machine's name and versions. Raises: SystemExit: there is no such device."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("device cuda, and torch finds no GPU here: say make gpu DEVICE=cpu SMALL=1 for a trial")
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {os.cpu_count()} processors"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version()}


def main(asked: Sequence[str] | None = None) -> None:
    line = make_parser(__doc__)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    line.add_argument("--small", action="store_true", help="a trial of everything with the smallest numbers")
    line.add_argument("--only", nargs="+", choices=[*PARTS], default=[*PARTS], help="parts; figures of others stay")
    line.add_argument("--minutes", type=float, default=9.0, help="for all parts together")
    line.add_argument("--pfl", metavar="PYTHON", help="a python with pfl-research, as in benchmarks.speed.frameworks")
    line.add_argument("--out", type=Path)
    options = line.parse_args(asked)
    is_trial = options.small or options.device == "cpu" or options.out is not None
    place = options.out or (BUILD / "gpu.json" if is_trial else MEASURED / "gpu.json")
    parts = {name: PARTS[name] for name in options.only}
    if options.pfl:
        words = f"-m benchmarks.speed.frameworks --pfl {options.pfl}"
        parts["pfl"] = Part("rounds beside pfl-research, on the CPU", 60, words, words)
    told = {**read_measured(place), **describe_machine(options.device), "small": options.small}
    told.setdefault("parts", {})
    place.parent.mkdir(parents=True, exist_ok=True)

    def write(now: Figures) -> None:
        write_measured(place, now)
        if is_trial:
            from benchmarks.tables.results_tables import rendered

            date = {"commit": "of this trial", "date": "a trial", "command": COMMAND}
            text = "\n".join(rendered({**table, **date}) for table in tables(now).values())  # type: ignore[typeddict-item]
            place.with_suffix(".md").write_text(text, encoding="utf-8")
        else:
            write_tables("gpu", tables(now))

    out = Path(tempfile.mkdtemp(prefix="gpu-"))
    run_all(parts, told, write, device=options.device, small=options.small, minutes=options.minutes, out=out)
    if not is_trial:
        from benchmarks.tables.results_tables import write_pages

        write_pages()
    shutil.copytree(out, BUILD / "gpu", dirs_exist_ok=True, ignore=shutil.ignore_patterns("runs", "data"))
    print(f"figures: {place}; what each part printed: {BUILD / 'gpu'}")


if __name__ == "__main__":
    main()
