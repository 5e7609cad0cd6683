"""FedSGD: the hospitals' gradients are added up, and the coordinator takes the step.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, section 2: C = 1, one step a round. Every patient is in every step:

    w <- w - lr sum_k G_k / sum_k n_k,  G_k the sum of the gradients of the n_k patients of hospital k.

A step needs nothing but two sums over hospitals. So the hospitals may hide their parts from everybody
(`train.secure_sum`), and then share the noise of differential privacy (`privacy.shared`): the sum has the noise that
one hospital alone would have to add. What noise does to the single iterates w_t mostly goes in their mean, in which w_t
has weight t (Shamir and Zhang: Stochastic gradient descent for non-smooth optimization, ICML 2013): after each step,
mean += 2 / (t + 1) (w_t - mean). The mean is the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.parameters import loaded, make_zeros, prefixed, section
from federation.summing import SUM
from privacy.dp.access import SUM_UNIT
from privacy.message import Call, Message, Params
from privacy.settings_error import out_of_range, refuse

HEAD = "head."


@dataclass(frozen=True, kw_only=True)
class FedSGD:
    """rounds: steps. trained: the layer called head, or all layers. begin: where a trained head begins: at 0, where all
    classes are as likely, or with the numbers that the network came with.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    shares_noise: ClassVar = True
    without_batches: ClassVar = "each step takes all training examples"

    name: Literal["fedsgd"] = "fedsgd"
    rounds: int = 30
    lr: float = 2.0
    trained: Literal["head", "all"] = "head"
    begin: Literal["zero", "given"] = "zero"

    def __post_init__(self) -> None:
        refuse(out_of_range(self, rounds=(1, 10**4), lr=(1e-6, 1e6)))

    network = FedAvg.network
    introduce = FedAvg.introduce
    send = FedAvg.send

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = []
        if self.trained == "head" and not isinstance(getattr(module, "head", None), nn.Linear):
            problems.append("fedsgd learns a linear layer called head, and this network has none: say trained: all")
        if any(p.is_floating_point() for p in module.buffers()) and self.trained == "all":
            problems.append(
                "fedsgd sends gradients of parameters, and this network keeps running statistics that have none: take "
                "a network with group norm"
            )
        return problems

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        head = {name: value for name, value in initial.items() if name.startswith(HEAD)}
        first = {**initial, **(make_zeros(head) if self.begin == "zero" else {})}
        return Message({**prefixed("model", first), **prefixed("mean", first)}, {"steps": 0})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model")).eval()
        for name, p in module.named_parameters():
            p.requires_grad_(p.requires_grad and (self.trained == "all" or name.startswith(HEAD)))
        total = site.access.gradient_sum(module, site.task.objective, site.draw(full=True))
        return Message(prefixed(SUM, total), {"n": site.size()}), Message()

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        n = sum(float(str(reply.facts["n"])) for reply in replies.values())
        if not n > 0:
            raise ValueError(f"a step needs patients, found {n:g}")
        model, mean = dict(section(state.tensors, "model")), dict(section(state.tensors, "mean"))
        t = _steps(state) + 1
        for name in section(next(iter(replies.values())).tensors, SUM):
            total = add_up([reply.tensors[f"{SUM}/{name}"] for reply in replies.values()])
            step = total.double() * (self.lr * SUM_UNIT / n)
            model[name] = (model[name].double() - step).to(model[name].dtype)
            mean[name] = mean[name] + 2 / (t + 1) * (model[name] - mean[name])
        return Message({**prefixed("model", model), **prefixed("mean", mean)}, {"steps": t})

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(received.tensors, "mean")


def add_up(parts: list[Tensor]) -> Tensor:
    """The sum of whole numbers, int64."""
    return torch.stack(parts).sum(dim=0)


def _steps(state: State) -> int:
    """How many steps were taken."""
    return int(str(state.facts["steps"]))
