"""pFedMe: each site's model minimizes its loss near the global one, which minimizes the sites' Moreau envelopes.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, algorithm 1. On each of R
batches theta <- argmin f_i(theta) + lambda/2 |theta - w_i|^2, then w_i <- w_i - eta lambda (w_i - theta); the server
takes w <- (1 - beta) w + beta mean_i w_i over the sites that replied. A site predicts with theta.

Left open and read as in the released code: the inner problem is solved by K steps of gradient descent on the same
batch, starting at theta of the last batch; theta begins a round at w. The rate of these steps is the work's `lr`; R is
the number of batches of the local work. The code weights by examples where the paper does not (`weights`). Buffers
follow theta and are averaged without beta: a beta above 1 could make a variance negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work, find_plain_sgd_problems
from federation.fedavg import FedAvg, Weights, merged
from federation.parameters import (
    add_scaled,
    loaded,
    parameter_distance,
    prefixed,
    read_parameters,
    section,
    subtract_parameters,
    trainable_parameters,
)
from privacy.message import Call, Message, Params
from privacy.settings_error import Problem, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class PFedMe:
    """lam: lambda, how near theta stays to w. eta: rate of w_i at a site. beta: of w at the server. K: inner steps."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["pfedme"] = "pfedme"
    lam: float = 15.0
    eta: float = 0.005
    beta: float = 1.0
    K: int = 5
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            lam=(self.lam > 0, "> 0"),
            eta=(self.eta > 0, "> 0"),
            beta=(self.beta > 0, "> 0"),
            K=(self.K >= 1, ">= 1"),
        )
        if not problems and self.eta * self.lam > 1:
            text = f"eta * lam must be <= 1, or w steps past theta; found {self.eta} * {self.lam}: lower eta"
            problems = [Problem((), text)]
        refuse(problems)

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = find_plain_sgd_problems(work, self.name)
        if work.lr * self.lam >= 2:
            problems.append(
                f"pfedme needs lr * lam < 2, or theta swings away from w; found {work.lr} * {self.lam}: lower lr"
            )
        return problems

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model")).train()
        theta = trainable_parameters(module)
        w: Params = {name: p.detach().clone() for name, p in theta.items()}
        for _ in range(site.steps()):
            draw = site.draw()
            for _ in range(self.K):
                slope = site.gradient(module, site.task.objective, draw)
                with torch.no_grad():
                    for name, p in theta.items():
                        p.sub_(site.work.lr * (slope[name] + self.lam * (p - w[name])))
            w = {name: v - self.eta * self.lam * (v - theta[name].detach()) for name, v in w.items()}
        personal = read_parameters(module)
        buffers = {name: value for name, value in personal.items() if name not in w}
        sent = Message({**prefixed("model", w), **prefixed("buffer", buffers)}, {"n": site.size()})
        return sent, Message(
            prefixed("personal", personal), {"notes": {"distance_to_w": parameter_distance(personal, w, sorted(w))}}
        )

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        w, mean = section(state.tensors, "model"), merged(replies, self.weights)
        moved = (
            add_scaled({n: w[n] for n in mean}, plus=subtract_parameters(mean, w), times=self.beta)
            if self.beta != 1
            else mean
        )
        return Message(prefixed("model", {**merged(replies, self.weights, "buffer"), **moved}))

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(memory.tensors, "personal") or section(received.tensors, "model")
