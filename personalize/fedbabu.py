"""FedBABU: only the body is trained and shared; every head stays at the common random start during the federation.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, algorithm 1.

The paper's personal model is made after the last round, by training the received model on at each site
(`federation/finetuning.py`); this is the federated part, whose model diagnoses by a body that learnt under a random
head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import Weights
from federation.parameters import loaded, section
from federation.task import Task
from personalize.sharing import begun, body, joined, own, parted, sent, without_effect
from privacy.message import Call, Message, Params


@dataclass(frozen=True, kw_only=True)
class FedBabu:
    """W_B <- sum_k (n_k / n) W_B,k, trained under a head that nobody trains."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedbabu"] = "fedbabu"
    weights: Weights = "size"

    def network(self, task: Task) -> nn.Module:
        return task.network()

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return without_effect(module, body, self.name)

    def introduce(self, site: Site) -> Message:
        return Message()

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return begun(initial)

    def send(self, state: State, site: str, call: Call) -> Message:
        return sent(state, site, call)

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        optimizer = section(memory.tensors, "optimizer")
        descent = site.descend(module, site.task.objective, trainable=body, optimizer=optimizer)
        return parted(module, body, site, descent.optimizer)

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return joined(state, replies, self.weights)

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return own(received, memory)
