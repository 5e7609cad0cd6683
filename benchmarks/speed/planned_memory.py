"""Memory and seconds of a planned network on studies of 512 x 512 x 200 voxels: trained, scored and applied.

    python -m benchmarks.speed.planned_memory [--plans small large] [--studies 2 4] [--folder PLACE]
    python -m benchmarks.tables.derived --write planned

Made-up CT studies, int16 in NIfTI, in a folder of nnU-Net's: `init` and `plan` write the run, `run` reads the studies,
trains a round of a few steps and scores the last one, `predict` segments another on its own grid. Each is a process of
its own, on one thread. `resident` is its `ru_maxrss`, with pages of mapped files; `anonymous` is what no file stands
behind, looked at every 20 ms. `small` is a plan of 1 GiB with eight filters, `large` one of 8 GiB with 32. Of the
windows of a study a processor computes a few, and the others answer zeros, in the same memory. Seconds are of CPU.

    python -m benchmarks.speed.planned_memory --count

counts, by torch and without computing, the floating-point operations of a step and of a window of the two plans. Hours
of a GPU follow from a rate that it sustains: operations of all steps divided by it. On a GPU the full training is

    python -m pipelines.run planned.yaml --set device=cuda
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import MEASURED, ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured

NAME = "planned_memory"
SHAPE, SPACING = (512, 512, 200), (0.8, 0.8, 1.5)
CLASSES = ("liver", "spleen", "kidney_left", "kidney_right", "pancreas", "stomach", "aorta")
"""As many as are learnt at most."""
ORGANS = {1: (0.30, 0.40, 0.5), 2: (0.70, 0.55, 0.5), 3: (0.62, 0.66, 0.4), 4: (0.38, 0.66, 0.4), 5: (0.5, 0.45, 0.4),
          6: (0.60, 0.35, 0.6), 7: (0.5, 0.6, 0.5)}  # fmt: skip
PLANS: Mapping[str, tuple[str, ...]] = {"small": ("--small",), "large": ()}
STEPS: Mapping[str, int] = {"small": 2, "large": 1}
COMPUTED: Mapping[str, int] = {"small": 2, "large": 2}
"""Windows of a study that are computed."""
RATES = (10, 50)
"""That a GPU sustains, 1e12 operations a second."""
COUNTED = "counted"
COMMAND = "python -m benchmarks.speed.planned_memory"


@dataclass
class Watch:
    """The most anonymous memory of this process, bytes, and where its main thread was then."""

    most: int = 0
    place: str = ""
    stopped: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        """Look every 20 ms until it is stopped."""
        main = threading.main_thread().ident
        while not self.stopped.wait(0.02):
            status = Path("/proc/self/status").read_text(encoding="utf-8")
            now = 1024 * int(status.partition("RssAnon:")[2].split()[0])
            if now > self.most and main is not None:
                self.most, frame = now, sys._current_frames().get(main)
                places = []
                while frame is not None:
                    if "site-packages" not in frame.f_code.co_filename:
                        places.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
                    frame = frame.f_back
                self.place = " < ".join(places[:4])


def write_dataset(folder: Path, studies: int) -> None:
    """A folder of nnU-Net's, and one more study to predict. Each file is a little larger than it needs to be, because
    it is packed quickly.
    """
    from nibabel import Nifti1Image

    folder.mkdir()
    axes = np.meshgrid(*(np.linspace(0, 1, side, dtype=np.float32) for side in SHAPE), indexing="ij", sparse=True)
    affine = np.diag([-SPACING[0], -SPACING[1], SPACING[2], 1.0])
    for number in range(studies + 1):
        generator = np.random.default_rng(number)
        labels = np.zeros(SHAPE, np.uint8)
        for value, centre in ORGANS.items():
            radius = 0.05 + 0.02 * generator.random()
            near = sum((axis - at) ** 2 for axis, at in zip(axes, centre, strict=True))
            labels[near < radius**2] = value
        body = sum((axis - 0.5) ** 2 for axis in axes[:2]) < 0.45**2
        image = np.where(body, 40 + 15 * labels.astype(np.int16), -1000).astype(np.int16)
        image += generator.integers(-20, 21, SHAPE, np.int16)
        kind = "Tr" if number < studies else "Ts"
        for part, values, end in ((f"images{kind}", image, "_0000"), (f"labels{kind}", labels, "")):
            (folder / part).mkdir(exist_ok=True)
            data = gzip.compress(Nifti1Image(values, affine).to_bytes(), 1)
            (folder / part / f"case{number:02d}{end}.nii.gz").write_bytes(data)
    named = {"background": 0, **{name: value for value, name in enumerate(CLASSES, start=1)}}
    described = {"channel_names": {"0": "CT"}, "labels": named, "numTraining": studies, "file_ending": ".nii.gz"}
    (folder / "dataset.json").write_text(json.dumps(described))


def call(folder: Path, work: str, *words: str) -> dict[str, Any]:
    """Do a work in a process of its own; its figures. Raises: RuntimeError: it fails, with its last words."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "benchmarks.speed.planned_memory", "--work", work, *words]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{work} ended with {done.returncode}: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(work, figures, flush=True)
    return figures


