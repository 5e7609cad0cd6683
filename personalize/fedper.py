"""FedPer: shared body, personal head.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, arXiv 1912.00818, algorithms 1
and 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import Weights, descend_from, merged, reply
from federation.parameters import loaded, prefixed, read, section, select
from federation.task import Task
from personalize.sharing import body, without_effect
from privacy.message import Call, Message, Params


@dataclass(frozen=True, kw_only=True)
class FedPer:
    """W_B <- sum_k (n_k / n) W_B,k, while each head W_P,k stays at its site. Body and head train together."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedper"] = "fedper"
    weights: Weights = "size"

    def network(self, task: Task) -> nn.Module:
        return task.network()

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return without_effect(module, body, self.name)

    def introduce(self, site: Site) -> Message:
        return Message()

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return Message(prefixed("model", initial))  # the heads' common start; they are sent until a site's first merge

    def send(self, state: State, site: str, call: Call) -> Message:
        model = section(state.tensors, "model")
        return Message(prefixed("model", select(model, body) if call.merged.get(site, 0) else model))

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = descend_from(site, module, memory)
        whole = reply(module, site)
        sent = prefixed("model", select(section(whole.tensors, "model"), body))
        head = select(read(module), lambda name: not body(name))
        kept = {**prefixed("personal", head), **prefixed("optimizer", descent.optimizer)}
        return Message(sent, whole.facts), Message(kept)

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        start = section(state.tensors, "model")
        return Message(prefixed("model", {**start, **merged(replies, self.weights)}))

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return {**section(received.tensors, "model"), **section(memory.tensors, "personal")}
