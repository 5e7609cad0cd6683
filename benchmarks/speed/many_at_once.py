"""Many small hospitals on one machine: python -m benchmarks.speed.many_at_once [--hospitals 16] [--turns 9]

What a simulation could save by training its hospitals together. Each of them has a network, an Adam and a batch of its
own; all make the same number of steps.

* loop: one hospital after the other, as the simulation does it, without access, messages and files.
* stacked: one step of all hospitals by `torch.func` (`vmap` over stacked parameters), Adam on stacked tensors. `apart`:
  the largest difference of any parameter at the end, both ways computed in float64.
* processes: two processes with half of the hospitals each. Their bound is the loop's CPU time over the CPU time of the
  slower process: what two idle cores could gain. The gain by the clock, which other jobs disturb, stands beside it.

One thread each; the ways take turns, and the least CPU time of each counts.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import copy
import multiprocessing
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.optim.adam import adam

from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.task import Task
from privacy.dp.access import Batch

STEPS, BATCH = 4, 24
TASKS = {
    "cnn 16-24-32-48, 48 px": Task(Cnn(norm="group"), (1, 48, 48), 2),
    "cnn 8-16-32, 3 x 32 px": Task(Cnn(widths=(8, 16, 32), norm="group"), (3, 32, 32), 2),
    "mlp 10, 13 features": Task(Mlp(), (13,), 2),
}


class Hospitals(NamedTuple):
    """Their networks, and what each learns from: x (H, STEPS, BATCH, ...), y (H, STEPS, BATCH)."""

    task: Task
    networks: list[nn.Module]
    x: Tensor
    y: Tensor


class Clocked(NamedTuple):
    """Seconds of the processor and of the clock."""

    cpu: float
    wall: float


def hospitals(task: Task, number: int) -> Hospitals:
    torch.manual_seed(0)
    networks = [task.network() for _ in range(number)]
    return Hospitals(
        task, networks, torch.randn(number, STEPS, BATCH, *task.inputs), torch.randint(2, (number, STEPS, BATCH))
    )


class Adam:
    """The function behind torch's class, on any tensors."""

    def __init__(self, values: list[Tensor]) -> None:
        self.values, self.steps = values, [torch.tensor(0.0) for _ in values]
        self.means, self.squares = ([torch.zeros_like(v) for v in values] for _ in range(2))

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        adam(
            self.values, gradients, self.means, self.squares, [], self.steps, lr=1e-3, weight_decay=0.0, beta1=0.9,
            beta2=0.999, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def loop(who: Hospitals) -> list[Tensor]:
    """(H, *shape) of each parameter at the end."""
    ends = []
    for network, x, y in zip(who.networks, who.x, who.y, strict=True):
        params = list(network.parameters())
        values = [p.detach().clone() for p in params]
        rule = Adam([p.detach() for p in params])
        for step in range(STEPS):
            loss = who.task.objective(network, Batch(x[step], y[step])).mean()
            rule.step(list(torch.autograd.grad(loss, params)))
        ends.append([p.detach().clone() for p in params])
        with torch.no_grad():
            for p, value in zip(params, values, strict=True):
                p.copy_(value)
    return [torch.stack(each) for each in zip(*ends, strict=True)]


def stacked(who: Hospitals) -> list[Tensor]:
    """The same, all hospitals in one step."""
    base = who.networks[0]
    params = {name: p.detach().clone() for name, p in stack_module_state(who.networks)[0].items()}

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return who.task.objective(lambda *given: functional_call(base, own, given), Batch(x, y)).mean()

    of_each = vmap(grad(loss))
    rule = Adam(list(params.values()))
    for step in range(STEPS):
        found = of_each(params, who.x[:, step], who.y[:, step])
        rule.step([found[name] for name in params])
    return list(params.values())


def clocked(work: Callable[[], object]) -> Clocked:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Clocked(time.process_time() - cpu, time.perf_counter() - wall)


def serve(pipe: Connection, who: Hospitals) -> None:
    """A process that trains its hospitals whenever it is asked."""
    torch.set_num_threads(1)
    while pipe.recv():
        pipe.send(clocked(lambda: loop(who)))


def in_two(pipes: list[Connection]) -> Clocked:
    begun = time.perf_counter()
    for pipe in pipes:
        pipe.send(True)
    cpu = max(pipe.recv().cpu for pipe in pipes)
    return Clocked(cpu, time.perf_counter() - begun)


def tried(task: Task, number: int, turns: int) -> str:
    """A line of the table."""
    who = hospitals(task, number)
    halves = [range(number // 2), range(number // 2, number)]
    ours, theirs = zip(*(multiprocessing.Pipe() for _ in halves), strict=True)
    processes = [
        multiprocessing.Process(
            target=serve,
            args=(pipe, Hospitals(task, [who.networks[h] for h in half], who.x[list(half)], who.y[list(half)])),
        )
        for pipe, half in zip(theirs, halves, strict=True)
    ]
    for process in processes:
        process.start()
    exact = Hospitals(task, [copy.deepcopy(network).double() for network in who.networks], who.x.double(), who.y)
    apart = max(float((one - two).abs().max()) for one, two in zip(loop(exact), stacked(exact), strict=True))
    times: dict[str, list[Clocked]] = {"loop": [], "stacked": [], "processes": []}
    for _ in range(turns):
        times["loop"].append(clocked(lambda: loop(who)))
        times["stacked"].append(clocked(lambda: stacked(who)))
        times["processes"].append(in_two(list(ours)))
    for pipe, process in zip(ours, processes, strict=True):
        pipe.send(False)
        process.join()
    cpu = {way: min(each.cpu for each in found) for way, found in times.items()}
    wall = {way: min(each.wall for each in found) for way, found in times.items()}
    each = 1000 * cpu["loop"] / number / STEPS
    return (
        f"{each:.2f} | {cpu['loop'] / cpu['stacked']:.2f} | {apart:.0e} | {cpu['loop'] / cpu['processes']:.2f} | "
        f"{wall['loop'] / wall['processes']:.2f}"
    )


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--hospitals", type=int, default=16)
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(
        f"{given.hospitals} hospitals, {STEPS} steps of {BATCH} each; gains over a loop, least of {given.turns} turns\n"
    )
    print("| network | loop, CPU ms a step | stacked | apart | 2 processes: bound | by the clock |")
    print("|---|---|---|---|---|---|")
    for name, task in TASKS.items():
        print(f"| {name} | {tried(task, given.hospitals, given.turns)} |", flush=True)
