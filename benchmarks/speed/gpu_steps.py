"""Steps that are large enough for a GPU: python -m benchmarks.speed.gpu_steps cyclegan|wgan|windows [--device cuda]

cyclegan: a training step of a CycleGAN on 64 x 64 images, batches of 24, in float32 and in bfloat16. wgan: a step of
critic and generator of the WGAN-GP, plain and privately, 32 patients with two views each; beside it stands the plain
step. windows: a volume's mask by mirrored half-overlapping windows of the plan of the liver at 8 GiB.

A step is the difference between a longer and a shorter training, over its steps, so that what happens once does not
count; on a GPU the clock stops when it is done. Figures are written after every row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.shared.options import make_parser
from benchmarks.speed.throughput import LIVER, forget_peak, peak_mib
from federation.models.planned import Planned
from federation.windows import average_windows
from harmonize.cyclegan import CycleGan
from harmonize.game import Rules, make_players, train_adversarially
from harmonize.own import SiteImages
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

Row = tuple[str, dict[str, float]]


def images(n: int, side: int) -> SiteImages:
    numbers = torch.arange(n)
    return SiteImages(torch.rand(n, 1, side, side) * 2 - 1, numbers % 2, numbers // 2)


def seconds_a_step(train: Callable[[int], object], few: int, many: int, device: str) -> float:
    """Of the longer training what is more than of the shorter, a step; the first warms up."""
    spent = []
    for steps in (few, few, many):
        begun = time.perf_counter()
        train(steps)
        if device == "cuda":
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - begun)
    return max(spent[2] - spent[1], 1e-9) / (many - few)


def cyclegan(device: str, small: bool) -> Iterator[Row]:
    side, batch, few, many = (16, 2, 1, 2) if small else (64, 24, 5, 25)
    own = images(max(4, 2 * batch), side)
    widths = {"width": 4, "critic": 4, "classifier": 4, "blocks": 1} if small else {}
    for name, amp in {"float32": False, "bf16": True}.items():
        if amp and device == "cpu":
            continue  # the setting is for GPUs
        how = CycleGan(batch=batch, amp=amp, copies=0, **widths)  # type: ignore[arg-type]

        def train(steps: int, how: CycleGan = how) -> None:
            replace(how, steps=steps).fit(own, own.images.flip(0), seed=0, device=device)

        forget_peak(device)
        spent = seconds_a_step(train, few, many, device)
        yield name, {"ms_a_step": round(1000 * spent, 1), "images_a_second": round(batch / spent, 1),
                     "peak_mib": round(peak_mib(device), 1)}  # fmt: skip


def wgan(device: str, small: bool) -> Iterator[Row]:
    side, patients, width, few, many = (16, 2, 2, 1, 2) if small else (64, 32, 16, 2, 12)
    own, base = images(2 * patients, side), 0.0
    rows = Rows(*(part.to(device) for part in own))
    for name in ("plain", "private"):

        def train(steps: int, name: str = name) -> None:
            how = Protection(clip=1.0, sampling=1.0, views=2, noise=1.0)
            access = (
                open_private({"train": rows}, how, counts=NOTHING)
                if name == "private"
                else open_access({"train": rows}, batch=2 * patients, seed=0)
            )
            players = make_players(8, (1, side, side), width, ema=0.9, start=None, seed=0, device=torch.device(device))
            rules = Rules(steps=steps, critic_steps=1, views=2, batch=2 * patients, lr=1e-3, gp_weight=10.0)
            train_adversarially(players, access, rules, seed=0)

        forget_peak(device)
        spent = seconds_a_step(train, few, many, device)
        base = base or spent
        yield name, {"ms_a_step": round(1000 * spent, 1), "images_a_second": round(2 * patients / spent, 1),
                     "over_bare": round(spent / base, 2), "peak_mib": round(peak_mib(device), 1)}  # fmt: skip


def windows(device: str, small: bool) -> Iterator[Row]:
    plan: Planned = replace(LIVER, mirror=True)
    shape: tuple[int, ...] = (160, 320, 320)
    if small:
        plan, shape = replace(plan, patch=(32, 32, 32), filters=(8,) * len(plan.filters)), (32, 32, 48)
    network = plan.build(inputs=(1, *plan.patch), classes=2).to(device).eval()
    x = torch.randn(1, 1, *shape, device=device)
    for name, is_bf16 in {"float32": False, "bf16": True}.items():

        def predict(x: torch.Tensor, is_bf16: bool = is_bf16) -> torch.Tensor:
            with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=is_bf16):
                logits: torch.Tensor = network(x).logits.float()
            return logits

        def serve(times: int, predict: Callable[[torch.Tensor], torch.Tensor] = predict) -> None:
            with torch.no_grad():
                for _ in range(times):
                    average_windows(predict, x, plan.patch)

        forget_peak(device)
        spent = seconds_a_step(serve, 1, 2, device)
        yield name, {"ms_a_step": round(1000 * spent, 1), "images_a_second": round(1 / spent, 3),
                     "peak_mib": round(peak_mib(device), 1)}  # fmt: skip


KINDS = {"cyclegan": cyclegan, "wgan": wgan, "windows": windows}


def main() -> None:
    line: argparse.ArgumentParser = make_parser(__doc__)
    line.add_argument("kind", choices=[*KINDS])
    line.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    line.add_argument("--small", action="store_true", help="the smallest numbers: whether it works at all")
    line.add_argument("--json", type=Path)
    options = line.parse_args()
    rows: dict[str, dict[str, float]] = {}
    for name, row in KINDS[options.kind](options.device, options.small):
        rows[name] = row
        print(f"{options.kind}, {name}: {row}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"kind": options.kind, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
