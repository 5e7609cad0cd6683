"""HeurFedAMP: the coordinator makes for each site a mixture that weights models by cosine similarity to the site's
model; the site trains near that mixture.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021: FedAMP's
algorithm 1 with the heuristic attention for deep networks. The paper leaves open where local training starts: at u_i
here. Its alpha_k is a sequence; here it is one number. A site that was never merged counts with the common start.
Cosines are of parameters; buffers are mixed with the same weights.

Site i gets a mixture of all sites' models, in which one of them may weigh most, so `recipient` is "sites". w_i, the
site's model after its training, is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from federation.algorithm import Memory, Recipient, State
from federation.descent import Site
from federation.fedavg import FedAvg, descend_from
from federation.local import Local
from federation.parameters import (
    average_models,
    loaded,
    parameter_distance,
    prefixed,
    read_parameters,
    section,
    select_parameters,
    trainable_parameters,
)
from privacy.message import Call, Json, Message, Params, as_list
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class HeurFedAMP:
    """u_i = sum_j xi_ij w_j; w_i <- argmin F_i(w) + lam / (2 alpha) |w - u_i|^2.

    xi_ij = (1 - xi) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h)) for j != i. xi: xi_ii, the share
    of a site's own model; null is 1 / K.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    recipient: ClassVar[Recipient] = "sites"

    name: Literal["heurfedamp"] = "heurfedamp"
    lam: float = 1.0
    alpha: float = 1e4
    sigma: float = 25.0
    xi: float | None = None

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                lam=(self.lam >= 0, ">= 0"),
                alpha=(self.alpha > 0, "> 0"),
                sigma=(self.sigma >= 0, ">= 0"),
                xi=(self.xi is None or 0 <= self.xi <= 1, "in [0, 1] or null"),
            )
        )

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        cosines = torch.ones(len(introductions), len(introductions), dtype=torch.float64)
        tensors = {**prefixed("start", initial), "between/attention": self._attention(cosines)}
        return Message(tensors, {"sites": [*sorted(introductions)]})

    def send(self, state: State, site: str, call: Call) -> Message:
        if call.request == "finish" and call.merged.get(site, 0):
            return Message()
        sites = [str(name) for name in as_list(state.facts["sites"])]
        row = state.tensors["between/attention"][sites.index(site)].tolist()
        terms = [(_model(state, name), share) for name, share in zip(sites, row, strict=True) if share > 0]
        return Message(prefixed("model", average_models([model for model, _ in terms], [share for _, share in terms])))

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        u = section(received.tensors, "model")
        module = loaded(self.network(site.task), u)
        pull = self.lam / self.alpha
        descent = descend_from(
            site, module, memory, correction=lambda w: {name: pull * (value - u[name]) for name, value in w.items()}
        )
        w, names = read_parameters(module), trainable_parameters(module)
        notes: dict[str, Json] = {"distance to u": parameter_distance(w, u, sorted(names))}
        parameters, buffers = (
            select_parameters(w, names.__contains__),
            select_parameters(w, lambda name: name not in names),
        )
        memory_tensors = {**prefixed("model", w), **prefixed("optimizer", descent.optimizer)}
        sent = {**prefixed("model", parameters), **prefixed("buffer", buffers)}
        return Message(sent), Message(memory_tensors, {"notes": notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        tensors, names = dict(state.tensors), list[str]()
        for site, reply in replies.items():
            tensors |= prefixed(f"model/{site}", section(reply.tensors, "model"))
            tensors |= prefixed(f"buffer/{site}", section(reply.tensors, "buffer"))
            names = sorted(section(reply.tensors, "model"))
        now = Message(tensors, state.facts)
        models = [_model(now, str(name)) for name in as_list(state.facts["sites"])]
        flat = torch.stack([torch.cat([model[name].double().flatten() for name in names]) for model in models])
        unit = functional.normalize(flat, dim=1)
        return Message({**tensors, "between/attention": self._attention(unit @ unit.T)}, state.facts)

    model = Local.model

    def _attention(self, cosines: Tensor) -> Tensor:
        """(K, K) cosines -> (K, K) weights; each row sums to 1."""
        k = len(cosines)
        diagonal = torch.eye(k, dtype=torch.float64)
        if k == 1:
            return diagonal
        xi = 1.0 / k if self.xi is None else self.xi
        other_weights = torch.softmax((self.sigma * cosines).masked_fill(diagonal.bool(), -torch.inf), dim=1)
        return (1.0 - xi) * other_weights + xi * diagonal


def _model(state: State, site: str) -> Params:
    """A site's newest merged model with its buffers, or the common start."""
    site_model = {**section(state.tensors, f"model/{site}"), **section(state.tensors, f"buffer/{site}")}
    return site_model or section(state.tensors, "start")
