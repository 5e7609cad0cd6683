"""SCAFFOLD: control variates against client drift.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020, algorithm 1, option II.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work, find_plain_sgd_problems
from federation.fedavg import FedAvg, descend_from, merged
from federation.parameters import (
    add_scaled,
    loaded,
    make_zeros,
    prefixed,
    read_parameters,
    section,
    subtract_parameters,
    trainable_parameters,
)
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Scaffold:
    """y_i <- y_i - eta_l (g_i(y_i) - c_i + c); x <- x + eta_g mean(y_i - x); c <- c + |S|/N mean(c_i+ - c_i).

    global_lr: eta_g. Buffers (running statistics) have no control variate and are averaged. Needs plain SGD: option II
    computes the mean gradient from the distance, (x - y_i) / (K eta_l), which only holds for plain SGD.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    averaging: ClassVar = True

    name: Literal["scaffold"] = "scaffold"
    global_lr: float = 1.0

    def __post_init__(self) -> None:
        refuse(unmet(self, global_lr=(self.global_lr > 0, "> 0")))

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return find_plain_sgd_problems(work, self.name)

    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return Message(prefixed("model", initial), {"sites": len(introductions)})

    def send(self, state: State, site: str, call: Call) -> Message:
        return Message(state.tensors)

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        x = section(received.tensors, "model")
        module = loaded(self.network(site.task), x)
        names = trainable_parameters(module)
        c = section(received.tensors, "control") or make_zeros({n: x[n] for n in names})
        c_i = section(memory.tensors, "control") or make_zeros(c)
        drift = subtract_parameters(c, c_i)
        descent = descend_from(site, module, memory, correction=lambda _: drift)
        y = read_parameters(module)
        step = descent.steps * descent.lr
        c_plus = {n: c_i[n] - c[n] + (x[n] - y[n]) / step for n in c}  # option II
        sent = {**prefixed("model", y), **prefixed("control", subtract_parameters(c_plus, c_i))}
        return Message(sent), Message(prefixed("control", c_plus))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        x, c = section(state.tensors, "model"), section(state.tensors, "control")
        y, shift = merged(replies, "uniform"), merged(replies, "uniform", "control")
        c = add_scaled(c or make_zeros(shift), plus=shift, times=len(replies) / int(str(state.facts["sites"])))
        moved = add_scaled({n: x[n] for n in c}, plus=subtract_parameters(y, x), times=self.global_lr)
        return Message({**prefixed("model", {**y, **moved}), **prefixed("control", c)}, state.facts)

    def absorb(self, memory: Params, lost: Params, received: Message) -> Params:
        """c_i+ by which c moves as the coordinator moves it: c_i+ - c_i is sent, and lost of it is not read."""
        return {name: value - lost[name] if name in lost else value for name, value in memory.items()}

    model = FedAvg.model
