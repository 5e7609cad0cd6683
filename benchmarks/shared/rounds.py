"""Federations in memory, by the project's own methods and data access, without hospitals' processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from torch import nn

from federation.algorithm import Algorithm, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.parameters import loaded
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import initial_parameters
from federation.task import Task
from privacy.dp.access import Augment, Rows, open_access
from privacy.dp.accounting import calibrate_noise
from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed
from privacy.message import Call, Message, Params

Cross: TypeAlias = Callable[[str, Message, Message, Message], tuple[Message, Message]]
"""cross(name, reply, received, memory): what the coordinator reads of a hospital's reply, and the memory with it."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A federation after its last round."""

    method: Algorithm
    task: Task
    sites: Mapping[str, Site]
    state: State
    memories: Mapping[str, Message]
    call: Call

    def network(self, name: str, *, memory: Message | None = None) -> nn.Module:
        """A hospital's network. memory: in the place of its own."""
        received = self.method.send(self.state, name, self.call)
        params = self.method.model(self.sites[name], received, self.memories[name] if memory is None else memory)
        return loaded(self.method.network(self.task), params).eval()

    def networks(self) -> dict[str, nn.Module]:
        """Each hospital's network."""
        return {name: self.network(name) for name in self.sites}


def run_rounds(
    method: Algorithm,
    task: Task,
    open_site: Callable[[str, int], Site],
    names: Mapping[str, object],
    *,
    run: str,
    rounds: int,
    initial: Params,
    own: Mapping[str, Algorithm] | None = None,
    seed_of: Callable[[str, int], int] | None = None,
    watch: Callable[[Finished], None] | None = None,
    cross: Cross | None = None,
) -> Finished:
    """Train all rounds. open_site: name and round -> a hospital. own: the methods of hospitals with settings of their
    own. seed_of: name and round -> seed of torch's global generators; None leaves them as they are. watch: sees the
    federation after each round. cross: what becomes of replies on the way; None: nothing.
    """
    state, merged = method.start(initial, {name: Message() for name in names}), dict.fromkeys(names, 0)
    memories, at = dict.fromkeys(names, Message()), dict.fromkeys(names, method) | dict(own or {})
    sites: dict[str, Site] = {}

    def gather() -> Finished:
        last = Call(run, max(merged.values()) + 1, "finish", merged)
        return Finished(method=method, task=task, sites={**sites}, state=state, memories={**memories}, call=last)

    for round_ in range(1, rounds + 1):
        call, replies = Call(run, round_, "train", merged), {}
        for name in names:
            with nullcontext() if seed_of is None else use_seed(seed_of(name, round_)):
                sites[name] = open_site(name, round_)
                received = method.send(state, name, call)
                replies[name], memories[name] = at[name].train(sites[name], received, memories[name], call)
                if cross is not None:
                    replies[name], memories[name] = cross(name, replies[name], received, memories[name])
        state, merged = method.merge(state, replies), dict.fromkeys(names, round_)
        if watch is not None:
            watch(gather())
    return gather()


def train_fedavg(
    task: Task,
    work: Work,
    hospitals: Mapping[str, Rows],
    *,
    run: str,
    rounds: int,
    seed: int,
    augment: Augment | None,
    method: FedAvg | None = None,
) -> nn.Module:
    """FedAvg's one model, whose hospitals draw anew in each round by a seed of their own."""
    method, number = method or FedAvg(), {name: k for k, name in enumerate(hospitals)}

    def seed_of(name: str, round_: int) -> int:
        return derive_seed(seed, number[name], round_)

    def open_site(name: str, round_: int) -> Site:
        rows = {"train": hospitals[name], "validation": hospitals[name]}
        access = open_access(rows, batch=work.batch, seed=seed_of(name, round_), balance=work.balance, augment=augment)
        return Site(name, task, work, access)

    initial = initial_parameters(method, task, seed=seed)
    found = run_rounds(method, task, open_site, hospitals, run=run, rounds=rounds, initial=initial, seed_of=seed_of)
    return found.network([*hospitals][-1], memory=Message())


@cache
def find_noise(epsilon: float, delta: float, steps: int, sampling: float) -> float:
    """The noise of as many steps on Poisson samples, for a guarantee of all of them."""
    return calibrate_noise(
        lambda noise: [SelfComposed(PoissonSampled(sampling, Gaussian(noise)), steps)], epsilon=epsilon, delta=delta
    )
