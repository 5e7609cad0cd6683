"""FedProx: averaging, with each site held near the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, equation 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import Weights, descend_from, merged, reply
from federation.parameters import loaded, prefixed, section
from federation.task import Task
from privacy.message import Call, Message, Params


@dataclass(frozen=True, kw_only=True)
class FedProx:
    """Local loss F_k(w) + mu/2 |w - w^t|^2; mu = 0 is FedAvg. The proximal term covers parameters, not buffers."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedprox"] = "fedprox"
    mu: float = 0.01
    weights: Weights = "size"

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise ValueError(f"mu must be >= 0, found {self.mu}")

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
        w_t = section(received.tensors, "model")
        module = loaded(self.network(site.task), w_t)

        def proximal(w: Params) -> Params:  # gradient of mu/2 |w - w^t|^2
            return {name: self.mu * (value - w_t[name]) for name, value in w.items()}

        descent = descend_from(site, module, memory, correction=proximal)
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return Message(prefixed("model", merged(replies, self.weights)))

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(received.tensors, "model")
