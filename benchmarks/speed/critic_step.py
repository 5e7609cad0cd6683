"""Cost of a critic's private step against a plain one: python -m benchmarks.speed.critic_step [patients] [side]

One step of the WGAN-GP critic, gradient penalty and all, on U patients with K images each, on one thread, without the
fakes and the generator (the same for both). Plain: the same U K images in one batch. Private: a gradient for
each patient alone, clipped, summed, with noise from the operating system.
The ways take turns, so that a busy machine slows all of them: only ratios within a run count. Memory: how far each way
lifts the resident size, at most, above what was there before its first step.
"""

from __future__ import annotations

import os

from benchmarks.shared.clock import forget_peak, measure_alone, read_memory, time_in_turns
from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable

import torch

from harmonize.game import make_critic_losses, make_fakes, make_players
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

TURNS = 7
WAYS = ("plain", "private")
LATENT = 32


def step(way: str, side: int, width: int, patients: int, views: int) -> Callable[[], object]:
    inputs, n = (1, side, side), patients * views
    data = {"train": Rows(torch.rand(n, *inputs) * 2 - 1, torch.arange(n) % 2, torch.arange(n) // views)}
    own = make_players(LATENT, inputs, width, ema=0.9, start=None, seed=0, device=torch.device("cpu"))
    aux = make_fakes(own.generator, torch.Generator().manual_seed(0), batch=n, views=views, device=torch.device("cpu"))
    objective = make_critic_losses(inputs, 10.0)
    if way == "plain":
        plain = open_access(data, batch=n, seed=0)
        return lambda: plain.gradient(own.critic, objective, plain.draw(), aux)
    how = Protection(sampling=1.0, views=views, noise=1.0)
    private = open_private(data, how, counts=NOTHING)
    return lambda: private.gradient(own.critic, objective, private.draw(), aux)


def lifted(way: str, side: int, width: int, patients: int, views: int) -> float:
    """MiB, in a process of its own: what one way leaves allocated would serve the next."""
    torch.set_num_threads(1)
    one = step(way, side, width, patients, views)
    forget_peak()  # the peak so far was of imports and fakes
    before = read_memory("VmRSS")
    one()
    return read_memory() - before


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("patients", type=int, nargs="?", default=32)
    parser.add_argument("side", type=int, nargs="?", default=48)
    patients, side = vars(parser.parse_args()).values()
    torch.set_num_threads(1)
    print(f"{patients} patients a step, {side} px, median of {TURNS} turns; times the plain step of the same images\n")
    print(
        "| width | parameters | K | plain, ms | private | private, all at once | MiB: plain | private | all at once |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for width in (8, 16):
        for views in (1, 4):
            shape = (side, width, patients, views)
            ways = {way: step(way, *shape) for way in WAYS}
            seconds = time_in_turns(ways, TURNS, clock=time.perf_counter)
            found = {name: statistics.median(each) for name, each in seconds.items()}
            memory = [measure_alone(lifted, way, *shape) for way in WAYS]
            own = make_players(LATENT, (1, side, side), width, ema=0.9, start=None, seed=0, device=torch.device("cpu"))
            base = found.pop("plain")
            print(
                f"| {width} | {sum(p.numel() for p in own.critic.parameters()):,} | {views} | {1000 * base:.1f} | "
                + " | ".join(f"{s / base:.2f}" for s in found.values())
                + " | "
                + " | ".join(f"{m:.0f}" for m in memory)
                + " |"
            )
