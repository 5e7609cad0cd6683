"""FedBABU: only the body is trained and shared; every head stays at the common random start during the federation.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, algorithm 1.

The paper makes the personal model after the last round, by training the received model further at each site
(`federation/finetuning.py`). This file is the federated part; its model predicts with a body trained under a random
head.
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
from personalize.sharing import is_body, split_model, without_effect
from privacy.message import Call, Message


@dataclass(frozen=True, kw_only=True)
class FedBabu:
    """W_B <- sum_k (n_k / n) W_B,k, trained under a head that is never trained."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedbabu"] = "fedbabu"
    weights: Weights = "size"

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return without_effect(module, is_body, self.name)

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        optimizer = section(memory.tensors, "optimizer")
        descent = site.descend(module, site.task.objective, trainable=is_body, optimizer=optimizer)
        return split_model(module, is_body, site, descent.optimizer)

    merge = sharing.merge
    model = sharing.model
