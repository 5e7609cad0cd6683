"""APPLE: each site predicts with a mixture of all sites' core models and learns the mixing weights.

Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022, as described in
the slides of Luo's proposal (2025). The slides do not give the schedule, its length, the rates and the start of p;
those here are of the released code (pFL-APPLE). That code sums outputs layer by layer, which is the same only for
affine layers without norms; here parameters are mixed. Its pull has no 1/2, so its mu is half of this one, and its
cores start independently. The slides do not say which M cores to take: after a first full download a site requests
those with the largest |p_ij|. Buffers are the site's own: p may be negative, and mixed running variances then too.

Core models and the shares p_0 are sent to all sites, not only to the coordinator, so `recipient` is "sites". p stays at
the site; only with M does the coordinator learn which cores a site requests. Weight decay would pull p to 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from federation.algorithm import Memory, Recipient, State
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, site_weights
from federation.parameters import loaded, prefixed, read_parameters, section, select_parameters, trainable_parameters
from privacy.message import Call, Json, Message, Params, as_list, as_mapping
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Apple:
    """w_i = sum_j p_ij c_j; c_i <- c_i - eta_1 grad F_i(w_i); p_i <- p_i - eta_2 (grad F_i(w_i) + mu s(r) (p_i - p_0)).

    eta_2: learning rate of p; eta_1 is `lr` of the local work. mu: largest strength of the pull to p_0, which `weights`
    sets to n_j / n or 1 / K. s(r) falls from 1 over L rounds (0.001^(r/L) or a half cosine), then is 0. M: cores a site
    downloads in a round; null is all. cores: whether all cores start from the same parameters.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    recipient: ClassVar[Recipient] = "sites"

    name: Literal["apple"] = "apple"
    eta_2: float = 1e-3
    mu: float = 0.1
    schedule: Literal["exponential", "cosine"] = "exponential"
    L: int = 16
    M: int | None = None
    cores: Literal["common", "independent"] = "common"
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                eta_2=(self.eta_2 >= 0, ">= 0"),
                mu=(self.mu >= 0, ">= 0"),
                L=(self.L >= 1, ">= 1"),
                M=(self.M is None or self.M >= 1, ">= 1 or null"),
            )
        )

    network = FedAvg.network
    complaints = FedAvg.complaints

    def introduce(self, site: Site) -> Message:
        core = read_parameters(self.network(site.task)) if self.cores == "independent" else {}
        return Message(prefixed("core", core), {"n": site.size()})

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        tensors = dict(prefixed("start", initial))
        for site, introduction in introductions.items():
            tensors |= prefixed(f"core/{site}", section(introduction.tensors, "core"))
        n = dict(sorted(site_weights(introductions, self.weights).items()))
        return Message(tensors, {"p_0": {site: count / sum(n.values()) for site, count in n.items()}, "asked": {}})

    def send(self, state: State, site: str, call: Call) -> Message:
        sites, start = as_mapping(state.facts["p_0"]), section(state.tensors, "start")
        wanted_sites = as_list(as_mapping(state.facts["asked"]).get(site))
        sent: dict[str, Tensor] = {}
        first = call.merged.get(site, 0) == 0
        for name in sites:
            core = section(state.tensors, f"core/{name}")
            if name == site and first:
                sent.update(prefixed(f"core/{name}", {**start, **core}))
            elif name != site and (first or self.M is None or name in wanted_sites):
                sent.update(prefixed(f"core/{name}", core or {n: value.clone() for n, value in start.items()}))
        return Message(sent, {"p_0": sites})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        mixture, sites = self._mixture(site, received, memory), sorted(as_mapping(received.facts["p_0"]))
        p_0, pull = _p_0(received, mixture.p), self.mu * self._s(call.round - 1)
        descent = site.descend(
            mixture,
            site.task.objective,
            trainable=lambda name: name == "p" or name.startswith("core."),
            rates={"p": self.eta_2},
            correction=lambda now: {"p": pull * (now["p"] - p_0)},
            optimizer=section(memory.tensors, "optimizer"),
        )
        p = dict(zip(sites, mixture.p.tolist(), strict=True))
        notes: dict[str, Json] = {**{f"p/{name}": value for name, value in p.items()}, "pull": pull}
        notes["own core climbs its loss (p_ii <= 0)"] = float(p[site.name] <= 0)
        core = trainable_parameters(mixture.core)
        memory_tensors = {
            **prefixed(f"core/{site.name}", read_parameters(mixture.core)),
            **prefixed("optimizer", descent.optimizer),
        }
        wish: dict[str, Json] = {}
        if self.M is not None:
            by_weight = sorted((name for name in sites if name != site.name), key=lambda name: (-abs(p[name]), name))
            wish["asked"] = list(by_weight[: self.M])
            for name in by_weight:
                memory_tensors |= prefixed(
                    f"core/{name}", select_parameters(_core(name, received, memory), core.__contains__)
                )
        sent = prefixed("core", select_parameters(read_parameters(mixture.core), core.__contains__))
        return Message(sent, wish), Message({**memory_tensors, "p": mixture.p.detach().clone()}, {"notes": notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        new = [prefixed(f"core/{site}", section(reply.tensors, "core")) for site, reply in replies.items()]
        wishes = {site: reply.facts["asked"] for site, reply in replies.items() if "asked" in reply.facts}
        wishes_by_site = {**as_mapping(state.facts["asked"]), **wishes}
        tensors = {**state.tensors, **{name: value for core in new for name, value in core.items()}}
        return Message(tensors, {**state.facts, "asked": wishes_by_site})

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        mixture = self._mixture(site, received, memory)
        mixed = {name: value.detach() for name, value in mixture.mix_parameters().items()}
        return {**read_parameters(mixture.core), **mixed}

    def _s(self, r: int) -> float:
        """The weight of the pull towards p_0 in round r."""
        if r >= self.L:
            return 0.0
        return 0.001 ** (r / self.L) if self.schedule == "exponential" else (math.cos(math.pi * r / self.L) + 1) / 2

    def _mixture(self, site: Site, received: Message, memory: Memory) -> Mixture:
        """The mixture of this site's core with the cores of other sites."""
        sites = sorted(as_mapping(received.facts["p_0"]))
        core = loaded(self.network(site.task), _core(site.name, received, memory))
        other_cores = [_core(name, received, memory) for name in sites if name != site.name]
        p = memory.tensors.get("p", _p_0(received, next(core.parameters())))
        return Mixture(core, p, sites.index(site.name), other_cores)


class Mixture(nn.Module):
    """The module that is trained: the site's own core and p (K,). Others' cores are frozen parameters, not buffers,
    which private training does not allow.
    """

    def __init__(self, core: nn.Module, p: Tensor, own: int, others: Sequence[Params]) -> None:
        super().__init__()
        self.core, self.p, self.own = core, nn.Parameter(p.clone()), own
        stacked = [
            torch.stack([o[name] for o in others]) if others else w.new_zeros(0, *w.shape)
            for name, w in core.named_parameters()
        ]
        self.others = nn.ParameterList([nn.Parameter(tensor.detach(), requires_grad=False) for tensor in stacked])

    def mix_parameters(self) -> Params:
        """The mixture's parameters by their names in the network."""
        p, p_own = torch.cat([self.p[: self.own], self.p[self.own + 1 :]]), self.p[self.own]
        pairs = zip(self.core.named_parameters(), self.others, strict=True)
        return {name: p_own * w + torch.tensordot(p, other, dims=1) for (name, w), other in pairs}

    def forward(self, x: Tensor) -> object:
        """The network's output with the mixture's parameters and the site's own buffers."""
        return functional_call(self.core, dict(self.mix_parameters()), (x,))


def _core(name: str, received: Message, memory: Memory) -> Params:
    """A site's core: as received, else as remembered."""
    return section(received.tensors, f"core/{name}") or section(memory.tensors, f"core/{name}")


def _p_0(received: Message, like: Tensor) -> Tensor:
    """The shares of all sites, (K,), in the order of their names."""
    shares = sorted(as_mapping(received.facts["p_0"]).items())
    return torch.tensor([float(str(share)) for _, share in shares], dtype=like.dtype, device=like.device)
