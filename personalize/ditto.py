"""Ditto: FedAvg trains a global model; beside it each site trains a personal model that is pulled towards the global
one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, algorithm 1 with
FedAvg as its solver: v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t)). Both models step on the same batch, s steps
each, from a common start, as in the code of the FENDA benchmark; the paper leaves batches and start open. lambda = 0 is
local training, and w is FedAvg's, whatever lambda is.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, reply
from federation.parameters import loaded, parameter_distance, prefixed, read_parameters, section, trainable_parameters
from federation.task import Output
from personalize import twins
from personalize.twins import losses_of_both, outputs_of_both, with_start
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Ditto:
    """lam: lambda of the penalty lambda/2 |v_k - w^t|^2, over parameters, not buffers. weights: of FedAvg.

    A site predicts with v_k, or with w before its first round.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["ditto"] = "ditto"
    lam: float = 1.0
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(unmet(self, lam=(self.lam >= 0, ">= 0")))

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if work.optimizer != "sgd" or work.lr * self.lam < 2:
            return []
        return [f"ditto needs lr * lam < 2, or v swings away from w; found {work.lr} * {self.lam}: lower one of them"]

    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return with_start(initial)

    send = twins.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        w = section(received.tensors, "model")
        v = section(memory.tensors, "personal") or section(received.tensors, "start") or w
        shared = loaded(self.network(site.task), w)
        pair = _Twins(shared, loaded(deepcopy(shared), v))
        centre = {f"personal.{name}": value for name, value in w.items()}

        def pull(params: Params) -> Params:  # gradient of lambda/2 |v - w^t|^2
            return {n: self.lam * (p - centre[n]) for n, p in params.items() if n in centre}

        descent = site.descend(
            pair, losses_of_both(site.task), correction=pull, optimizer=section(memory.tensors, "optimizer")
        )
        v = read_parameters(pair.personal)
        memory_tensors = {**prefixed("personal", v), **prefixed("optimizer", descent.optimizer)}
        distance_of_models = parameter_distance(v, w, trainable_parameters(pair.personal))
        return reply(pair.shared, site), Message(memory_tensors, {"notes": {"distance_to_global": distance_of_models}})

    merge = twins.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(memory.tensors, "personal") or section(received.tensors, "model")


class _Twins(nn.Module):
    """Both models as one module, so that one use of the patients trains both. They share no parameter."""

    def __init__(self, shared: nn.Module, personal: nn.Module) -> None:
        super().__init__()
        self.shared, self.personal = shared, personal

    def forward(self, x: Tensor, both: bool = True) -> tuple[Output, Output]:
        return outputs_of_both(self.shared, self.personal, x)
