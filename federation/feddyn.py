"""FedDyn: each site's loss gets a linear and a quadratic term, so that its own optimum moves to the common one.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR 2021,
algorithm 1.

What the paper leaves open, and our readings. Its inner problem is an exact minimum; a round of local work replaces
it, so the site's gradient at the minimum is taken from the first-order condition, g_k - alpha (theta_k - theta). Its
objective is the plain mean of the sites' losses; `weights: size` makes it the mean over examples as in the authors'
released code, by alpha n_mean / n_k at site k (and a site with its own alpha is weighted by alpha / alpha_k). The
released code also clips gradients to norm 10 and reports means of the sites' models; here it is the theta of algorithm
1, which all sites get. Buffers are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from, merged, site_weights
from federation.parameters import (
    add_scaled,
    loaded,
    make_zeros,
    mark_buffers,
    prefixed,
    read_parameters,
    section,
    subtract_parameters,
    trainable_parameters,
)
from privacy.message import Call, Json, Message, Params, as_mapping
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedDyn:
    """theta_k <- argmin L_k(w) - <g_k, w> + alpha/2 |w - theta|^2; g_k <- g_k - alpha (theta_k - theta);
    h <- h - alpha/m sum_k (theta_k - theta); theta <- mean theta_k - h/alpha, with m the number of all sites.

    alpha: the paper tries 0.1, 0.01 and 0.001. A small one trusts a site more and steps further.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    averaging: ClassVar = True

    name: Literal["feddyn"] = "feddyn"
    alpha: float = 0.1
    weights: Weights = "uniform"

    def __post_init__(self) -> None:
        refuse(unmet(self, alpha=(self.alpha > 0, "> 0 (fedavg has no such term)")))

    network = FedAvg.network
    complaints = FedAvg.complaints

    def introduce(self, site: Site) -> Message:
        return Message({}, {"n": site.size()} if self.weights == "size" else {})

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        n = site_weights(introductions, self.weights)
        mean = sum(n.values()) / len(n)
        scales: dict[str, Json] = {site: mean / max(1.0, value) for site, value in sorted(n.items())}
        return Message(prefixed("model", initial), {"scales": scales})

    def send(self, state: State, site: str, call: Call) -> Message:
        scale = as_mapping(state.facts["scales"])[site]
        return Message(prefixed("model", section(state.tensors, "model")), {"scale": scale})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        theta = section(received.tensors, "model")
        alpha = self.alpha * float(str(received.facts["scale"]))
        module = loaded(self.network(site.task), theta)
        g = section(memory.tensors, "gradient") or make_zeros({n: theta[n] for n in trainable_parameters(module)})

        def regularizer_gradient(w: Params) -> Params:  # gradient of -<g, w> + alpha/2 |w - theta|^2
            return {n: alpha * (value - theta[n]) - g[n] for n, value in w.items()}

        descent = descend_from(site, module, memory, correction=regularizer_gradient)
        w = read_parameters(module)
        g = {n: g[n] - alpha * (w[n] - theta[n]) for n in g}
        memory_tensors = {**prefixed("gradient", g), **prefixed("optimizer", descent.optimizer)}
        return Message(mark_buffers(module, prefixed("model", w))), Message(memory_tensors)

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        theta = section(state.tensors, "model")
        mean, buffers = merged(replies, "uniform"), merged(replies, "uniform", "buffer")
        step = subtract_parameters(mean, theta)
        share = len(replies) / len(as_mapping(state.facts["scales"]))
        h = add_scaled(section(state.tensors, "h") or make_zeros(step), plus=step, times=-self.alpha * share)
        moved = add_scaled(mean, plus=h, times=-1.0 / self.alpha)
        return Message({**prefixed("model", {**buffers, **moved}), **prefixed("h", h)}, state.facts)

    def absorb(self, memory: Params, lost: Params, received: Message) -> Params:
        """g_k by the theta_k that the coordinator reads, as its h is."""
        alpha = self.alpha * float(str(received.facts["scale"]))
        shift = {f"gradient/{n}": alpha * value for n, value in section(lost, "model").items()}
        return add_scaled(memory, plus=shift)

    model = FedAvg.model
