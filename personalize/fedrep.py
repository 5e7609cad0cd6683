"""FedRep: in each round the head is trained on the received body first, then the body under that head; only bodies are
shared.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, algorithm 1, which averages bodies uniformly. Ten epochs for the head and one for the body are of its experiments;
a round then takes eleven times as long as FedAvg's of one epoch, and spends more privacy budget accordingly.

Running statistics are not parameters: both halves update them, and they are shared with the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights
from federation.parameters import loaded, section
from personalize import sharing
from personalize.sharing import is_body, is_head, split_model, without_effect
from privacy.message import Call, Message
from privacy.settings_error import Problem, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedRep:
    """h_k <- tau epochs on the head; phi_k <- epochs on the body; phi <- mean(phi_k).

    head_epochs (tau) and body_epochs replace the epochs or steps of the local work. head_steps and body_steps: in their
    place, so many steps, for comparisons of equal work.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedrep"] = "fedrep"
    head_epochs: int = 10
    body_epochs: int = 1
    head_steps: int | None = None
    body_steps: int | None = None
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            head_epochs=(self.head_epochs >= 0, ">= 0"),
            body_epochs=(self.body_epochs >= 1, ">= 1"),
            head_steps=(self.head_steps is None or self.head_steps >= 1, ">= 1 or null"),
            body_steps=(self.body_steps is None or self.body_steps >= 1, ">= 1 or null"),
        )
        if (self.head_steps is None) != (self.body_steps is None):
            text = f"give both head_steps and body_steps or none, found {self.head_steps} and {self.body_steps}"
            problems.append(Problem((), text))
        refuse(problems)

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = without_effect(module, is_body, self.name)
        if not self.head_epochs and self.head_steps is None:
            problems.append("fedrep with head_epochs 0 never trains a head, which is fedbabu: say at least 1")
        return problems

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        optimizer = dict(section(memory.tensors, "optimizer"))
        work = (is_head, self.head_epochs, self.head_steps), (is_body, self.body_epochs, self.body_steps)
        for trainable, epochs, steps in work:
            descent = site.descend(
                module, site.task.objective, steps=steps, epochs=epochs, trainable=trainable, optimizer=optimizer
            )
            optimizer |= descent.optimizer
        return split_model(module, is_body, site, optimizer)

    merge = sharing.merge
    model = sharing.model
