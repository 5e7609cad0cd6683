"""A method at each hospital alone: what it gains there without others, beside the same method in the federation.

A method with two networks, or with work of its own, may gain over `local` although nobody shares anything. Here the
coordinator's half of the method runs at the hospital, on its reply alone, so that the model is the one of a run with
this hospital only. What the method gains over that is what the other hospitals add. Nothing is sent after the common
start, and nothing is replied.

A method that draws numbers when it introduces itself draws them in round 1 here, so other ones (APPLE's independent
cores, FedDG's spectra). A private rehearsal counts what an introduction costs in every round, so that noise is never
too little.

Not from a paper. It was most of what FENDA gained with planned networks on phantom glands (docs/results/planned.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from torch import nn

from federation.algorithm import Algorithm, Memory, State, without_batches, without_loss
from federation.alone import Alone
from federation.as_begun import AsBegun
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.parameters import prefixed, section
from federation.participant import NOTES
from federation.task import Task
from personalize.dp_head import DpHead
from personalize.moments import Moments
from privacy.message import Call, Json, Message, Params, as_mapping, whole_of
from privacy.settings_error import Problem, refuse, unmet

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

STATE, MEMORY, ROUND = "state", "memory", "round"
"""In a hospital's memory: the state that a coordinator would have, the method's own memory, and the last round."""
ZERO_SHOT = "zero_shot"
"""A method that learns from no hospital. Its module imports this one, so it is known by its name."""


class AnyMethod:
    """Annotates a method that settings name. The union of all methods has `AtHome` too, so it is read when needed."""

    def find_union(self) -> Any:
        """All methods, for the keys that messages offer (`federation.registry.Deferred`)."""
        from personalize import NamedAlgorithm

        return NamedAlgorithm

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.find_union())


@dataclass(frozen=True, kw_only=True)
class AtHome:
    """w_k <- the model of `of` in a federation of hospital k alone. of: a method, with its settings."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "arbitrary_types_allowed": True}

    name: Literal["at_home"] = "at_home"
    of: Annotated[Algorithm, AnyMethod()]

    def __post_init__(self) -> None:
        is_method = hasattr(self.of, "merge") and not isinstance(self.of, type)
        refuse(unmet(self, of=(is_method, "a method with its settings, as Fenda()")))
        is_alone = is_trained_alone(self.of) or isinstance(self.of, AsBegun) or self.of.name == ZERO_SHOT
        text = f"must be a method that learns from others, and {self.of.name} does not: name it directly"
        refuse([Problem(("of",), text)] if is_alone else [])

    @property
    def rounds(self) -> int | None:
        """Of a method that has a number of its own."""
        rounds: int | None = getattr(self.of, "rounds", None)
        return rounds

    @property
    def needs_classes(self) -> str:
        return getattr(self.of, "needs_classes", "")

    @property
    def without_loss(self) -> str:
        return without_loss(self.of)

    @property
    def without_batches(self) -> str:
        return without_batches(self.of)

    def network(self, task: Task) -> nn.Module:
        return self.of.network(task)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return self.of.complaints(module, work, private)

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = Local.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        state = _part(memory, STATE)
        if STATE not in memory.facts:
            initial = section(received.tensors, "model")
            state = self.of.start(initial, {site.name: self.of.introduce(site)})
        call = call._replace(merged={site.name: call.merged.get(site.name, 0)})
        question = self.of.send(state, site.name, call)
        reply, remembered = self.of.train(site, question, _part(memory, MEMORY), call)
        state = self.of.merge(state, {site.name: reply})
        notes = {name: fact for name, fact in remembered.facts.items() if name == NOTES}
        facts: dict[str, Json] = {STATE: dict(state.facts), MEMORY: dict(remembered.facts), ROUND: call.round}
        tensors = {**prefixed(STATE, state.tensors), **prefixed(MEMORY, remembered.tensors)}
        return Message(), Message(tensors, {**facts, **notes})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        if STATE not in memory.facts:
            return section(received.tensors, "model")
        last = whole_of(memory.facts, ROUND)
        call = Call("", last + 1, "finish", {site.name: last})
        return self.of.model(site, self.of.send(_part(memory, STATE), site.name, call), _part(memory, MEMORY))


def _part(memory: Memory, name: str) -> Message:
    """One of the messages of which a hospital's memory consists."""
    return Message(section(memory.tensors, name), as_mapping(memory.facts.get(name)))


def method_itself(algorithm: Algorithm) -> Algorithm:
    """The method that runs at home; of any other, itself."""
    return method_itself(algorithm.of) if isinstance(algorithm, AtHome) else algorithm


def is_trained_alone(algorithm: Algorithm) -> bool:
    """Whether no other hospital has a part in a method's models."""
    if isinstance(algorithm, Moments):
        return algorithm.others_gram == 0 and algorithm.others_classes == 0
    return isinstance(algorithm, Alone | AtHome | Local) or (
        isinstance(algorithm, DpHead) and algorithm.others == 0 and algorithm.rounds == 1
    )


def list_policy_names(algorithm: Algorithm) -> tuple[str, ...]:
    """What `algorithms` of a policy must name: a method, and of one at home also the method itself."""
    return tuple(dict.fromkeys((algorithm.name, method_itself(algorithm).name)))
