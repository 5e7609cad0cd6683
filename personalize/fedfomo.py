"""FedFomo: each site mixes in the models that have a lower loss on its own validation patients.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
equations 3 to 5. All models are compared with theta_i of the round before, and the site's own newest model is one of
the candidates, as in released code. If no model is better, the site goes back to the model of the round before, as the
equations say. Choice of M: the paper sometimes draws at random; here only the sums of weights so far decide, negative
ones included, so that a model that did harm makes room for one not yet tried. Buffers are mixed like parameters.

A site's model is sent to all other sites, not only to the coordinator, so `recipient` is "sites". With M the
coordinator learns which models a site requests. A site without validation patients cannot take part; its introduction
fails. The site's model after its own training is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, Recipient, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, descend_from
from federation.parameters import average_models, loaded, prefixed, read_parameters, section, trainable_parameters
from privacy.message import Call, Json, Message, Params, as_list, as_mapping
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedFomo:
    """theta_i <- theta_i' + sum_n w_n (theta_n - theta_i'), with theta_i' the site's own model of the round before.

    w_n is (L(theta_i') - L(theta_n)) / |theta_n - theta_i'| where that is positive, then normalized to sum to 1; L: the
    loss on the site's validation patients. M: how many others' models a site downloads in a round; null is all.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    recipient: ClassVar[Recipient] = "sites"

    name: Literal["fedfomo"] = "fedfomo"
    M: int | None = None

    def __post_init__(self) -> None:
        refuse(unmet(self, M=(self.M is None or self.M >= 1, ">= 1 or null")))

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if not private:
            return []
        return [
            "fedfomo looks at validation patients once for every model that it receives, and how many those are is not "
            "known before the round: train it without privacy, or choose heurfedamp or apple"
        ]

    def introduce(self, site: Site) -> Message:
        if site.size("validation") == 0:
            raise ValueError(
                f"fedfomo weighs models by their loss on validation patients, and {site.name} has none: give it "
                "some, or choose heurfedamp or apple"
            )
        return Message()

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        sites: list[Json] = [*sorted(introductions)]
        return Message(prefixed("start", initial), {"sites": sites, "merged": [], "asked": {}})

    def send(self, state: State, site: str, call: Call) -> Message:
        first = call.merged.get(site, 0) == 0
        sent = dict(prefixed("start", section(state.tensors, "start"))) if first else {}
        other_sites = [name for name in as_list(state.facts["merged"]) if name != site]
        wanted_sites = as_list(as_mapping(state.facts["asked"]).get(site))
        if self.M is not None:
            other_sites = other_sites[: self.M] if first else [name for name in other_sites if name in wanted_sites]
        if call.request == "finish":
            return Message(sent)
        for name in other_sites:
            sent |= prefixed(f"model/{name}", section(state.tensors, f"model/{name}"))
        return Message(sent, {"models": other_sites, "sites": state.facts["sites"]})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        newest = self.model(site, received, memory)
        other_models = {
            str(name): section(received.tensors, f"model/{name}") for name in as_list(received.facts["models"])
        }
        before = section(memory.tensors, "before") or newest
        weights = self._weights(site, before, {**other_models, site.name: newest}) if other_models else {}
        mixed = _mix_models(before, {**other_models, site.name: newest}, weights) if other_models else newest
        module = loaded(self.network(site.task), mixed)
        descent = descend_from(site, module, memory)
        model = prefixed("model", read_parameters(module))
        affinity = {str(name): 0.0 for name in as_list(received.facts["sites"]) if name != site.name}
        affinity |= {name: float(str(value)) for name, value in as_mapping(memory.facts.get("affinity")).items()}
        affinity |= {name: affinity[name] + weights[name] for name in other_models}
        wish: dict[str, Json] = {}
        if self.M is not None:
            wish["asked"] = list(sorted(affinity, key=lambda name: (-affinity[name], name))[: self.M])
        memory_tensors = {**model, **prefixed("before", newest), **prefixed("optimizer", descent.optimizer)}
        notes: dict[str, Json] = {f"weight/{name}": weight for name, weight in weights.items()}
        return Message(model, wish), Message(memory_tensors, {"affinity": dict(affinity), "notes": notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        tensors = dict(state.tensors)
        for site, reply in replies.items():
            tensors |= prefixed(f"model/{site}", section(reply.tensors, "model"))
        seen = sorted({str(name) for name in as_list(state.facts["merged"])} | set(replies))
        wishes = {site: reply.facts["asked"] for site, reply in replies.items() if "asked" in reply.facts}
        wishes_by_site = {**as_mapping(state.facts["asked"]), **wishes}
        return Message(tensors, {**state.facts, "merged": list(seen), "asked": wishes_by_site})

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return section(memory.tensors, "model") or section(received.tensors, "start")

    def _weights(self, site: Site, before: Params, candidates: Mapping[str, Params]) -> dict[str, float]:
        """Equation 4: each candidate's gain in validation loss by distance, zero where it is worse."""
        module = self.network(site.task)
        names = list(trainable_parameters(module))

        def loss(params: Params) -> float:
            return site.measure(loaded(module, params), site.task.drop_smoothing().objective, "validation")

        reference, weights = loss(before), dict[str, float]()
        for name, params in sorted(candidates.items()):
            distance = sum(float((params[n].double() - before[n].double()).square().sum()) for n in names) ** 0.5
            weight = (reference - loss(params)) / distance if distance > 0 else 0.0
            weights[name] = weight if math.isfinite(weight) else 0.0  # a model that diverged must not stop the others
        return weights


def _mix_models(before: Params, candidates: Mapping[str, Params], weights: Mapping[str, float]) -> Params:
    """Since the positive weights sum to 1, before + sum_n w_n (theta_n - before) is the weighted mean of the
    theta_n.
    """
    better = sorted(name for name, weight in weights.items() if weight > 0)
    return (
        average_models([candidates[name] for name in better], [weights[name] for name in better]) if better else before
    )
