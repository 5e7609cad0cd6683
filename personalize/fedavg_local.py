"""FedAvg-local: FedAvg, in which a site diagnoses with its own model after local training, before it is averaged.

A row of the comparison tables in Luo's slides on APPLE, and there the strongest simple one. It is an evaluation point
of FedAvg (McMahan et al., AISTATS 2017, algorithm 1), not another training: what travels is FedAvg's, bit for bit.
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
class FedAvgLocal:
    """w <- sum_k (n_k / n) w_k; the site keeps its newest w_k whose reply was merged. weights: as FedAvg's."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedavg_local"] = "fedavg_local"
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
        sent = reply(module, site)
        return sent, Message({**sent.tensors, **prefixed("optimizer", descent.optimizer)})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return Message(prefixed("model", merged(replies, self.weights)))

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(memory.tensors, "model") or section(received.tensors, "model")
