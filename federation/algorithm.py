"""What a method is: a frozen record of hyper-parameters and eight short functions. Read this first.

A method never sees a file, a clock or an engine, and only `complaints` is told whether training is private. Its state
(at the coordinator) and its memory (at a site) are messages, so that a run can be stopped, resumed, replayed and
audited without the method knowing. The name of a tensor in a message ends in the name of a parameter or buffer of the
network; its first part says what it is, as in `model/head.weight` or `control/head.weight`; what only the site
remembers may add to it (`optimizer/head.weight/exp_avg`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

from torch import nn

from federation.descent import Site, Work
from federation.task import Task
from privacy.message import Call, Message, Params

State: TypeAlias = Message
Memory: TypeAlias = Message
Recipient: TypeAlias = Literal["coordinator", "sites"]
"""Who gets what a site says by a method: the coordinator alone, or through it all other sites too."""


class Algorithm(Protocol):
    """Federated learning as a value. Its dataclass fields are its YAML keys."""

    @property
    def name(self) -> str:
        """The word that chooses it in YAML."""
        ...

    def network(self, task: Task) -> nn.Module:
        """The site's network, wrapped if need be; the same everywhere. Made once at the coordinator, it yields
        `initial`.
        """
        ...

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        """Why this method makes no sense for this network, this local work or private training; empty = fine."""
        ...

    def introduce(self, site: Site) -> Message:
        """At a site, before round 1: what the coordinator must know first. Often empty."""
        ...

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        """At the coordinator: the state before round 1."""
        ...

    def send(self, state: State, site: str, call: Call) -> Message:
        """At the coordinator: what one site gets this round; it may differ per site."""
        ...

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        """At a site: one round of local work. The reply leaves, the memory stays."""
        ...

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        """At the coordinator: replies of a round (sorted by site) into the next state."""
        ...

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        """At a site: the model that it diagnoses with, after a merge; it loads into `network()`."""
        ...


def recipient_of(algorithm: Algorithm) -> Recipient:
    """Who gets what a site says by a method, in an introduction and in training.

    `sites`: the coordinator hands one site's tensors on to others as they are, up to a factor, or in a mixture in which
    one site may weigh most. What is merged over all sites alike is no handing on, although few sites can take it apart.
    A method says it by an attribute `recipient`, where it may hang on settings; without one it is `coordinator`.
    """
    said: Recipient = getattr(algorithm, "recipient", "coordinator")
    return said
