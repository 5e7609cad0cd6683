"""FedAdam, FedYogi, FedAdagrad: the coordinator treats the mean of the sites' steps as a gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021, algorithm 2.

FENDA-FL (appendix H) prints sqrt(v + tau) where Reddi has sqrt(v) + tau; here it is Reddi's, as in Flower, which
that benchmark's released code calls; there v starts at 0 and here at tau^2, the same thing for tau = 1e-9. None of the
three corrects for the zero start of m, so with a tiny tau the first step of FedAdam and FedYogi is
eta (1 - beta1) / sqrt(1 - beta2) for every parameter that moved at all: eta for FENDA's betas.

Algorithm 2 prints a plain mean of the sites' steps; Flower, and so FENDA, weights them by examples, as FedAvg does
here. Parameters get moments; buffers (running statistics) are averaged. A moment could drive a variance below zero
(FENDA, appendix H), which is why that benchmark switches the tracking of batch norms off: each batch then goes by its
own statistics in evaluation too. Training is the same either way, since batch norms train by their batch. Here buffers
are averaged, because without tracked statistics the score of a patient depends on the other patients in the batch, and
a single patient cannot be scored. Averages of variances are positive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from, merged, reply
from federation.parameters import loaded, make_zeros, mark_buffers, prefixed, section, subtract_parameters
from federation.promised import resolve_name
from privacy.message import Call, Message
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedOpt:
    """m <- beta1 m + (1 - beta1) D; v <- v's rule; x <- x + eta m / (sqrt(v) + tau), where D is the mean of x_k - x.

    v: fedadam beta2 v + (1 - beta2) D^2, fedyogi v - (1 - beta2) D^2 sign(v - D^2), fedadagrad v + D^2 (no beta2).
    eta: the coordinator's learning rate. The defaults of the betas and tau are FENDA's; the sites' rate is in the work.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedadam", "fedyogi", "fedadagrad"] = "fedadam"
    eta: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-9
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                eta=(self.eta > 0, "> 0"),
                beta1=(0 <= self.beta1 < 1, "in [0, 1)"),
                beta2=(0 <= self.beta2 < 1, "in [0, 1)"),
                tau=(self.tau > 0, "> 0"),
            )
        )

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start

    def send(self, state: State, site: str, call: Call) -> Message:
        return Message(prefixed("model", section(state.tensors, "model")))

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        descent = descend_from(site, module, memory)
        full_reply = reply(module, site)
        return Message(mark_buffers(module, full_reply.tensors), full_reply.facts), Message(
            prefixed("optimizer", descent.optimizer)
        )

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        x = section(state.tensors, "model")
        mean, buffers = merged(replies, self.weights), merged(replies, self.weights, "buffer")
        d = subtract_parameters(mean, x)
        m = section(state.tensors, "m") or make_zeros(d)
        v = section(state.tensors, "v") or {n: torch.full_like(value, self.tau**2) for n, value in d.items()}
        m = {n: self.beta1 * m[n] + (1 - self.beta1) * d[n] for n in d}
        v = {n: self._next_second_moment(v[n], d[n] ** 2) for n in d}
        moved = {n: x[n] + self.eta * m[n] / (v[n].sqrt() + self.tau) for n in d}
        return Message({**prefixed("model", {**buffers, **moved}), **prefixed("m", m), **prefixed("v", v)})

    model = FedAvg.model

    def _next_second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next second moment of parameters, by the rule of `name`; never negative."""
        kind = resolve_name(self, ("fedadam", "fedyogi", "fedadagrad"))
        if kind == "fedadagrad":
            return v + square
        if kind == "fedyogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return self.beta2 * v + (1 - self.beta2) * square
