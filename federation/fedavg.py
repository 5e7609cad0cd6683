"""FedAvg: average the sites' models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Correction, Descent, Site, Work
from federation.parameters import loaded, mean, prefixed, read, section
from federation.task import Task
from privacy.message import Call, Message, Params

Weights: TypeAlias = Literal["size", "uniform"]


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """w <- sum_k (n_k / n) w_k. weights: by number of training examples, or uniform."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedavg"] = "fedavg"
    weights: Weights = "size"

    def network(self, task: Task) -> nn.Module:
        return task.network()

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return []

    def introduce(self, site: Site) -> Message:
        return Message()

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return Message(prefixed("model", initial))

    def send(self, state: State, site: str, call: Call) -> Message:
        return state

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        descent = descend_from(site, module, memory)
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return Message(prefixed("model", merged(replies, self.weights)))

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(received.tensors, "model")


def descend_from(site: Site, module: nn.Module, memory: Memory, *, correction: Correction | None = None) -> Descent:
    """A round of local training on the task's loss that goes on with the optimizer state in the site's memory."""
    return site.descend(
        module, site.task.objective, correction=correction, optimizer=section(memory.tensors, "optimizer")
    )


def reply(module: nn.Module, site: Site) -> Message:
    """What leaves a site that shares its whole model: the parameters, and its weight n_k."""
    return Message(prefixed("model", read(module)), {"n": site.size()})


def merged(replies: Mapping[str, Message], weights: Weights) -> Params:
    """The mean of the replies' models. Replies are in the order of their sites, so the sum is the same every time."""
    shares = [float(str(r.facts["n"])) if weights == "size" else 1.0 for r in replies.values()]
    return mean([section(r.tensors, "model") for r in replies.values()], shares)
