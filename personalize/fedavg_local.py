"""FedAvg-local: FedAvg, but a site predicts with its own model after local training, before averaging.

A row of the comparison tables in Luo's slides on APPLE, and the strongest simple method there. It evaluates FedAvg
(McMahan et al., AISTATS 2017, algorithm 1) at another point and does not train differently: its messages are FedAvg's,
bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from, reply
from federation.local import Local
from federation.parameters import loaded, prefixed, section
from privacy.message import Call, Message


@dataclass(frozen=True, kw_only=True)
class FedAvgLocal:
    """w <- sum_k (n_k / n) w_k; a site keeps its newest w_k whose reply was merged. weights: as FedAvg's."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedavg_local"] = "fedavg_local"
    weights: Weights = "size"

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        descent = descend_from(site, module, memory)
        sent = reply(module, site)
        return sent, Message({**sent.tensors, **prefixed("optimizer", descent.optimizer)})

    merge = FedAvg.merge
    model = Local.model
