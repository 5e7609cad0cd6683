"""Cost of test-time routing beside plain inference: python -m benchmarks.speed.routing [--models 2 4 8 16]

A U-Net of width 8 at 96 px, batches of 4 noise images, one thread; K sites' models and the global one. Plain inference,
routed inference and steps of adaptation take turns, so that a busy machine slows all; a ratio is that of the sums of
processor time. An epoch of `adapt` is one step for every image and one look without a gradient. Each K has a process of
its own: memory is its largest resident size, above that before the first image was seen, models included.

all models: inference with every one of the K + 1 models, which mixing outputs instead of kernels would need.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from federation.models.unet import UNet
from federation.task import Task
from personalize.routing import Routed, build_routed
from personalize.routing_losses import Unsupervised

SIDE, BATCH = 96, 4


def looked(module: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        module(x)


def stepped(module: Routed, x: torch.Tensor, loss: Unsupervised, rule: torch.optim.Optimizer) -> None:
    module.train()
    losses = loss(module, x, torch.Generator().manual_seed(0)).losses
    rule.zero_grad()
    losses.mean().backward()
    rule.step()
    module.eval()


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(k: int, turns: int) -> dict[str, float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    before = resident()
    task = Task(UNet(), (1, SIDE, SIDE), 2, "segmentation")
    experts = [task.network().eval() for _ in range(k + 1)]
    module, loss, x = build_routed(experts), Unsupervised(), torch.randn(BATCH, 1, SIDE, SIDE)
    rule = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-3)
    jobs: dict[str, Callable[[], None]] = {
        "plain": lambda: looked(experts[-1], x),
        "all models": lambda: [looked(expert, x) for expert in experts] and None,
        "routed": lambda: looked(module, x),
        "step": lambda: stepped(module, x, loss, rule),
    }
    spent, peaks = dict.fromkeys(jobs, 0.0), {}
    for turn in range(turns + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            spent[name] += (time.process_time() - start) * (turn > 0)  # the first turn is not counted
            peaks.setdefault(name, resident() - before)
    seconds = {name: value / turns / BATCH for name, value in spent.items()}
    ratios = {f"{name} ratio": value / seconds["plain"] for name, value in seconds.items()}
    return {**seconds, **ratios, **{f"{name} MiB": value / 1024 for name, value in peaks.items()}}


if __name__ == "__main__":
    options = make_parser(__doc__)
    options.add_argument("--models", type=int, nargs="+", default=[2, 4, 8, 16])
    options.add_argument("--turns", type=int, default=6)
    options.add_argument("--one", type=int, help="measure this K here, and print it as JSON")
    chosen = options.parse_args()
    if chosen.one is not None:
        print(json.dumps(measure(chosen.one, chosen.turns)))
        raise SystemExit
    print("| K | plain ms/image | routed | all models | step | peak MiB plain | routed | step |\n|" + "---|" * 8)
    for k in chosen.models:
        command = [sys.executable, __file__, "--one", str(k), "--turns", str(chosen.turns)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        times = [f"{found[f'{name} ratio']:.2f}×" for name in ("routed", "all models", "step")]
        memory = [f"{found[f'{name} MiB']:.0f}" for name in ("plain", "routed", "step")]
        print(f"| {k} | {1000 * found['plain']:.2f} | {' | '.join([*times, *memory])} |", flush=True)
