"""Cost of a private step against a plain one: python -m benchmarks.speed.private_step [PATIENTS] [--device cuda]

One step of descent on U patients with K images each, forwards, backwards and update, on one thread. The plain step has
the same U K images in one batch. Private: a gradient for each patient, who passes alone, clipped, summed, with noise
from the operating system. `passes` is the part of it that is the patients' passes, forwards and backwards: if clipping
and noise cost nothing, a private step would still take as long. Beside it stands Opacus's own way (hooks, every image a
unit, rows of all patients in one pass: a weaker promise that does less work; its hooks refuse some networks). The ways
take turns, and the least CPU time of each counts, so that a busy machine slows all of them alike: only ratios within a
run say anything. On a GPU the clock counts, until it is done. Then scores of 256 images, one by one as they are
released privately, against chunks.
"""

from __future__ import annotations

import os

from benchmarks.shared.clock import time_in_turns
from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

from federation.descent import Site, Work
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.planned import Planned
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.task import Task
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

TURNS = {1: 24, 4: 12}  # by images a patient
TASKS = {
    "cnn 16-24-32-48, 48 px": Task(Cnn(norm="group"), (1, 48, 48), 2),
    "cnn 8-16-32, 3 x 32 px": Task(Cnn(widths=(8, 16, 32), norm="group"), (3, 32, 32), 2),
    "cam 16-24-32-48, 48 px": Task(Cam(norm="group"), (1, 48, 48), 2),
    "mlp 10, 13 features": Task(Mlp(), (13,), 2),
    "resnet18, 3 x 32 px": Task(ResNet18(small=True, norm="group"), (3, 32, 32), 2),
    "unet 8, 48 px": Task(UNet(norm="group"), (1, 48, 48), 2, "segmentation"),
    "planned 8-16-32, 48 px": Task(
        Planned(
            patch=(48, 48), kernels=((3, 3),) * 3, strides=((1, 1), (2, 2), (2, 2)), filters=(8, 16, 32), norm="group"
        ),
        (1, 48, 48),
        2,
        "segmentation",
    ),
}


def rows(task: Task, patients: int, views: int, device: str) -> Rows:
    numbers = torch.arange(patients * views, device=device)
    y = (numbers % 2).view(-1, *[1] * len(task.spatial)).repeat(1, *task.spatial)
    return Rows(torch.randn(len(numbers), *task.inputs, device=device), y, numbers // views)


def plain(task: Task, data: Rows) -> Callable[[], object]:
    module = task.network().to(data.x.device)
    site = Site("plain", task, Work(), open_access({"train": data}, batch=len(data.y), seed=0))
    return lambda: site.descend(module, task.objective, steps=1)


def private(task: Task, data: Rows, views: int) -> Callable[[], object]:
    module = task.network().to(data.x.device)
    access = open_private({"train": data}, Protection(sampling=1.0, views=views, noise=1.0), counts=NOTHING)
    site = Site("private", task, Work(), access)
    return lambda: site.descend(module, task.objective, steps=1)


def passes(task: Task, data: Rows, views: int) -> Callable[[], object]:
    module = task.network().to(data.x.device)
    parts = zip(torch.split(data.x, views), torch.split(data.y, views), strict=True)
    patients = [Batch(x.clone(), y.clone()) for x, y in parts]
    return lambda: sum(1 for _ in patient_gradients(module, task.objective, patients))


def opacus(task: Task, data: Rows) -> Callable[[], object]:
    module = GradSampleModule(task.network().to(data.x.device))
    rule = DPOptimizer(
        torch.optim.Adam(module.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(data.y),
    )

    def step() -> None:
        rule.zero_grad()
        task.objective(module, Batch(data.x, data.y)).mean().backward()
        rule.step()

    return step


def timed(ways: dict[str, Callable[[], object]], turns: int, device: str) -> dict[str, float]:
    """The least seconds of each way."""
    return {name: min(found) for name, found in time_in_turns(ways, turns, device).items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    line = make_parser(__doc__)
    line.add_argument("patients", type=int, nargs="?", default=32)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    line.add_argument("--turns", type=int, help="of each way, in place of those by images a patient")
    line.add_argument("--only", nargs="+", help="networks, as mlp")
    line.add_argument("--json", type=Path, help="a file for the figures, written after every network")
    options = line.parse_args()
    patients, device = options.patients, options.device
    kept: dict[str, dict[str, float]] = {}
    print(f"{patients} patients a step on {device}, least time of {TURNS} turns; ", end="")
    print("times the plain step of the same images\n")
    print("| network | K | plain, ms | private | passes alone | Opacus, unit = image |")
    print("|---|---|---|---|---|---|")
    chosen = {
        name: task for name, task in TASKS.items() if not options.only or name.split()[0].strip(",") in options.only
    }
    for name, task in chosen.items():
        for views in (1, 4):
            data = rows(task, patients, views, device)
            ways = {
                "plain": plain(task, data),
                "private": private(task, data, views),
                "passes": passes(task, data, views),
                "opacus": opacus(task, data),
            }
            try:
                ways["opacus"]()
            except RuntimeError:  # a network that adds in place
                del ways["opacus"]
            found = timed(ways, options.turns or TURNS[views], device)
            base = found.pop("plain")
            kept[f"{name}, images a patient: {views}"] = {
                "ms_a_step": round(1000 * found["private"], 2),
                "over_bare": round(found["private"] / base, 2),
                "passes_over_bare": round(found["passes"] / base, 2),
                **({"opacus_over_bare": round(found["opacus"] / base, 2)} if "opacus" in found else {}),
            }
            if options.json:
                options.json.write_text(json.dumps({"patients": patients, "rows": kept}, indent=1) + "\n")
            print(
                f"| {name} | {views} | {1000 * base:.1f} | "
                + " | ".join(f"{s / base:.2f}" for s in found.values())
                + " |"
            )
    print("\n| network | 256 images in chunks, ms | one by one |")
    print("|---|---|---|")
    for name, task in chosen.items():
        module, x = task.network().to(device), torch.randn(256, *task.inputs, device=device)
        scored = timed(
            {
                "chunks": lambda: task.probabilities(module, x),  # noqa: B023
                "alone": lambda: task.probabilities(module, x, alone=True),  # noqa: B023
            },
            options.turns or TURNS[4],
            device,
        )
        print(f"| {name} | {1000 * scored['chunks']:.1f} | {scored['alone'] / scored['chunks']:.2f} |")
