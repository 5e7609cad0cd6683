"""PGFed and PGFedMo: each site's objective also includes the other sites' risks, to first order.

Luo, Mendieta, Chen, Wu: PGFed: Personalize Each Client's Global Objective for Federated Learning, ICCV 2023, algorithm
1, as described in the slides of Luo's proposal (2025). Our readings: the slides' estimate must be f_j(theta_i) =
f_j(theta_j) + grad f_j(theta_j)^T (theta_i - theta_j); the g^(1) that are sent are those of the previous round, and M
is the number of sites that sent one; p_i is renormalized over the sites that took part; j = i is in the sum, as
printed. alpha is kept at 0 or above, as in the released code: risks are positive, so without a bound it only falls. As
printed, the step of alpha takes the mean gradient's product with theta_i for every j (`slopes: mean`), which no longer
cancels against g^(1), so that even its sign can be wrong; `slopes: each` sends every gradient and is exact. PGFed-CE, a
row of the paper's tables, is left out: its definition is in an appendix that our sources do not have.

f and its gradient are those of the model in evaluation mode, on all training patients. The evaluated model is the
site's after its training from the global start: with mu = 0, FedAvg-local. With `slopes: each` a site's gradient is
sent to all sites; otherwise sums of gradients are, from which two sites can compute each other's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory, Recipient, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, merged, reply
from federation.local import Local
from federation.parameters import (
    add_scaled,
    loaded,
    make_zeros,
    prefixed,
    read_parameters,
    section,
    trainable_parameters,
)
from federation.promised import resolve_name
from privacy.message import Call, Json, Message, Params, as_list, as_mapping
from privacy.settings_error import Problem, refuse, unmet

KINDS = "pgfed", "pgfedmo"


@dataclass(frozen=True, kw_only=True)
class PGFed:
    """min f_i(theta_i) + mu sum_j alpha_ij (f_j(theta_j) + grad f_j(theta_j)^T (theta_i - theta_j)).

    eta_2: step of alpha; 0 leaves it at alpha_0 and needs no risks. alpha_0: null is 1 / K; the paper's is 1 / M with M
    the sites sampled in a round. beta: momentum of the others' gradient, of pgfedmo only, where null is 0.5. Defaults
    are of released code.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["pgfed", "pgfedmo"] = "pgfed"
    mu: float = 0.1
    eta_2: float = 0.01
    alpha_0: float | None = None
    beta: float | None = None
    slopes: Literal["mean", "each"] = "mean"
    weights: Weights = "size"

    def __post_init__(self) -> None:
        problems = unmet(
            self,
            mu=(self.mu >= 0, ">= 0"),
            eta_2=(self.eta_2 >= 0, ">= 0"),
            alpha_0=(self.alpha_0 is None or self.alpha_0 >= 0, ">= 0"),
            beta=(self.beta is None or 0 <= self.beta < 1, "in [0, 1)"),
        )
        if self.beta and resolve_name(self, KINDS) == "pgfed":
            text = f"belongs to pgfedmo, found {self.beta}: say name: pgfedmo, or leave it out"
            problems.append(Problem(("beta",), text))
        refuse(problems)

    @property
    def momentum(self) -> float:
        """beta of pgfedmo; 0 for pgfed."""
        if resolve_name(self, KINDS) == "pgfed":
            return 0.0
        return 0.5 if self.beta is None else self.beta

    @property
    def recipient(self) -> Recipient:
        """All sites, if each site's gradient is sent separately."""
        return "sites" if self.slopes == "each" and self.eta_2 else "coordinator"

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if not private or self.eta_2 == 0:
            return []
        return [
            f"{self.name} learns alpha from training losses, which stay at the site in private training: say eta_2: 0 "
            f"(alpha stays at alpha_0), found {self.eta_2}"
        ]

    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        sites = sorted(introductions)
        alpha_0 = 1.0 / len(sites) if self.alpha_0 is None else self.alpha_0
        alpha = torch.full((len(sites), len(sites)), alpha_0, dtype=torch.float64)
        return Message({**prefixed("model", initial), "between/alpha": alpha}, {"sites": list(sites), "g_1": {}})

    def send(self, state: State, site: str, call: Call) -> Message:
        if call.request == "finish" and call.merged.get(site, 0):
            return Message()
        sites, g_1 = as_list(state.facts["sites"]), as_mapping(state.facts["g_1"])
        row = state.tensors["between/alpha"][sites.index(site)].tolist()
        alpha = {name: row[sites.index(name)] for name in g_1}
        gradients = {name: section(state.tensors, f"gradient/{name}") for name in g_1}
        sent = dict(prefixed("model", section(state.tensors, "model")))
        sent |= prefixed("aid", _sum((self.mu * alpha[name], gradients[name]) for name in g_1))
        if self.eta_2 == 0:
            return Message(sent)
        mean = {"mean": _sum((self.mu / len(g_1), gradients[name]) for name in g_1)} if g_1 else {}
        each = {name: _sum([(self.mu, gradients[name])]) for name in g_1}
        for key, slope in (mean if self.slopes == "mean" else each).items():
            sent |= prefixed(f"slope/{key}", slope)
        return Message(sent, {"alpha": alpha, "g_1": g_1})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        aid, before = section(received.tensors, "aid"), section(memory.tensors, "aid")
        if aid and self.momentum:
            new_velocity = add_scaled(make_zeros(aid), plus=before or make_zeros(aid), times=self.momentum)
            aid = add_scaled(new_velocity, plus=aid, times=1 - self.momentum)
        alpha = {
            name: torch.tensor(float(str(value)), dtype=torch.float64, device=site.device)
            for name, value in as_mapping(received.facts.get("alpha")).items()
        }
        descent = site.descend(
            module,
            site.task.objective,
            correction=lambda _: aid,
            after=lambda now: self._step_alpha(alpha, trainable_parameters(now), received) if alpha else None,
            optimizer=section(memory.tensors, "optimizer"),
        )
        full = site.access.gradient(module.eval(), site.task.objective, site.draw(full=True))
        read_alpha = {name: float(value) for name, value in alpha.items()}
        sent, facts = reply(module, site), dict[str, Json]()
        if self.eta_2:
            facts = {"alpha": dict(read_alpha), "risk": full.loss}
        notes: dict[str, Json] = {f"alpha/{name}": value for name, value in read_alpha.items()}
        personal = {**prefixed("model", read_parameters(module)), **prefixed("optimizer", descent.optimizer)}
        sent = Message({**sent.tensors, **prefixed("gradient", full.gradient)}, {**sent.facts, **facts})
        momentum = prefixed("aid", aid or before) if self.momentum else {}
        return sent, Message({**personal, **momentum}, {"notes": notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        sites, alpha = as_list(state.facts["sites"]), state.tensors["between/alpha"].clone()
        tensors, g_1 = dict(prefixed("model", merged(replies, self.weights))), dict[str, Json]()
        for site, answer in replies.items():
            theta, gradient = section(answer.tensors, "model"), section(answer.tensors, "gradient")
            tensors |= prefixed(f"gradient/{site}", gradient)
            g_1[site] = self.mu * (float(str(answer.facts.get("risk", 0.0))) - float(_dot(gradient, theta)))
            for other, value in as_mapping(answer.facts.get("alpha")).items():
                if other in sites and isinstance(value, float) and math.isfinite(value):
                    alpha[sites.index(site), sites.index(other)] = max(0.0, value)
        return Message({**tensors, "between/alpha": alpha}, {**state.facts, "g_1": g_1})

    model = Local.model

    def _step_alpha(self, alpha: dict[str, Tensor], theta: Params, received: Message) -> None:
        """alpha: by site, float64, never read between steps."""
        mean = section(received.tensors, "slope/mean") if self.slopes == "mean" else {}
        product = _dot(mean, theta)
        for name, g_1 in as_mapping(received.facts["g_1"]).items():
            g_2 = product if mean else _dot(section(received.tensors, f"slope/{name}"), theta)
            new_alpha = alpha[name] - self.eta_2 * (float(str(g_1)) + g_2)
            alpha[name] = torch.where(new_alpha > 0, new_alpha, 0.0)


def _sum(terms: Iterable[tuple[float, Params]]) -> Params:
    """The weighted sum of several sets of parameters."""
    total: dict[str, torch.Tensor] = {}
    for weight, params in terms:
        for name, value in params.items():
            total[name] = weight * value + total[name] if name in total else weight * value
    return total


def _dot(gradient: Params, theta: Params) -> Tensor:
    """The inner product of a gradient and parameters, (), in double precision."""
    # In the order of names: saving and loading a state changes the order of its dict.
    parts = ((gradient[n].double() * theta[n].detach().double()).sum() for n in sorted(gradient))
    return sum(parts, torch.zeros((), dtype=torch.float64))
