"""Which parameters are shared: predicates on names, and the messages of all methods that share a part of the network.

A network names its parts `stem`, `blocks.k`, `head`. The coordinator does not know the predicate: the tensors in
replies are the shared ones, and the rest of the common start is sent to a site until its first merge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import Weighted, Weights, merged
from federation.parameters import NORMS, prefixed, read_parameters, section, select_parameters
from federation.task import Task
from privacy.message import Call, Message, Params

Shared: TypeAlias = Callable[[str], bool]


def is_body(name: str) -> bool:
    """All parameters except the head's."""
    return not is_head(name)


def is_head(name: str) -> bool:
    """The head's parameters."""
    return name.startswith("head.")


def all_but_intercept(name: str) -> bool:
    """All parameters except the bias of the last layer."""
    return name != "head.bias"


def all_but_norms(module: nn.Module) -> Shared:
    """All except normalization layers, their parameters and running statistics."""
    norms = tuple(f"{path}." for path, part in module.named_modules() if isinstance(part, NORMS))
    return lambda name: not name.startswith(norms)


def all_after(module: nn.Module, depth: int) -> Shared:
    """All parameters after the first `depth` parts (see `parts`)."""
    first = tuple(f"{part}." for part in part_names(module)[:depth])
    return lambda name: not name.startswith(first)


def part_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the parts in order, `stem`, `blocks.0`, ..., `head`; parts without parameters and buffers are left
    out.
    """
    names: list[str] = []
    for name, part in module.named_children():
        inside = [f"{name}.{k}" for k, _ in part.named_children()] if isinstance(part, nn.ModuleList) else [name]
        names += inside
    return tuple(name for name in names if module.get_submodule(name).state_dict())


SHARED: Mapping[str, Callable[[nn.Module, int], Shared]] = {
    "fedper": lambda module, depth: is_body,
    "lg_fedavg": lambda module, depth: is_head,
    "fedbn": lambda module, depth: all_but_norms(module),
    "splitnn": all_after,
    "private_intercept": lambda module, depth: all_but_intercept,
}
"""What each method of `personalize/partial.py` shares, given the network and a depth."""


def without_effect(module: nn.Module, shared: Shared, method: str, remedy: str = "choose another network") -> list[str]:
    """A complaint if a predicate leaves nothing shared or nothing personal: that would be local training or FedAvg.

    Buffers count as personal: a norm without parameters still has running statistics of its own.

    Returns:
        At most one sentence; empty = the predicate splits this network.
    """
    names = [name for name, _ in module.named_parameters()]
    chosen = [name for name in names if shared(name)]
    if chosen and not all(shared(name) for name in module.state_dict()):
        return []
    what = "no parameter, which is local training" if not chosen else "every parameter, which is FedAvg"
    return [f"{method} would share {what}, on {type(module).__name__} with {len(names)} parameters: {remedy}"]


def new_head(task: Task, width: int, outputs: int) -> nn.Module:
    """A linear map of features to logits; in segmentation the same at every place, a 1x1 convolution."""
    if task.kind != "segmentation":
        return nn.Linear(width, outputs)
    return (nn.Conv3d if len(task.spatial) == 3 else nn.Conv2d)(width, outputs, kernel_size=1)


def start(self: object, initial: Params, introductions: Mapping[str, Message]) -> State:
    """At the coordinator, before round 1: nothing is shared yet; the state holds the common start."""
    return Message(prefixed("start", initial))


def send(self: object, state: State, site: str, call: Call) -> Message:
    """The message to a site: the shared part, and until its first merge the start of the personal part."""
    part = section(state.tensors, "model")
    return Message(prefixed("model", part if call.merged.get(site, 0) else {**section(state.tensors, "start"), **part}))


def model(self: object, site: Site, received: Message, memory: Memory) -> Params:
    """A site's model: the shared part as received, with the site's personal part."""
    return {**section(received.tensors, "model"), **section(memory.tensors, "personal")}


def split_model(module: nn.Module, shared: Shared, site: Site, optimizer: Params) -> tuple[Message, Memory]:
    """Split a trained model into reply (the shared part and n_k) and memory (the rest, and the optimizer's state)."""
    params = read_parameters(module)
    personal = select_parameters(params, lambda name: not shared(name))
    reply = Message(prefixed("model", select_parameters(params, shared)), {"n": site.size()})
    return reply, Message({**prefixed("personal", personal), **prefixed("optimizer", optimizer)})


def merge(self: Weighted, state: State, replies: Mapping[str, Message]) -> State:
    """At the coordinator: the mean of the shared parts, weighted by the method's `weights`."""
    return merge_shared(state, replies, self.weights)


def merge_shared(state: State, replies: Mapping[str, Message], weights: Weights) -> State:
    """The state after a merge: the mean of the shared parts, and the start of the personal parts."""
    part = merged(replies, weights)
    rest = select_parameters(section(state.tensors, "start"), lambda name: name not in part)
    return Message({**prefixed("model", part), **prefixed("start", rest)})


class Headless(nn.Module):
    """Replaces a head: no parameters, returns zeros (b, outputs, ...) as unused logits."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.out_features = outputs

    def forward(self, h: Tensor) -> Tensor:
        return h.new_zeros(h.shape[0], self.out_features, *h.shape[2:])
