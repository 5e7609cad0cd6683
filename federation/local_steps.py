"""The number of mini-batch gradients of a method in one round, counted in a round on invented patients of zeros.

Methods are only comparable for equal work, and a method may replace the work of the run: FedRep has its own epochs,
pFedMe takes K gradients of each batch, Per-FedAvg two or three, PGFed one more over all patients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.algorithm import Algorithm, without_loss
from federation.descent import Site, Work
from federation.randomness import use_seed
from federation.rehearsal import zero_patients
from federation.task import Task
from privacy.dp.access import Access, Draw, Gradient, Objective, Sample, Split, open_access
from privacy.dp.moments import Embed, Moments
from privacy.message import Call, Message, Params

EVERYBODY = 4  # invented patients


class LocalSteps(NamedTuple):
    """Mini-batch gradients in a round at one hospital: a fixed number, and those of `epochs` passes over patients."""

    fixed: int
    epochs: int

    def __str__(self) -> str:
        passes = f"{self.epochs} epoch{'s' * (self.epochs != 1)}" if self.epochs else ""
        return " and ".join(filter(None, (str(self.fixed) if self.fixed or not passes else "", passes)))


@dataclass
class _Counting:
    """Access that counts gradients in mini-batches, and computes none. batches: batches in one epoch."""

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
        zeros = {n: torch.zeros_like(p) for n, p in module.named_parameters() if p.requires_grad}
        return Gradient(zeros, torch.zeros(1))

    def gradient_sum(self, module: nn.Module, objective: Objective, draw: Draw | Sample) -> Params:
        counted = self.gradient(module, objective, draw).gradient
        return {name: value.long() for name, value in counted.items()}

    def measure(self, module: nn.Module, statistic: Objective, split: Split) -> float:
        return 0.0

    def moments(self, embed: Embed, classes: int, *, width: int, radius: float) -> Moments:
        return self.inner.moments(embed, classes, width=width, radius=radius)


def local_steps(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> LocalSteps:
    """The gradients that a method takes in the first round: none of one that learns by no loss. One gradient may cost
    several passes through a network (FENDA, MoE).

    Raises:
        Whatever the algorithm raises.
    """
    if without_loss(algorithm):
        return LocalSteps(0, 0)
    # the fastest optimizer; the number of steps is the same
    work = replace(work, optimizer="sgd", momentum=0.0, nesterov=False)

    def count_gradients(work: Work, batches: int) -> int:
        access = open_access(zero_patients(task, EVERYBODY), batch=2, seed=0, balance=False)
        counting = _Counting(access, batches)
        site = Site("rehearsal", task, work, counting)
        with use_seed(0):
            state = algorithm.start(initial, {site.name: algorithm.introduce(site)})
            counting.counted, call = 0, Call("rehearsal", 1, "train", {})
            algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        return counting.counted

    if work.steps is None:
        base = count_gradients(work, 1)
        epochs = count_gradients(work, 2) - base
        return LocalSteps(base - epochs, epochs)
    one_step, two_steps = (replace(work, steps=n) for n in (1, 2))
    base = count_gradients(one_step, 1)
    a_step, epochs = count_gradients(two_steps, 1) - base, count_gradients(one_step, 2) - base
    return LocalSteps(base - a_step - epochs + a_step * work.steps, epochs)
