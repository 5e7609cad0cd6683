"""FedAvg: average the sites' models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Correction, Descent, Site, Work
from federation.parameters import average_models, prefixed, read_parameters, section
from federation.spare_network import borrow_network
from federation.task import Task
from privacy.message import Call, Message, Params

Weights: TypeAlias = Literal["size", "uniform"]


class Weighted(Protocol):
    """A method with a setting for how the coordinator weights the sites."""

    @property
    def weights(self) -> Weights:
        """`size`: by number of training examples; `uniform`: all sites equally."""
        ...


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """w <- sum_k (n_k / n) w_k. weights: by number of training examples, or uniform.

    Other methods reuse these functions, as in `send = FedAvg.send`, so the functions read no other setting of FedAvg.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedavg"] = "fedavg"
    weights: Weights = "size"

    def network(self: object, task: Task) -> nn.Module:
        return task.network()

    def complaints(self: object, module: nn.Module, work: Work, private: bool) -> list[str]:
        return []

    def introduce(self: object, site: Site) -> Message:
        return Message()

    def start(self: object, initial: Params, introductions: Mapping[str, Message]) -> State:
        return Message(prefixed("model", initial))

    def send(self: object, state: State, site: str, call: Call) -> Message:
        return state

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        with borrow_network(self, site.task, section(received.tensors, "model")) as module:
            descent = descend_from(site, module, memory)
            return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    def merge(self: Weighted, state: State, replies: Mapping[str, Message]) -> State:
        return Message(prefixed("model", merged(replies, self.weights)))

    def model(self: object, site: Site, received: Message, memory: Memory) -> Params:
        return section(received.tensors, "model")


def descend_from(site: Site, module: nn.Module, memory: Memory, *, correction: Correction | None = None) -> Descent:
    """One round of local training on the task's loss, continuing with the optimizer state in the site's memory."""
    return site.descend(
        module, site.task.objective, correction=correction, optimizer=section(memory.tensors, "optimizer")
    )


def reply(module: nn.Module, site: Site) -> Message:
    """The reply of a site that sends all parameters: the model, and its weight n_k."""
    return Message(prefixed("model", read_parameters(module)), {"n": site.size()})


def merged(replies: Mapping[str, Message], weights: Weights, part: str = "model") -> Params:
    """The weighted mean of one part of the replies. Replies are sorted by site, so the sum is reproducible."""
    return average_models(
        [section(r.tensors, part) for r in replies.values()], [*site_weights(replies, weights).values()]
    )


def site_weights(messages: Mapping[str, Message], weights: Weights) -> dict[str, float]:
    """The weight of each site: its number of training examples (fact `n`), or 1 if weights are uniform."""
    return {site: float(str(message.facts["n"])) if weights == "size" else 1.0 for site, message in messages.items()}
