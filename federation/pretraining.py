"""Pretraining of a network on labelled public pictures, before any hospital is asked.

The coordinator makes the initial parameters of every method, so each method can begin with these, and they cost no
privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from federation.descent import Site, Work
from federation.parameters import read_parameters
from federation.randomization import build_disturbance
from federation.randomness import use_seed
from federation.task import Task
from privacy.dp.access import Rows, Split, open_access
from privacy.message import Params
from privacy.settings_error import out_of_range, refuse

HEAD = "head."
Translate: TypeAlias = Callable[[Tensor], Tensor]
"""translate(x (b, *inputs)) -> the same pictures in another space, in the same unit."""


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """on: a prior, or labelled `public_pictures`; pictures: the most that are used. epochs, lr, batch: of training, by
    Adam. strength: of random disturbances, 1 = as in `federation.randomization`, 0 = mirror images only. head: kept, or
    fresh = drawn at random, if the classes are not those of the pictures. seed: of the training.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["pretrained"] = "pretrained"
    on: str
    pictures: int = 1200
    epochs: int = 10
    lr: float = 2e-3
    batch: int = 24
    strength: float = 0.0
    head: Literal["kept", "fresh"] = "kept"
    seed: int = 0

    def __post_init__(self) -> None:
        refuse(
            out_of_range(
                self, pictures=(16, 100_000), epochs=(1, 1000), lr=(1e-6, 1.0), batch=(2, 1024), strength=(0.0, 3.0)
            )
        )


def pretrain_network(
    task: Task, how: Pretrained, x: Tensor, y: Tensor, *, low: float, high: float, through: Translate | None = None
) -> Params:
    """Parameters of the task's network, trained on pictures x (n, *inputs) with labels y (n,).

    low, high: the range of values for disturbances, in the unit of the pictures. through: translates disturbed
    pictures, if patients' images are translated too. A fresh head is left out.
    """
    work = Work(lr=how.lr, batch=how.batch, epochs=how.epochs)
    rows: dict[Split, Rows] = {
        "train": Rows(x, y, torch.arange(len(x))),
        "validation": Rows(x[:0], y[:0], torch.arange(0)),
    }
    disturb = build_disturbance(how.strength, low, high)

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = disturb(x, y, generator)
        return x if through is None else through(x), y

    access = open_access(rows, batch=how.batch, seed=how.seed, augment=augment)
    with use_seed(how.seed):
        module = task.network()
        Site("public pictures", task, work, access).descend(module, task.objective)
    parameters = read_parameters(module)
    return {name: part for name, part in parameters.items() if how.head == "kept" or not name.startswith(HEAD)}


def start_task_with(task: Task, params: Params) -> Task:
    """The same task, with these initial parameters for its networks."""
    return replace(task, begun=params)
