"""APFL: each site predicts with a mixture of a local model and the federated one, and learns the mixing weight.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, arXiv 2003.13461, algorithm 1: w_i <- w_i - eta grad
f_i(w_i), v_i <- v_i - eta grad_v f_i(m), alpha_i <- alpha_i - eta_alpha d f_i(m) / d alpha_i clipped to [0, 1], with
m = alpha_i v_i + (1 - alpha_i) w_i: alpha weights the local twin. All three steps use one batch, and no gradient of m
reaches w.

That m mixes parameters. The FENDA benchmark mixes outputs (logits here); that is the default, because we compare with
its tables. For a linear model both are the same. alpha moves once a round, at the first step, by plain
gradient descent whatever the optimizer is. Released code (FedTorch, and FL4Health after it) takes as alpha's gradient
<v - w, alpha grad_v + (1 - alpha) grad_w> + 0.02 alpha with the values after that step: `variant: official`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg, Weights
from federation.parameters import loaded, prefixed, read_parameters, section, select_parameters
from federation.task import Output, Task
from personalize import twins
from personalize.twins import is_shared, losses_of_both, outputs_of_both, pair_params, with_start
from privacy.message import Call, Message, Params
from privacy.settings_error import Problem, out_of_range, refuse

DECAY = 0.02  # of `variant: official`: a term that is in no paper


@dataclass(frozen=True, kw_only=True)
class Apfl:
    """alpha: the local twin's initial weight; with `adaptive` it is learnt at the rate alpha_lr.

    With alpha fixed, 1 is local training and 0 is FedAvg. weights: of the shared twins' mean.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["apfl"] = "apfl"
    alpha: float = 0.5
    adaptive: bool = True
    alpha_lr: float = 0.01
    mix: Literal["outputs", "parameters"] = "outputs"
    variant: Literal["paper", "official"] = "paper"
    weights: Weights = "size"

    def __post_init__(self) -> None:
        problems = out_of_range(self, alpha=(0, 1))
        if not self.alpha_lr > 0:
            problems.append(Problem(("alpha_lr",), f"must be > 0, found {self.alpha_lr}: say adaptive: false"))
        refuse(problems)

    def network(self, task: Task) -> nn.Module:
        return _Mixed(task.network(), self.alpha, self.mix)

    complaints = FedAvg.complaints
    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return with_start(select_parameters(initial, is_shared))

    send = twins.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        start = section(received.tensors, "start") or section(received.tensors, "model")
        mixed = loaded(self.network(site.task), self._params(received, memory, start))
        descent = site.descend(
            mixed,
            losses_of_both(site.task),
            trainable=lambda name: self.adaptive or name != "alpha",
            rates={"alpha": 0.0},  # `after` moves it: an adaptive optimizer would take a full step for any gradient
            after=self._step_alpha_once() if self.adaptive else None,
            optimizer=section(memory.tensors, "optimizer"),
        )
        after = read_parameters(mixed)
        personal = {n: value for n, value in after.items() if not is_shared(n)}
        sent = Message(prefixed("model", select_parameters(after, is_shared)), {"n": site.size()})
        tensors = {**prefixed("personal", personal), **prefixed("optimizer", descent.optimizer)}
        return sent, Message(tensors, {"notes": {"alpha": float(after["alpha"])}})

    merge = twins.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return self._params(received, memory, section(received.tensors, "model"))

    def _params(self, received: Message, memory: Memory, start: Params) -> Params:
        """Parameters of both networks and alpha, as the site begins a round."""
        alpha = torch.tensor([self.alpha], device=next(iter(start.values())).device)
        return pair_params(received, memory, start, {"alpha": alpha})

    def _step_alpha_once(self) -> Callable[[nn.Module], None]:
        """Return a function that moves alpha after the first step of a round and does nothing after later steps."""
        steps = iter((True,))

        def move(module: nn.Module) -> None:
            if not next(steps, False):
                return
            alpha = cast(_Mixed, module).alpha
            slope = cast(Tensor, alpha.grad) if self.variant == "paper" else _official_gradient(cast(_Mixed, module))
            with torch.no_grad():
                alpha.copy_((alpha - self.alpha_lr * slope).clamp(0.0, 1.0))

        return move


def _official_gradient(mixed: _Mixed) -> Tensor:
    """alpha's gradient in the released code, from the gradients of the step just taken."""
    alpha = mixed.alpha.detach()
    total = DECAY * alpha
    for v, w in zip(mixed.personal.parameters(), mixed.shared.parameters(), strict=True):
        slope = alpha * cast(Tensor, v.grad) + (1 - alpha) * cast(Tensor, w.grad)
        total = total + ((v - w).detach() * slope).sum()
    return total


class _Mixed(nn.Module):
    """Two twins and alpha. If parameters are mixed, the mixture uses the buffers of `personal`."""

    untuned = ("alpha", "shared.")

    def __init__(self, network: nn.Module, alpha: float, mix: str) -> None:
        super().__init__()
        self.shared, self.personal = network, deepcopy(network)
        self.alpha = nn.Parameter(torch.tensor([alpha]))
        self.mix = mix

    def forward(self, x: Tensor, both: bool = False) -> Output | tuple[Output, Output]:
        """The mixture; with `apart` the shared twin's output and the mixture, whose gradient does not reach the shared
        twin.
        """
        if self.mix == "outputs":
            output, two = outputs_of_both(self.shared, self.personal, x)
            mixture = _mix_outputs(self.alpha, two, output)
        else:
            w = dict(self.shared.named_parameters())
            m = {n: self.alpha * v + (1 - self.alpha) * w[n].detach() for n, v in self.personal.named_parameters()}
            output, mixture = outputs_of_both(self.shared, lambda x: functional_call(self.personal, m, (x,)), x)
        return (output, mixture) if both else mixture


def _mix_outputs(alpha: Tensor, v: Output, w: Output) -> Output:
    """alpha v + (1 - alpha) w of two outputs; no gradient reaches w."""
    logits = alpha * v.logits + (1 - alpha) * w.logits.detach()
    maps = None if v.maps is None or w.maps is None else alpha * v.maps + (1 - alpha) * w.maps.detach()
    return Output(logits, torch.cat([v.features, w.features.detach()], dim=1), maps)
