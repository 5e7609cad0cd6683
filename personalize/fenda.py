"""FENDA-FL: a shared and a local feature extractor side by side, under a personal head.

Tavakoli, Emerson, Ayromlou, Jewell, Krishnan, Zhang, Verma, Razak: A Comprehensive View of Personalized Federated
Learning on Heterogeneous Clinical Datasets, MLHC 2024, section 3.3 and appendix F.

What the paper leaves open, and our readings. An extractor is the task's network without its head; the head is
one linear layer, as in the paper's models for tables (in segmentation a 1x1 convolution). Two extractors give no
activation maps: with a network whose own loss needs them (Cam), the loss is cross-entropy. Local extractors and heads
begin from a common start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights
from federation.models import MODELS, AnyModel
from federation.parameters import loaded, section
from federation.task import Model, Output, Task
from personalize import sharing
from personalize.sharing import Headless, new_head, split_model, without_effect
from privacy.message import Call, Message


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """No local extractor."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class Fenda:
    """w <- sum_k (n_k / n) w_k, while each local extractor w_i and each head theta_i stay at their site.

    local: the local extractor's network, which appendix F varies; null = the same as the shared one; `{name: none}` =
    no local extractor, which is FedPer.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fenda"] = "fenda"
    weights: Weights = "size"
    local: Annotated[AnyModel | Nothing, MODELS] | None = None

    def network(self, task: Task) -> nn.Module:
        shared, width, outputs = extractor(task.model, task)
        if isinstance(self.local, Nothing):
            return Parallel(task, shared, None, width, outputs)
        local, more, _ = extractor(self.local or task.model, task)
        return Parallel(task, shared, local, width + more, outputs)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return without_effect(module, is_shared, self.name)

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = site.descend(module, site.task.objective_of_method, optimizer=section(memory.tensors, "optimizer"))
        return split_model(module, is_shared, site, descent.optimizer)

    merge = sharing.merge
    model = sharing.model


def is_shared(name: str) -> bool:
    """Whether a parameter or buffer belongs to the shared extractor."""
    return name.startswith("shared.")


class Parallel(nn.Module):
    """Takes the task network's input; features (b, H_G + H_i), or (b, H_G + H_i, *spatial) in segmentation, the shared
    ones first. A single logit for two classes is compared with 0.
    """

    def __init__(self, task: Task, shared: nn.Module, local: nn.Module | None, width: int, outputs: int) -> None:
        super().__init__()
        self.shared, self.local = shared, local
        self.versus_zero = outputs == 1 and task.classes == 2
        with torch.random.fork_rng(devices=()):  # dropout draws the same numbers as with the extractors' own heads
            self.head = new_head(task, width, outputs)

    def forward(self, x: Tensor) -> Output:
        sides = [self.shared] if self.local is None else [self.shared, self.local]
        features = torch.cat([side(x).features for side in sides], dim=1)
        logits = self.head(features)
        return Output(functional.pad(logits, (1, 0)) if self.versus_zero else logits, features)


def extractor(model: Model, task: Task) -> tuple[nn.Module, int, int]:
    """A network without its head, the width of its features, and its number of logits: one, or the number of classes.

    Raises:
        ValueError: the model is for the other kind of task.
    """
    start = task.begun if model == task.model else None  # those weights are another network's
    module = replace(task, model=model, begun=start).network()
    outputs, width = module.get_parameter("head.weight").shape[:2]
    module.head = Headless(outputs)
    return module, width, 1 if outputs == 1 else task.classes
