"""Methods that differ only in which parameters are shared. A site trains its whole network as in FedAvg; then the
shared part is averaged and the rest stays.

    name               stays at the site                       source
    fedper             the head                                Arivazhagan et al., arXiv 1912.00818, algorithms 1 and 2
    lg_fedavg          everything but the head                 Liang et al., arXiv 2001.01523, algorithm 1
    fedbn              normalization layers                    Li et al., ICLR 2021, algorithm 1
    splitnn            the first `depth` parts                 Wicaksana et al. (CusFL), JBHI 2022, section II
    private_intercept  the bias of the last layer              none: a floor, which learns class shares alone

FedBN means batch norm; here group, layer and instance norms stay too, so that it can be trained privately. Its mean is
uniform, the others' is weighted by n_k. LG-FedAvg's released code begins with a model that FedAvg trained, averages
uniformly, and picks rounds by test data; here it begins at the common random start. Vepakomma et al. use the name
SplitNN for another protocol, which exchanges activations and their gradients; CusFL compares with this one, which
exchanges only parameters, and splits after its third block.

The private intercept begins at the log odds of the hospital's own class shares, unless training draws the classes
equally often. Begun at random it would need more steps than most runs have: Adam moves it by at most about the learning
rate a step, and a disease of 1 % is 4.6 away. For this each hospital tells its class shares once, in the introduction;
under differential privacy with noise, which is paid for once, because the intercept shapes every later gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, descend_from
from federation.parameters import loaded, section
from federation.promised import resolve_name
from personalize import sharing
from personalize.sharing import SHARED, Shared, merge_shared, part_names, split_model, without_effect
from privacy.message import Call, Json, Message, Params, as_list, as_mapping
from privacy.settings_error import Problem, refuse, unmet

INTERCEPT = "private_intercept"
DEPTH = 3  # CusFL, section IV.C: after the third convolution-pooling block


@dataclass(frozen=True, kw_only=True)
class Partial:
    """W_S <- sum_k (n_k / n) W_S,k for the shared part S, while each site keeps its own rest.

    weights: null = as in the method's paper. depth: of splitnn, how many of the first parts stay (the stem is 1, then
    blocks); null = 3.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedper", "lg_fedavg", "fedbn", "splitnn", "private_intercept"] = "fedper"
    weights: Weights | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        problems = unmet(self, depth=(self.depth is None or self.depth >= 0, ">= 0"))
        if self.depth is not None and self.kind != "splitnn":
            text = f"belongs to splitnn, found depth {self.depth} with {self.name}: leave it out"
            problems.append(Problem(("depth",), text))
        refuse(problems)

    @property
    def kind(self) -> str:
        """Which of the names it computes as; a subclass may have another name."""
        return resolve_name(self, SHARED)

    @property
    def needs_classes(self) -> str:
        """What it needs classes for; empty: for nothing."""
        return "its private intercept begins at the shares of classes" if self.kind == INTERCEPT else ""

    def shared(self, module: nn.Module) -> Shared:
        """A predicate that says which of this network's parameters and buffers are shared."""
        return SHARED[self.kind](module, DEPTH if self.depth is None else self.depth)

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        before = len(part_names(module)) - 1
        remedies = {
            "fedbn": "choose a network with norm layers",
            "splitnn": f"choose a depth from 1 to {before}" if before else "choose a network with more than a head",
            "private_intercept": "choose a network whose head has a bias and other parameters",
        }
        return without_effect(module, self.shared(module), self.name, remedies.get(self.kind, "choose another network"))

    def introduce(self, site: Site) -> Message:
        if self.kind != INTERCEPT or site.work.balance:
            return Message()
        shares: list[Json] = site.shares().tolist()
        return Message({}, {"shares": shares})

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        shares_by_site = {
            site: introduction.facts["shares"]
            for site, introduction in sorted(introductions.items())
            if "shares" in introduction.facts
        }
        state = sharing.start(self, initial, introductions)
        return Message(state.tensors, {"shares": shares_by_site} if shares_by_site else {})

    def send(self, state: State, site: str, call: Call) -> Message:
        message, shares_by_site = sharing.send(self, state, site, call), as_mapping(state.facts.get("shares"))
        is_first = site in shares_by_site and not call.merged.get(
            site, 0
        )  # only this site's own shares, until it has an intercept
        return Message(message.tensors, {"shares": shares_by_site[site]} if is_first else {})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = descend_from(site, module, memory)
        return split_model(module, self.shared(module), site, descent.optimizer)

    @property
    def merge_weights(self) -> Weights:
        """How replies are weighted: as the settings say, or as in the method's paper."""
        return self.weights or ("uniform" if self.kind == "fedbn" else "size")

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        merged = merge_shared(state, replies, self.merge_weights)
        return Message(merged.tensors, state.facts)

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        model = sharing.model(self, site, received, memory)
        if "shares" not in received.facts or section(memory.tensors, "personal"):
            return model
        labels = site.size() * math.prod(site.task.spatial)
        return {**model, "head.bias": prior_odds(as_list(received.facts["shares"]), labels, model["head.bias"])}


def prior_odds(shares: Sequence[Json], labels: int, bias: Tensor) -> Tensor:
    """The bias of a last layer with which a network that knows only the class shares has the lowest loss: their logs.

    With one logit, for two classes, the log odds. A class counts half a label more than it has, so that an absent one
    is finite.

    Args:
        shares: (classes,), which sum to 1. labels: how many they are of. bias: any, for its form.
    """
    p = torch.tensor([float(str(share)) for share in shares], dtype=torch.float64)
    log = (p * labels + 0.5).log() - math.log(labels + 0.5 * len(p))
    if len(bias) == 1 and len(p) == 2:
        return (log[1:] - log[:1]).to(bias)
    return log.repeat(len(bias) // len(p)).to(bias)  # a head of two, as in cam, has each class twice
