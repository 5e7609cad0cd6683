"""MoE: a federated expert, a local expert, and a gate that weights the two for each image.

Peterson, Kanani, Marathe: Private Federated Learning with Domain Adaptation, arXiv 1912.06733, as Wicaksana et al.
(CusFL, IEEE JBHI 2022) write it, section II, equation 1: y_i = alpha_i(x) C_G(x) + (1 - alpha_i(x)) C_i(x).

What CusFL leaves open, and our readings. Probabilities are mixed. C_G learns from its own loss, so it is FedAvg's; C_i
and the gate learn from the mixture's loss, whose gradient does not reach C_G (`joint` trains all three by the mixture's
loss alone; C_G is then no longer FedAvg's). The gate is a linear map of both experts' features (of pixels'
features the means) and a sigmoid; no gradient flows from it into the features, and it starts at 1/2 for every image.
Both experts begin at the common start.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf, log
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg, Weights
from federation.parameters import loaded, prefixed, read_parameters, section, select_parameters
from federation.task import Output, Task, pool_features
from personalize import twins
from personalize.twins import is_shared, losses_of_both, outputs_of_both, pair_params, with_start
from privacy.message import Call, Message, Params
from privacy.settings_error import Problem, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class MoE:
    """gate: alpha_i fixed at this value for every image; None = learnt. Fixed at 1 it is FedAvg, at 0 local training.

    joint: train C_G by the mixture's loss instead of its own.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True
    needs_classes: ClassVar = "it mixes probabilities of classes"

    name: Literal["moe"] = "moe"
    gate: float | None = None
    joint: bool = False
    weights: Weights = "size"

    def __post_init__(self) -> None:
        problems = unmet(self, gate=(self.gate is None or 0 <= self.gate <= 1, "in [0, 1] or null"))
        if self.joint and self.gate == 0:
            text = "with gate 0 would never train the federated expert: let the gate be learnt (null)"
            problems.append(Problem(("joint",), text))
        refuse(problems)

    def network(self, task: Task) -> nn.Module:
        return _Experts(task, self.gate, self.joint)

    complaints = FedAvg.complaints
    introduce = FedAvg.introduce

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        return with_start(select_parameters(initial, lambda name: not name.startswith("personal.")))

    send = twins.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        start = section(received.tensors, "start") or section(received.tensors, "model")
        experts = loaded(self.network(site.task), _pair_with_gate(received, memory, start))
        descent = site.descend(
            experts,
            site.task.objective if self.joint else losses_of_both(site.task),
            trainable=lambda name: self.gate is None or not _is_gate(name),
            optimizer=section(memory.tensors, "optimizer"),
        )
        after = read_parameters(experts)
        personal = {n: value for n, value in after.items() if not is_shared(n)}
        sent = Message(prefixed("model", select_parameters(after, is_shared)), {"n": site.size()})
        return sent, Message({**prefixed("personal", personal), **prefixed("optimizer", descent.optimizer)})

    merge = twins.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return _pair_with_gate(received, memory, section(received.tensors, "model"))


def _is_gate(name: str) -> bool:
    """Whether a parameter belongs to the gate."""
    return name.startswith("gate.")


def _pair_with_gate(received: Message, memory: Memory, start: Params) -> Params:
    """Parameters of both experts and the gate, as the site begins a round."""
    initial = section(received.tensors, "start") or section(received.tensors, "model")
    return pair_params(received, memory, start, select_parameters(initial, _is_gate))


class _Experts(nn.Module):
    """C_G, C_i and the gate. Logits are the logarithms of the mixed probabilities."""

    untuned = ("shared.",)

    def __init__(self, task: Task, frozen: float | None, joint: bool) -> None:
        super().__init__()
        self.shared = task.network()
        self.personal = deepcopy(self.shared)
        with torch.no_grad():
            d = self.shared.eval()(torch.zeros(1, *task.trained_inputs)).features.shape[1]
        self.shared.train()
        # Created on `meta`, it draws no random number: later draws are the same as without a gate.
        self.gate = nn.Linear(2 * d, 1, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.held, self.joint = frozen, joint

    def forward(self, x: Tensor, both: bool = False) -> Output | tuple[Output, Output]:
        """The mixture; with `apart` C_G's own output and the mixture."""
        shared_output, personal_output = outputs_of_both(self.shared, self.personal, x)
        free = shared_output if self.joint else _detach_output(shared_output)
        features = torch.cat([free.features, personal_output.features], dim=1)
        z = (
            self.gate(pool_features(features).detach())[:, 0]
            if self.held is None
            else features.new_full((len(x),), _logit(self.held))
        )
        mixture = _mix_experts(z, free, personal_output, features)
        return (shared_output, mixture) if both else mixture


def _detach_output(output: Output) -> Output:
    """The output without gradients."""
    maps = None if output.maps is None else output.maps.detach()
    return Output(output.logits.detach(), output.features.detach(), maps)


def _mix_experts(z: Tensor, shared_output: Output, personal_output: Output, features: Tensor) -> Output:
    """sigmoid(z) times `one` plus the rest times `own`. z: (b,)."""

    def spread(like: Tensor) -> Tensor:
        return z.reshape(-1, *[1] * (like.dim() - 1))

    logits = torch.logaddexp(
        functional.logsigmoid(spread(shared_output.logits)) + shared_output.logits.log_softmax(dim=1),
        functional.logsigmoid(-spread(personal_output.logits)) + personal_output.logits.log_softmax(dim=1),
    )
    if shared_output.maps is None or personal_output.maps is None:
        return Output(logits, features)
    trust = torch.sigmoid(spread(shared_output.maps))
    return Output(logits, features, trust * shared_output.maps + (1 - trust) * personal_output.maps)


def _logit(p: float) -> float:
    """The inverse of the sigmoid; infinite at 0 and 1."""
    return log(p / (1 - p)) if 0 < p < 1 else inf if p else -inf
