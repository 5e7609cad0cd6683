"""FedProx: averaging, with a penalty on the distance of each site from the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, equation 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from, reply
from federation.parameters import loaded, prefixed, section
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedProx:
    """Local loss F_k(w) + mu/2 |w - w^t|^2; mu = 0 is FedAvg. The proximal term covers parameters, not buffers."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedprox"] = "fedprox"
    mu: float = 0.01
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(unmet(self, mu=(self.mu >= 0, ">= 0")))

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        w_t = section(received.tensors, "model")
        module = loaded(self.network(site.task), w_t)

        def proximal_gradient(w: Params) -> Params:  # gradient of mu/2 |w - w^t|^2
            return {name: self.mu * (value - w_t[name]) for name, value in w.items()}

        descent = descend_from(site, module, memory, correction=proximal_gradient)
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    merge = FedAvg.merge
    model = FedAvg.model
