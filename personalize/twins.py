"""A shared and a personal network at each site, trained together on the same batches.

Used by Ditto, APFL and MoE. A module that holds both names them `shared` and `personal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from federation.algorithm import Memory, State
from federation.fedavg import Weighted, merged
from federation.parameters import prefixed, section, select_parameters
from federation.task import Output, Task
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message, Params


def outputs_of_both(
    shared: Callable[[Tensor], Output], personal: Callable[[Tensor], Output], x: Tensor
) -> tuple[Output, Output]:
    """Outputs of two networks for the same inputs, with the same dropout: the random state is restored between them."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        first = shared(x)
    return first, personal(x)


def losses_of_both(task: Task) -> Objective:
    """The sum of the task's losses of two outputs, for a module that returns both when called with (x,
    True).

    One use of the patients then serves both networks. The module decides whether a loss's gradient reaches
    the other network.
    """

    def losses(forward: Forward, batch: Batch) -> Tensor:
        first, second = cast(tuple[Output, Output], forward(batch.x, True))
        return task.objective(lambda _: first, batch) + task.objective(lambda _: second, batch)

    return losses


def is_shared(name: str) -> bool:
    """Whether a parameter or buffer belongs to the shared network."""
    return name.startswith("shared.")


def pair_params(received: Message, memory: Memory, start: Params, extra: Params) -> Params:
    """Parameters and buffers of a module that holds both: `shared` as received, the rest from the site's
    memory.

    Before a site's first merge the personal network is `start` (named `shared.`); `beside` holds the other parameters.
    """
    fresh = {
        n.replace("shared.", "personal.", 1): value.clone() for n, value in select_parameters(start, is_shared).items()
    }
    personal = section(memory.tensors, "personal") or {**fresh, **extra}
    return {**select_parameters(section(received.tensors, "model"), is_shared), **personal}


def with_start(model: Params) -> State:
    """The coordinator's first state: `model` is updated by merges, `start` stays for sites that have no personal
    network yet.
    """
    start = {name: value.clone() for name, value in model.items()}  # a message's tensors share no memory
    return Message({**prefixed("model", model), **prefixed("start", start)})


def send(self: object, state: State, site: str, call: Call) -> Message:
    """At the coordinator: the shared model; after round 1 also the common start, until the site's first merge."""
    first = call.round > 1 and not call.merged.get(site, 0)
    start = prefixed("start", section(state.tensors, "start")) if first else {}
    return Message({**prefixed("model", section(state.tensors, "model")), **start})


def merge(self: Weighted, state: State, replies: Mapping[str, Message]) -> State:
    """At the coordinator: the mean of the shared models, weighted by the method's `weights`, and the start."""
    model = prefixed("model", merged(replies, self.weights))
    return Message({**model, **prefixed("start", section(state.tensors, "start"))})
