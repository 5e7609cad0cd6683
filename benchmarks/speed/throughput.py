"""How many images a second training takes, beside a bare loop of the same work, and the peak of memory:

    python -m benchmarks.speed.throughput [--device cuda] [--network resnet18] [--json FILE]

One hospital trains a network on random images through the data access that every method uses (`Site.descend`): plain in
float32, with channels last, in bfloat16, in both, and privately with each patient's gradient. The bare loop is the same
network, batches, optimizer, precision and layout in torch's own words, without access, events or names; for private
training it is plain float32, so that its ratio is the price of privacy. Each takes turns; of several tries the fastest
counts, the first (compilation of kernels) never. Peak: of the GPU's memory that torch holds, or on a CPU of the
process, which never falls again, so that only the first row that needs most shows it.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.shared.clock import time_in_turns
from benchmarks.shared.options import make_parser
from federation.descent import Site, Work
from federation.models.cnn import Cnn
from federation.models.planned import Planned
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.task import Task
from privacy.dp.access import Access, Rows, open_access
from privacy.dp.capability import restrict_access
from privacy.dp.events import NOTHING
from privacy.dp.passes import Precision, to_float32
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

WAYS: dict[str, tuple[Precision, bool]] = {
    "float32": ("float32", False),
    "channels_last": ("float32", True),
    "bf16": ("bf16", False),
    "bf16, channels_last": ("bf16", True),
}


LIVER = Planned(
    patch=(112, 160, 128),
    kernels=((3, 3, 3),) * 6,
    strides=((1, 1, 1), *((2, 2, 2),) * 4, (1, 2, 2)),
    filters=(32, 64, 128, 256, 320, 320),
)
"""The plan of the liver's studies at 8 GiB, batches of 2: docs/results/planned.md."""


def task_of(network: str, side: int, widths: tuple[int, ...]) -> Task:
    """The network, and what it learns: one grey picture or volume, a colour picture, or a mask of a volume. A side
    under 64 makes the plan small.
    """
    if network == "planned":
        plan = LIVER if side >= 64 else replace(LIVER, patch=(32, 32, 32), filters=(8,) * 6)
        return Task(plan, (1, *plan.patch), 2, "segmentation")
    if network == "resnet18":
        return Task(ResNet18(norm="group"), (3, side, side), 2)
    if network == "unet3d":
        return Task(UNet(norm="group"), (1, side, side, side), 2, "segmentation")
    return Task(Cnn(widths=widths, norm="group"), (1, side, side), 2)


def rows(task: Task, images: int, device: str) -> Rows:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(images, *task.inputs, generator=made)
    y = torch.randint(2, (images, *task.spatial), generator=made)
    return Rows(x.to(device), y.to(device), torch.arange(images, device=device))


def ours(task: Task, data: Rows, work: Work, private: bool) -> Callable[[], None]:
    """An epoch through the site's access."""
    torch.manual_seed(0)
    module = task.network().to(data.x.device)

    def access() -> Access:
        if private:
            share = work.batch / len(data.y)
            how = Protection(clip=1.0, sampling=share, views=1, noise=1.0)
            return open_private({"train": data}, how, counts=NOTHING)
        return open_access({"train": data}, batch=work.batch, seed=0, passes=work.passes)

    def epoch() -> None:
        Site("a", task, work, restrict_access(access())).descend(module, task.objective)

    return epoch


def bare(task: Task, data: Rows, work: Work) -> Callable[[], None]:
    """The same epoch as a loop."""
    torch.manual_seed(0)
    module: nn.Module = task.network().to(data.x.device)
    x = data.x
    if work.channels_last:
        module, x = module.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rule = torch.optim.SGD(module.parameters(), lr=work.lr)

    def epoch() -> None:
        for part in torch.randperm(len(data.y)).split(work.batch):
            rule.zero_grad()
            with torch.autocast(x.device.type, torch.bfloat16, enabled=work.precision == "bf16"):
                output = module(x[part])
            if task.kind == "segmentation":
                loss = task.model.losses(to_float32(output), data.y[part]).mean()
            else:
                loss = functional.cross_entropy(output.logits.float(), data.y[part])
            loss.backward()
            rule.step()

    return epoch


def forget_peak(device: str) -> None:
    """Let the most memory so far begin anew; on a CPU it stays."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_mib(device: str) -> float:
    """Of the GPU's memory that torch held, or on a CPU of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measured(options: argparse.Namespace, write: Callable[[dict[str, dict[str, float]]], None]) -> None:
    """The figures of each way; written after every way."""
    task = task_of(options.network, options.side, tuple(options.widths))
    data, found = rows(task, options.images, options.device), {}
    plans = {name: (Work(optimizer="sgd", lr=0.01, batch=options.batch, precision=p, channels_last=c), False)
             for name, (p, c) in WAYS.items() if not c or len(task.inputs) == 3}  # fmt: skip
    plans["private"] = (Work(optimizer="sgd", lr=0.01, batch=options.batch), True)
    for name, (work, private) in plans.items():
        forget_peak(options.device)
        mine, loop = ours(task, data, work, private), bare(task, data, work)
        ways = {"ours": mine, "bare": loop}
        one, other = map(min, time_in_turns(ways, options.times, options.device, clock=time.perf_counter).values())
        found[name] = {
            "images_a_second": round(options.images / one, 1),
            "bare_images_a_second": round(options.images / other, 1),
            "over_bare": round(one / other, 2),
            "ms_a_step": round(1000 * one * min(1.0, options.batch / options.images), 2),
            "peak_mib": round(peak_mib(options.device), 1),
        }
        print(f"{name:22} {found[name]['images_a_second']:10.1f} images/s, {found[name]['over_bare']:6.2f} x the bare "
              f"loop's time, peak {found[name]['peak_mib']:.0f} MiB", flush=True)  # fmt: skip
        write(found)


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    line.add_argument("--network", choices=("cnn", "resnet18", "unet3d", "planned"), default="cnn")
    line.add_argument("--images", type=int, default=512)
    line.add_argument("--side", type=int, default=64)
    line.add_argument("--batch", type=int, default=32)
    line.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256])
    line.add_argument("--times", type=int, default=3)
    line.add_argument("--json", type=Path)
    options = line.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda, and torch finds no GPU here: say --device cpu")
    name = torch.cuda.get_device_name() if options.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    said = {"device": name, "python": platform.python_version(), "torch": torch.__version__}
    asked = {key: getattr(options, key) for key in ("network", "images", "side", "batch", "widths", "times")}

    def write(rows: dict[str, dict[str, float]]) -> None:
        if options.json:
            options.json.write_text(json.dumps({**said, **asked, "rows": rows}, indent=1) + "\n")

    measured(options, write)


if __name__ == "__main__":
    main()
