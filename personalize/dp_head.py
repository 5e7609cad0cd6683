"""A linear head for each hospital, by noisy full-batch gradient descent.

The network before its head stays as all hospitals got it. A step takes the mean gradient of all training patients, each
patient's own clipped to one norm, with noise (Song, Chaudhuri and Sarwate: Stochastic gradient descent with
differentially private updates, GlobalSIP 2013). Everybody is in every step, so nothing is sampled, and the accountant
composes the steps exactly: T of noise multiplier s sqrt(T) cost as much as one of s. What noise does to the single
iterates w_t mostly goes in their mean, in which w_t has weight t (Shamir and Zhang: Stochastic gradient descent for
non-smooth optimization, ICML 2013): after each step, mean += 2 / (t + 1) (w_t - mean).

With `rounds: 1` every hospital descends alone and sends its head once. With `rounds: 30, steps: 1, others: 1` it is
federated gradient descent: one step a round on the mean gradient of all. A hospital with n patients ends with

    w = (n own + r sum_j n_j w_j) / (n + r sum_j n_j),  r = `others`, j over the other hospitals,

own and w_j being the means of iterates that left. So the model costs no more than what left. r = 0 is local. A hospital
that never answered gets the mean of the others.

With `others: null` the weight follows the noise, which is public. u is the variance of the noise in a number of the
mean of a hospital's T gradients, v that of the others' together, v = sum_j n_j^2 u_j / (sum_j n_j)^2:

    w = (1 - s) own + s sum_j n_j w_j / sum_j n_j,  s = u / (u + v + k^2),

as a mean of two noised numbers that differ by about k (DIFFER) in truth is best weighted. Without noise it is local.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, merged, site_weights
from federation.parameters import (
    average_models,
    loaded,
    make_zeros,
    prefixed,
    section,
    select_parameters,
    trainable_parameters,
)
from personalize.sharing import is_head
from privacy.message import Call, Message, Params
from privacy.settings_error import out_of_range, refuse

DIFFER = 0.01  # in numbers of a mean gradient, where features have a mean square of 1


@dataclass(frozen=True, kw_only=True)
class DpHead:
    """rounds, steps: in each round each hospital takes so many steps of size `lr`. others: r, or null: by the noise.
    begin: at 0, where all classes are as likely, or with the head that the network came with (`given`), if public
    pictures shaped it.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    needs_classes: ClassVar = "its steps are for the bounded slope of cross-entropy"
    without_batches: ClassVar = "each step takes all training examples"

    name: Literal["dp_head"] = "dp_head"
    rounds: int = 1
    steps: int = 30
    lr: float = 2.0
    others: float | None = None
    begin: Literal["zero", "given"] = "zero"

    def __post_init__(self) -> None:
        limits = {"rounds": (1, 10**4), "steps": (1, 10**4), "lr": (1e-6, 1e6), "others": (0.0, 1.0)}
        refuse(out_of_range(self, **limits))

    network = FedAvg.network
    introduce = FedAvg.introduce

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if isinstance(getattr(module, "head", None), nn.Linear):
            return []
        return ["dp_head learns a linear layer called head, and this network has none: take mlp or cnn"]

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        first = select_parameters(initial, is_head)
        first = first if self.begin == "given" else make_zeros(first)
        return Message({**prefixed("model", {**initial, **first}), **prefixed("mean", first)}, {"n": 0.0})

    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model")).eval()
        for name, p in module.named_parameters():
            p.requires_grad_(p.requires_grad and is_head(name))
        w, averaged = select_parameters(trainable_parameters(module), is_head), section(received.tensors, "mean")
        for t in range((call.round - 1) * self.steps + 1, call.round * self.steps + 1):
            gradient, _, deviation = site.access.gradient(module, site.task.objective, site.draw(full=True))
            with torch.no_grad():
                for name, value in w.items():
                    value.sub_(self.lr * gradient[name])
                averaged = {name: old + 2 / (t + 1) * (w[name] - old) for name, old in averaged.items()}
        n = site.size()
        head_parameters = {name: p.detach() for name, p in w.items()}
        facts = {"n": n, "noise": deviation**2 / (call.round * self.steps)}
        return Message({**prefixed("model", head_parameters), **prefixed("mean", averaged)}, facts), Message(
            prefixed("mean", averaged), facts
        )

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        parts = {part: merged(replies, "size", part) for part in ("model", "mean")}
        new = {**prefixed("model", parts["model"]), **prefixed("mean", parts["mean"])}
        sizes = site_weights(replies, "size")
        noise = sum(n**2 * float(str(replies[site].facts["noise"])) for site, n in sizes.items())
        return Message({**state.tensors, **new}, {"n": sum(sizes.values()), "noise": noise})

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        start, everyone = section(received.tensors, "model"), section(received.tensors, "mean")
        site_mean, n = section(memory.tensors, "mean") or everyone, float(str(memory.facts.get("n", 0)))
        total = float(str(received.facts["n"]))
        r = self._by_noise(n, total, memory, received) if self.others is None else self.others
        weights = [(1 - r) * n, r * total]
        return {**start, **(average_models([site_mean, everyone], weights) if sum(weights) > 0 else everyone)}

    def _by_noise(self, n: float, total: float, memory: Message, received: Message) -> float:
        """The r for which others have the weight s. See the head of this file."""
        if not 0 < n < total:
            return 0.0 if n else 1.0
        u = float(str(memory.facts["noise"]))
        v = max(0.0, float(str(received.facts["noise"])) - n**2 * u) / (total - n) ** 2
        return u * n / ((v + DIFFER**2) * (total - n))
