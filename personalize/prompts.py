"""Prompt learning's floor: a frozen CLIP that reads sentences a person wrote (zero-shot), with nothing learnt.

Radford et al., ICML 2021, section 3.1. The others of pFedMoAP's tables need no method of their own, because a network
`clip` has one parameter, the context: CoOp (Zhou et al., IJCV 2022) is `local` on it, PromptFL (Guo et al., IEEE TMC
2023) `fedavg`, PromptFL + FT `fedavg_local` or a `fine_tuned` variant, PromptFL + FedProx `fedprox`, and PromptFL +
FedAMP `heurfedamp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from federation.algorithm import Algorithm, Memory, State
from federation.as_begun import AsBegun
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.clip import Clip, ClipModule
from federation.task import Task
from personalize.at_home import method_itself
from privacy.message import Call, Message, Params

SPLIT = ("cusfl", "fenda", "perfcl")
"""Methods that take a network apart before its head, where a network with a prompt has nothing."""

ONLY = ("pfedmoap", "zero_shot")
"""Methods of networks with a prompt."""


def no_prompt(algorithm: Algorithm, task: Task) -> list[str]:
    """A complaint if a method and a prompt do not go together; it could not even make its network."""
    method = method_itself(algorithm).name
    if isinstance(task.model, Clip) and method in SPLIT:
        return [f"{method} takes a network apart, and a prompt is one tensor: choose another method, as pfedmoap"]
    if not isinstance(task.model, Clip) and method in ONLY:
        name = getattr(task.model, "name", type(task.model).__name__)
        return [f"{method} learns prompts of a frozen CLIP, found {name}: say model: {{name: clip, ...}}"]
    return []


def needs_prompt(module: nn.Module, method: str) -> list[str]:
    """A complaint if a network is no `ClipModule`."""
    if isinstance(module, ClipModule):
        return []
    return [f"{method} learns prompts of a frozen CLIP, found {type(module).__name__}: say model: {{name: clip, ...}}"]


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """p(c | x) = softmax_c(cos(f(x), T^(c)) / tau), where T^(c) = g(template with c), averaged over templates."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    rounds: ClassVar[int] = 1
    without_loss: ClassVar = "nothing is trained"
    needs_classes: ClassVar = "it compares pictures with the words for classes"

    name: Literal["zero_shot"] = "zero_shot"

    def network(self, task: Task) -> nn.Module:
        if not isinstance(task.model, Clip):
            return task.network()
        return task.give_frozen(ClipModule(task.model, task.classes, written=True))

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return needs_prompt(module, self.name)

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        return Message(), Message()

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        return AsBegun.model(self, site, received, memory)
