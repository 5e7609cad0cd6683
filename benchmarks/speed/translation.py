"""Cost of translation by CycleGAN: python -m benchmarks.speed.translation [side] [batch]

A step of training stands against two others with the same networks and batch, on one thread: the forward and backward
passes of equation 7 and of the critics' losses alone, and a step as it is usually written (T(x) and T(x^) apart,
critics switched off and on, translations shown to the critics a second time, three optimizers). The ways take turns,
so that a busy machine slows all of them: only ratios within a run count. Then T alone, over cohorts of several sizes:
images a second, and how much the process's peak memory grew beyond the images that went in and came out.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from harmonize import equations
from harmonize.cyclegan import Batch, CycleGan, compute_losses, make_networks
from harmonize.networks import initialise_module
from harmonize.own import SiteImages

TURNS = 3
SIZES = (256, 1024, 4096)


def cohort(n: int, side: int) -> SiteImages:
    return SiteImages(torch.rand(n, 1, side, side) * 2 - 1, torch.arange(n) % 2, torch.arange(n) // 6)


def built(s: CycleGan, side: int) -> nn.ModuleDict:
    return initialise_module(lambda: make_networks(s, (1, side, side)), 0)


def ours(s: CycleGan, side: int) -> list[float]:
    """Seconds of each step of a real training, as its own reports of progress tell: means over 10 steps."""
    marks: list[float] = []
    own = cohort(48, side)
    s.fit(own, own.images.flip(0), seed=0, progress=lambda done, total, what: marks.append(time.perf_counter()))
    return [(b - a) / 10 for a, b in itertools.pairwise(marks)]


def bare(s: CycleGan, side: int, batch: Batch) -> Callable[[], object]:
    nets = built(s, side)
    sides = [[p for k in names for p in nets[k].parameters()] for names in (("translator", "back"), list(nets)[2:])]

    def step() -> None:
        found = compute_losses(s, nets, batch)
        torch.autograd.grad(found.transformers, sides[0], retain_graph=True)
        torch.autograd.grad(found.critics, sides[1])

    return step


def usual(s: CycleGan, side: int, batch: Batch) -> Callable[[], object]:
    nets = built(s, side)
    T, F, C_T, ds, do = (nets[k] for k in ("translator", "back", "classifier", "dis_shared", "dis_own"))
    groups = [(T, F), (ds, do), (C_T,)]
    rules = [torch.optim.Adam([p for net in group for p in net.parameters()], lr=1e-4) for group in groups]
    x, y, z = batch

    def step() -> None:
        for critic in (ds, do, C_T):
            critic.requires_grad_(False)
        Tx, Fz = T(x), F(z)
        loss = equations.adversarial_loss(ds(Tx)) + equations.adversarial_loss(do(Fz))
        loss = loss + s.cycle * (equations.cycle_loss(F(Tx), x) + equations.cycle_loss(T(Fz), z))
        loss = loss + s.identity * (equations.identity_loss(T(z), z) + equations.identity_loss(F(x), x))
        loss = loss + equations.classification_loss(torch.sigmoid(C_T(Tx)), y)
        rules[0].zero_grad()
        loss.backward()
        rules[0].step()
        for critic in (ds, do, C_T):
            critic.requires_grad_(True)
        for rule, critics in (
            (rules[1], lambda: equations.discrimination_loss(ds(z), ds(Tx.detach()))),
            (rules[1], lambda: equations.discrimination_loss(do(x), do(Fz.detach()))),
            (rules[2], lambda: equations.classification_loss(torch.sigmoid(C_T(Tx.detach())), y)),
        ):
            rule.zero_grad()
            critics().backward()
            rule.step()

    return step


def timed(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    for _ in range(10):
        step()
    return (time.perf_counter() - begun) / 10


def training(side: int, b: int) -> None:
    print("| norm | step, ms | over bare passes | over the usual step |\n|---|---|---|---|")
    for norm in ("instance", "none"):
        s = CycleGan(norm=norm, batch=b, copies=0, steps=20)
        own = cohort(b, side)
        batch = Batch(own.images, own.labels, own.images.flip(0))
        ways = [bare(s, side, batch), usual(s, side, batch)]
        found: list[list[float]] = [[], [], []]
        for _ in range(TURNS):
            found[0] += ours(s, side)
            for kept, way in zip(found[1:], ways, strict=True):
                kept += [timed(way), timed(way)]
        step, passes, other = (statistics.median(kept) for kept in found)
        print(f"| {norm} | {1000 * step:.0f} | {step / passes:.2f} | {step / other:.2f} |")


def peak() -> float:
    """Most memory that this process has held, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def translation(side: int) -> None:
    s = CycleGan(steps=1, copies=0)
    own = cohort(8, side)
    params = s.fit(own, own.images, seed=0)
    s.translate(params, *cohort(64, side)[::2])
    print("\n| images | images/s | peak memory beyond what went in and out, MiB |\n|---|---|---|")
    for n in SIZES:
        held = peak()
        images, _, patient = cohort(n, side)
        begun = time.perf_counter()
        s.translate(params, images, patient)
        seconds = time.perf_counter() - begun
        print(f"| {n} | {n / seconds:.0f} | {max(0.0, peak() - held - 2 * images.nbytes / 2**20):.0f} |")


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("side", type=int, nargs="?", default=48)
    parser.add_argument("batch", type=int, nargs="?", default=6)
    side, b = vars(parser.parse_args()).values()
    torch.set_num_threads(1)
    print(f"{side} x {side} pixels, {b} images of either kind a step\n")
    training(side, b)
    translation(side)