def work_here(work: str, words: list[str], windows: int | None) -> None:
    """Do a work in this process and print its figures."""
    import torch

    torch.set_num_threads(1)
    watch, seconds = Watch(), dict[str, list[float]](step=[], window=[])
    limit_windows(windows, seconds)
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    began = time.thread_time()
    code = find_command(work)(words)
    watch.stopped.set()
    thread.join()
    resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"resident_gib": resident / 2**30, "anonymous_gib": watch.most / 2**30, "place": watch.place}
    figures |= {"seconds": time.thread_time() - began}
    figures |= {f"{name}_s": float(np.median(each)) for name, each in seconds.items() if each}
    print(json.dumps(figures))
    sys.exit(code)


def find_command(work: str) -> Callable[[list[str]], int]:
    """The command of a work."""
    import pipelines.init
    import pipelines.plan
    import pipelines.predict
    import pipelines.run

    commands = {"init": pipelines.init, "plan": pipelines.plan, "run": pipelines.run, "predict": pipelines.predict}
    found: Callable[[list[str]], int] = commands[work].main
    return found


def limit_windows(most: int | None, seconds: dict[str, list[float]]) -> None:
    """Time steps and windows; after `most` windows of a study, whose windows come one after another, answer zeros."""
    import torch

    from federation.models.planned import PlannedModule
    from federation.task import Output
    from privacy.dp.access import PlainAccess

    forward, gradient = PlannedModule.forward, PlainAccess.gradient
    count = 0

    def pass_window(module: PlannedModule, x: torch.Tensor) -> Output:
        nonlocal count
        if module.training:
            count = 0
            return forward(module, x)
        count += 1
        if most is not None and count > most:
            classes, width = module.head.weight.shape[:2]
            return Output(x.new_zeros(len(x), classes, *x.shape[2:]), x.new_zeros(len(x), width, *x.shape[2:]))
        began = time.thread_time()
        output = forward(module, x)
        seconds["window"].append((time.thread_time() - began) / len(x))
        return output

    def take_step(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        found = gradient(*arguments, **named)
        seconds["step"].append(time.thread_time() - began)
        return found

    PlannedModule.forward, PlainAccess.gradient = pass_window, take_step  # type: ignore[method-assign]


def count_operations(settings: Mapping[str, Any], classes: int) -> dict[str, float]:
    """Floating-point operations of a step and of a window, in units of 1e12, counted by torch without computing."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from federation.models.planned import Planned
    from federation.task import Task

    named = {key: value for key, value in settings["model"].items() if key in ("patch", "kernels", "strides")}
    model = Planned(
        **{key: tuple(tuple(row) if isinstance(row, list) else row for row in rows) for key, rows in named.items()},
        filters=tuple(settings["model"]["filters"]),
    )
    task = Task(model, (1, *model.patch), classes, kind="segmentation")
    counted = {}
    with torch.device("meta"):
        module = task.network()
        for name, rows, training in (("step", settings["train"]["work"]["batch"], True), ("window", 1, False)):
            x = torch.zeros(rows, 1, *model.patch)
            module.train(training)
            with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
                output = module(x)
                if training:
                    sum(each.sum() for each in (output.logits, *output.deep)).backward()  # convolutions are all
            counted[name] = counter.get_total_flops() / 1e12
    return counted


def count_plans() -> dict[str, Any]:
    """Plan -> its patch, batch, windows and operations, for studies of `SHAPE`."""
    from pipelines.planning.rules import fit_network
    from pipelines.planning.settings import SMALL, Effort

    sides, spacing = list(SHAPE[::-1]), SPACING[::-1]
    counted = {}
    for name, effort in (("small", SMALL), ("large", Effort())):
        fitted = fit_network(
            spacing,
            sides,
            classes=len(CLASSES) + 1,
            voxels=40 * prod(sides),
            memory_gib=effort.memory_gib,
            filters=effort.filters,
        )
        network = fitted.network
        model = {key: [list(row) for row in getattr(network, key)] for key in ("kernels", "strides")}
        model |= {"patch": list(network.patch), "filters": list(network.filters)}
        settings = {"model": model, "train": {"work": {"batch": fitted.batch}}}
        counted[name] = {
            "patch": model["patch"],
            "batch": fitted.batch,
            "windows": count_windows(sides, model["patch"]),
            "steps": effort.rounds * effort.steps,
            "tflop": count_operations(settings, len(CLASSES) + 1),
        }
    return counted


def count_windows(sides: list[int], patch: list[int]) -> int:
    """Half-overlapping windows over a study."""
    return prod(1 + ceil((side - length) / (length // 2)) for side, length in zip(sides, patch, strict=True))


def measure(folder: Path, plan: str, studies: int) -> dict[str, Any]:
    """One plan, on so many studies."""
    folder.mkdir()
    raw, windows = folder.parent / f"raw{studies}", COMPUTED[plan]
    few = ("--windows", str(windows))
    if not raw.exists():
        write_dataset(raw, studies)
    call(folder, "init", "--", str(raw), "--out", "asked.yaml")
    steps = ("--rounds", "1", "--steps", str(STEPS[plan]))
    figures = {"plan": call(folder, "plan", "--", "asked.yaml", "--ct", "-o", "planned.yaml", *PLANS[plan], *steps)}
    settings = yaml.safe_load((folder / "planned.yaml").read_text())
    (site,) = settings["sites"]
    settings |= {"split": {"train": 1.0, "validation": 0.0, "test": 0.0}, "threads": 1}
    settings["sites"][site]["test"] = [f"case{studies - 1:02d}"]
    settings["evaluate"] |= {"checkpoint": "latest", "copies": 20}
    (folder / "planned.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    figures["run"] = call(folder, "run", *few, "--", "planned.yaml")
    (model,) = folder.glob("runs/*/sites/*/ready/local.safetensors")
    figures["predict"] = call(folder, "predict", *few, "--", str(model), str(raw / "imagesTs"), "--out", "out")
    images, network = settings["images"], settings["model"]
    sides = [images["depth"], images["size"], images["size"]]
    facts = {"patch": network["patch"], "sides": sides, "batch": settings["train"]["work"]["batch"], "studies": studies}
    return {
        **facts,
        "filters": network["filters"][0],
        "windows": count_windows(sides, network["patch"]),
        "computed": windows,
        "tflop": count_operations(settings, len(CLASSES) + 1),
        **figures,
    }


def tables(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of memory and of operations."""
    rows = []
    for name, each in kept.items():
        for work in ("plan", "run", "predict"):
            if name == COUNTED or work not in each:
                continue
            figures = each[work]
            seconds = [f"{figures[key]:.1f}" if key in figures else "" for key in ("seconds", "step_s", "window_s")]
            memory = [f"{figures[key]:.2f}" for key in ("resident_gib", "anonymous_gib")]
            rows.append([name.partition(" | ")[0], f"{each['studies']}", f"`{work}`", *memory, *seconds])
    columns = ["plan", "studies", "command", "GiB resident", "GiB that no file stands behind", "CPU s", "CPU s a step"]
    memory_table = {"memory": make_table([*columns, "CPU s a window"], rows, COMMAND)} if rows else {}
    return memory_table | {"operations": _build_operations(kept[COUNTED])}


def _build_operations(counted: Mapping[str, Any]) -> dict[str, Any]:
    """Operations, and the hours and seconds that they take at two rates."""
    rows = []
    for name, each in counted.items():
        step, window = each["tflop"]["step"], each["tflop"]["window"]
        hours = [f"{each['steps'] * step / rate / 3600:.1f}" for rate in RATES]
        seconds = [f"{each['windows'] * window / rate:.0f}" for rate in RATES]
        patch = f"{' × '.join(map(str, each['patch']))}, {each['batch']}"
        rows.append([name, patch, f"{step:.2f}", f"{each['steps']:,}", *hours, str(each["windows"]), *seconds])
    columns = ["plan", "patch, batch", "TFLOP a step", "steps", *(f"hours at {rate} TFLOP/s" for rate in RATES)]
    columns += ["windows a study", *(f"s a study at {rate} TFLOP/s" for rate in RATES)]
    return make_table(columns, rows, f"{COMMAND} --count")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--plans", nargs="+", choices=[*PLANS], default=[*PLANS])
    parser.add_argument("--studies", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--folder", type=Path, default=None, help="where folders are made and removed")
    parser.add_argument("--out", type=Path, default=MEASURED / f"{NAME}.json")
    parser.add_argument("--work", choices=["init", "plan", "run", "predict"], help="one of its processes")
    parser.add_argument("--windows", type=int, default=None, help="of a study, that are computed by this process")
    parser.add_argument("--count", action="store_true", help="count operations, and compute nothing")
    parser.add_argument("words", nargs="*", help="of the command, after --")
    return parser.parse_args()


def main() -> None:
    """Measure what is not yet measured."""
    options = parse_options()
    if options.work:
        return work_here(options.work, options.words, options.windows)
    if options.count:
        return write_measured(options.out, {**read_measured(options.out), COUNTED: count_plans()}, sort=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for studies in options.studies:
            for plan in options.plans:
                key, place = f"{plan} | {studies}", Path(name) / f"{plan}{studies}"
                if key not in read_measured(options.out):
                    figures = measure(place, plan, studies)
                    write_measured(options.out, {**read_measured(options.out), key: figures}, sort=True)
                    shutil.rmtree(place)


if __name__ == "__main__":
    main()
