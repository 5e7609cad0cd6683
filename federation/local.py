"""No federation: every site trains alone (siloed); and the same on pooled images (central), where pooling is allowed.

`local` is one network per site, from the common start, with the same rounds of local work as the federated methods. For
`central` the train stage pools the sites' images into one site first, which only a simulation may do and only where the
YAML allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from federation.algorithm import Memory, State
from federation.descent import Site
from federation.fedavg import FedAvg, descend_from
from federation.parameters import loaded, prefixed, read_parameters, section
from privacy.message import Call, Message, Params


@dataclass(frozen=True, kw_only=True)
class Local:
    """w_k <- descent on site k alone; nothing is sent after the common start, nothing is replied."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    own_networks: ClassVar = True

    name: Literal["local", "central"] = "local"

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start

    def send(self, state: State, site: str, call: Call) -> Message:
        return state if call.merged.get(site, 0) == 0 else Message()

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = descend_from(site, module, memory)
        return Message(), Message(
            {**prefixed("model", read_parameters(module)), **prefixed("optimizer", descent.optimizer)}
        )

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return state

    def model(self: object, site: Site, received: Message, memory: Memory) -> Params:
        parameters = section(memory.tensors, "model")
        return parameters or site.task.complete(section(received.tensors, "model"), site.device)
