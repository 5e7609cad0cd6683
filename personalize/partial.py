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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, descend_from
from federation.parameters import loaded
from personalize import sharing
from personalize.sharing import SHARED, Shared, merge_shared, parts, split_model, without_effect
from privacy.message import Call, Message
from privacy.settings_error import Problem, refuse, unmet

DEPTH = 3  # CusFL, section IV.C: after the third convolution-pooling block


@dataclass(frozen=True, kw_only=True)
class Partial:
    """W_S <- sum_k (n_k / n) W_S,k for the shared part S, while each site keeps its own rest.

    weights: null = as in the method's paper. depth: of splitnn, how many of the first parts stay (the stem is 1, then
    blocks); null = 3.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedper", "lg_fedavg", "fedbn", "splitnn", "private_intercept"] = "fedper"
    weights: Weights | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        problems = unmet(self, depth=(self.depth is None or self.depth >= 0, ">= 0"))
        if self.depth is not None and self.name != "splitnn":
            text = f"belongs to splitnn, found depth {self.depth} with {self.name}: leave it out"
            problems.append(Problem(("depth",), text))
        refuse(problems)

    def shared(self, module: nn.Module) -> Shared:
        """A predicate that says which of this network's parameters and buffers are shared."""
        return SHARED[self.name](module, DEPTH if self.depth is None else self.depth)

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        before = len(parts(module)) - 1
        remedies = {
            "fedbn": "choose a network with norm layers",
            "splitnn": f"choose a depth from 1 to {before}" if before else "choose a network with more than a head",
            "private_intercept": "choose a network whose head has a bias and other parameters",
        }
        return without_effect(module, self.shared(module), self.name, remedies.get(self.name, "choose another network"))

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = descend_from(site, module, memory)
        return split_model(module, self.shared(module), site, descent.optimizer)

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return merge_shared(state, replies, self.weights or ("uniform" if self.name == "fedbn" else "size"))

    model = sharing.model
