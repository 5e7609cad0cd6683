"""A floor without training on patients: the initial network, scored at every hospital.

With `method_start` on public pictures it is the score of training on these alone, at an epsilon of 0: a model that was
trained on patients, at a privacy cost, must beat it. With random parameters it is a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg
from privacy.message import Call, Message


@dataclass(frozen=True, kw_only=True)
class AsBegun:
    """Nothing is learnt and nothing is replied."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    rounds: ClassVar[int] = 1
    without_loss: ClassVar = "nothing is trained"

    name: Literal["as_begun"] = "as_begun"

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        return Message(), Message()

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    model = FedAvg.model
