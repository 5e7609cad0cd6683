"""How many mini-batches a method takes gradients of in one round, found by a round on invented patients of zeros.

Methods are only comparable for equal work, and a method may replace the run's own: FedRep trains for epochs of its own,
pFedMe takes K gradients of each batch, Per-FedAvg two or three, PGFed one more of everybody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.randomness import seeded
from federation.rehearsal import zero_patients
from federation.task import Task
from privacy.dp.access import Access, Draw, Gradient, Objective, Sample, Split, open_access
from privacy.dp.moments import Embed, Moments
from privacy.message import Call, Message, Params

EVERYBODY = 4  # invented patients


class LocalSteps(NamedTuple):
    """Gradients of mini-batches in a round at one hospital: fixed, and those of so many passes over its patients."""

    fixed: int
    epochs: int

    def __str__(self) -> str:
        passes = f"{self.epochs} epoch{'s' * (self.epochs != 1)}" if self.epochs else ""
        return " and ".join(filter(None, (str(self.fixed) if self.fixed or not passes else "", passes)))


@dataclass
class _Counting:
    """Access that counts gradients in mini-batches, and computes none. batches: of one epoch."""

    inner: Access
    batches: int
    counted: int = 0

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def epoch(self) -> int:
        return self.batches

    def size(self, split: Split) -> int:
        return self.inner.size(split)

    def shares(self, classes: int) -> Tensor:
        return self.inner.shares(classes)

    def draw(self, *, full: bool = False) -> Draw | Sample:
        return self.inner.draw(full=full)

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Gradient:
        everybody = isinstance(draw, Draw) and len(draw.y) == EVERYBODY
        self.counted += self.batches if everybody else 1
        return Gradient({n: torch.zeros_like(p) for n, p in module.named_parameters() if p.requires_grad}, 0.0)

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        return 0.0

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        return self.inner.moments(embed, classes, width=width, radius=radius)


def local_steps(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> LocalSteps:
    """What a method does in the first round. One gradient may cost several passes through a network (FENDA, MoE).

    Raises:
        Whatever the algorithm raises.
    """

    work = replace(work, optimizer="sgd", momentum=0.0)  # which takes least time, and as many steps

    def counted(work: Work, batches: int) -> int:
        access = open_access(zero_patients(task, EVERYBODY), batch=2, seed=0, balance=False)
        counting = _Counting(access, batches)
        site = Site("rehearsal", task, work, counting)
        with seeded(0):
            state = algorithm.start(initial, {site.name: algorithm.introduce(site)})
            counting.counted, call = 0, Call("rehearsal", 1, "train", {})
            algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        return counting.counted

    if work.steps is None:
        base = counted(work, 1)
        epochs = counted(work, 2) - base
        return LocalSteps(base - epochs, epochs)
    one, two = (replace(work, steps=n) for n in (1, 2))
    base = counted(one, 1)
    a_step, epochs = counted(two, 1) - base, counted(one, 2) - base
    return LocalSteps(base - a_step - epochs + a_step * work.steps, epochs)
