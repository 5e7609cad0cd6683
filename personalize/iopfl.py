"""IOP-FL inside: FedAvg, but a site predicts with a running mean of its own models after local training.

Jiang, Yang, Cheng, Dou: IOP-FL: Inside-Outside Personalization for Federated Medical Image Segmentation, IEEE
Transactions on Medical Imaging 2023, equations 3 and 4. Taken literally, equation 4 multiplies the personal model
by 1 - tau each round and never adds weights again, so that it shrinks to the last step. We read it as
P_k <- (1 - tau) P_k + tau w_k, where w_k is the site's model after local training from the received global one: w_k is
then the last global model moved by both gradients of the equation, and tau = 1 discards "all previous history", as
section IV.D says. The released code does the same.

P_k starts as the first global model that the site received. Buffers are averaged in P_k, as in the code; counters take
the maximum. The paper weights sites equally; the code, by their numbers of examples. P_k is a function of what the site
sent and received: releasing it reveals nothing more, but to a new recipient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from, reply
from federation.parameters import average_models, loaded, parameter_distance, prefixed, section, trainable_parameters
from privacy.message import Call, Message, Params
from privacy.settings_error import Problem, refuse


@dataclass(frozen=True, kw_only=True)
class IopFL:
    """tau: share of the newest local model in P_k, in (0, 1]. weights: of the global model's average.

    A site predicts with P_k, or with the global model before its first round.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["iopfl"] = "iopfl"
    tau: float = 0.9
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            refuse([Problem(("tau",), f"must be in (0, 1], found {self.tau}: 1 keeps the newest local model alone")])

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        w = section(received.tensors, "model")
        module = loaded(self.network(site.task), w)
        descent = descend_from(site, module, memory)
        sent = reply(module, site)
        newest = section(sent.tensors, "model")
        adapted = average_models([section(memory.tensors, "personal") or w, newest], [1 - self.tau, self.tau])
        memory_tensors = {**prefixed("personal", adapted), **prefixed("optimizer", descent.optimizer)}
        return sent, Message(
            memory_tensors,
            {"notes": {"distance_to_global": parameter_distance(newest, w, trainable_parameters(module))}},
        )

    merge = FedAvg.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(memory.tensors, "personal") or section(received.tensors, "model")
