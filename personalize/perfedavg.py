"""Per-FedAvg: train a model that performs well after one gradient step on a site's own patients.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020, algorithm 1: minimize mean_i f_i(w - alpha grad f_i(w)). A local step takes three batches:
w~ = w - alpha grad f(w, D); w <- w - beta (I - alpha hess f(w, D'')) grad f(w~, D'). Its cheaper variants leave the
Hessian out (first-order) or take (grad f(w + delta v) - grad f(w - delta v)) / (2 delta) for its product with v
(Hessian-free).

Our readings: beta is the work's `lr`, and the work's batches are the number of such steps, so a round uses two or
three times as many batches as other methods. A site predicts with the merged model after one step along the gradient
over all its training examples, taken in evaluation mode, the mode of prediction. Batch norms update their statistics
wherever a gradient is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from federation.algorithm import Memory
from federation.descent import Site, Work, find_plain_sgd_problems
from federation.fedavg import FedAvg, Weights, reply
from federation.parameters import add_scaled, loaded, make_zeros, section, subtract_parameters, trainable_parameters
from privacy.dp.access import Draw
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet

CHUNK = 256  # examples of the last step at a time


@dataclass(frozen=True, kw_only=True)
class PerFedAvg:
    """alpha: rate of the step at a site. delta: of the Hessian-free differences, small. weights: of the mean.

    alpha = 0 is FedAvg by plain SGD (on every second or third batch).
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["perfedavg"] = "perfedavg"
    alpha: float = 0.01
    variant: Literal["first-order", "hessian-free"] = "first-order"
    delta: float = 1e-3
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        refuse(unmet(self, alpha=(self.alpha >= 0, ">= 0"), delta=(self.delta > 0, "> 0")))

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = find_plain_sgd_problems(work, self.name)
        if private:
            problems.append(
                "perfedavg takes a gradient of a site's patients each time that its model is scored, which the plan of "
                "private training does not hold: train it without differential privacy, or choose ditto"
            )
        return problems

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model")).train()
        for _ in range(site.steps()):
            w = {name: p.detach().clone() for name, p in trainable_parameters(module).items()}
            inner = site.gradient(module, site.task.objective, site.draw())
            _set_params(module, add_scaled(w, plus=inner, times=-self.alpha))
            outer = site.gradient(module, site.task.objective, site.draw())
            if self.variant == "hessian-free":
                outer = add_scaled(outer, plus=self._hessian_product(site, module, w, outer), times=-self.alpha)
            _set_params(module, add_scaled(w, plus=outer, times=-site.work.lr))
        return reply(module, site), Message()

    merge = FedAvg.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        w = section(received.tensors, "model")
        module = loaded(self.network(site.task), w).eval()
        return {
            **w,
            **add_scaled(
                {n: w[n] for n in trainable_parameters(module)}, plus=_full_gradient(site, module), times=-self.alpha
            ),
        }

    def _hessian_product(self, site: Site, module: nn.Module, w: Params, v: Params) -> Params:
        """The Hessian's product with v, at w on a batch of its own."""
        third, ends = site.draw(), []
        for sign in (1.0, -1.0):
            _set_params(module, add_scaled(w, plus=v, times=sign * self.delta))
            # The same dropout at both ends: any other difference would be divided by delta.
            with torch.random.fork_rng(enabled=sign > 0):
                ends.append(site.gradient(module, site.task.objective, third))
        return {n: slope / (2 * self.delta) for n, slope in subtract_parameters(*ends).items()}


def _set_params(module: nn.Module, params: Params) -> None:
    """Write these values into the trained parameters."""
    with torch.no_grad():
        for name, p in trainable_parameters(module).items():
            p.copy_(params[name])


def _full_gradient(site: Site, module: nn.Module) -> Params:
    """Gradient of the mean loss over all training examples.

    Raises:
        ValueError: data access is private; the privacy plan does not include this gradient.
    """
    draw = site.draw(full=True)
    if not isinstance(draw, Draw):
        raise ValueError("perfedavg was asked to adapt a model under differential privacy; its complaints say why not")
    total = make_zeros(dict(trainable_parameters(module)))
    for part in torch.split(torch.arange(len(draw.y), device=draw.y.device), CHUNK):
        slope = site.gradient(module, site.task.objective, Draw(draw.x[part], draw.y[part], draw.patient[part]))
        total = add_scaled(total, plus=slope, times=len(part) / len(draw.y))
    return total
