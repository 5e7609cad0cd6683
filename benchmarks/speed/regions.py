"""Sums over 1,000 simulated hospitals, flat and in ten regions: messages, bytes and seconds at each node.

    python -m benchmarks.speed.regions [--hospitals 1000] [--regions 10]
    python -m benchmarks.tables.derived --write many-hospitals

FedAvg in `secure_sum`, two rounds, the second is measured, in one process on one core; hospitals keep what they
remember in memory. A perceptron of 1,074 parameters and 24 examples a hospital: what is measured is the conversation.
`flat`: the coordinator asks every hospital, masks cancel among all. `regions, masks among all`: it asks regions, and
hospitals do the same work. `regions, masks within a region`: each hospital agrees on secrets with its region's alone.
Bytes are those of messages as they would cross a wire; seconds are of CPU, of each node's own work, without what it
waits for. The sums of all three are the same, bit for bit, which is checked.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from consilium.testing import testbed
from federation.descent import Work
from federation.engine import Answers, Engine, InProcess
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.parameters import count_values
from federation.regions import Masks, Regions, make_region
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from federation.task import Task
from privacy.message import Call, Message, to_bytes
from privacy.secure_sum import make_key_pair

TASK, WORK, ROUNDS = Task(Mlp(hidden=(16,)), (64,), 2), Work(batch=24), 2
WAYS: Mapping[str, Masks | None] = {
    "flat": None,
    "regions, masks among all": "all",
    "regions, masks within a region": "region",
}
COMMAND = "python -m benchmarks.speed.regions"


@dataclass
class Node:
    """What a node sent and received in the last round, and its seconds of CPU, without those of nodes below it."""

    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class Book:
    """The nodes by name, and who works now."""

    nodes: dict[str, Node] = field(default_factory=dict)
    working: list[str] = field(default_factory=list)
    since: float = 0.0

    @contextmanager
    def work_as(self, name: str) -> Iterator[None]:
        """Within this context seconds are this node's."""
        self._count()
        self.working.append(name)
        try:
            yield
        finally:
            self._count()
            self.working.pop()

    def _count(self) -> None:
        now = time.process_time()
        if self.working:
            self.nodes.setdefault(self.working[-1], Node()).seconds += now - self.since
        self.since = now

    def carry(self, sender: str, receiver: str, message: Message) -> None:
        """Note a message; counting its bytes is nobody's work."""
        self._count()
        size = len(to_bytes(message))
        for name in (sender, receiver):
            node = self.nodes.setdefault(name, Node())
            node.messages, node.bytes = node.messages + 1, node.bytes + size
        self.since = time.process_time()


@dataclass(frozen=True)
class Counted:
    """Links from one node to others, whose work and messages are noted."""

    name: str
    inner: InProcess
    book: Book

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        for site, message in messages.items():
            self.book.carry(self.name, site, message)
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        for site, reply in answers.replies.items():
            self.book.carry(site, self.name, reply)
        return answers


def connect(book: Book, name: str, workers: Mapping[str, Any]) -> Counted:
    """Links from a node to the workers below it."""

    def work(site: str) -> Any:
        def answer(call: Call, message: Message) -> Message:
            with book.work_as(site):
                reply: Message = workers[site](call, message)
                return reply

        return answer

    return Counted(name, InProcess({site: work(site) for site in workers}), book)


def build_engine(book: Book, hospitals: Mapping[str, Any], regions: int, masks: Masks | None) -> Engine:
    """The coordinator's engine."""
    if masks is None:
        return connect(book, "coordinator", hospitals)
    members = {f"region {k}": tuple(sorted(hospitals)[k::regions]) for k in range(regions)}
    below = {
        region: make_region(connect(book, region, {site: hospitals[site] for site in sites}))
        for region, sites in members.items()
    }
    return Regions(connect(book, "coordinator", below), members, masks=masks)


def measure(count: int, regions: int) -> dict[str, Any]:
    """Way -> figures of its last round."""
    torch.set_num_threads(1)
    table = {
        split: replace(rows, x=torch.randn(len(rows.y), 64, generator=torch.Generator().manual_seed(7)))
        for split, rows in testbed.make_table(0, d=64).items()
    }
    figures, states = dict[str, Any](), list[Message]()
    for way, masks in WAYS.items():
        hospitals = {
            f"h{k:04d}": testbed.Hospital(
                f"h{k:04d}",
                table,
                FedAvg(),
                TASK,
                WORK,
                keys=make_key_pair(),
                averaged=False,
            )
            for k in range(count)
        }
        book = Book()
        last: dict[str, Node] = {}

        def keep_round(outcome: Any, book: Book = book, last: dict[str, Node] = last) -> None:
            if outcome.round == ROUNDS and not last:
                last |= book.nodes
            book.nodes = {}

        with book.work_as("coordinator"):
            outcome = testbed.train(
                FedAvg(),
                hospitals,
                task=TASK,
                work=WORK,
                schedule=Schedule(rounds=ROUNDS),
                engine=build_engine(book, hospitals, regions, masks),
                between=keep_round,
                secure_sum=True,
            )
        states.append(outcome.state)
        if not testbed.are_equal(states[0].tensors, states[-1].tensors):
            raise ValueError(f"the sum of {way} is another one")
        figures[way] = {
            "hospitals": count,
            "regions": regions,
            "parameters": count_values(initial_parameters(FedAvg(), TASK, seed=0)),
        }
        for kind in ("coordinator", "region", "h"):
            nodes = [node for name, node in last.items() if name.startswith(kind)]
            if nodes:
                figures[way][kind] = {
                    "messages": sum(node.messages for node in nodes) / len(nodes),
                    "bytes": sum(node.bytes for node in nodes) / len(nodes),
                    "seconds": sum(node.seconds for node in nodes) / len(nodes),
                }
        print(way, figures[way], flush=True)
    return figures


def tables(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The table that this program measures."""
    rows = []
    names = {"coordinator": "coordinator", "region": "a region", "h": "a hospital"}
    for way, figures in kept.items():
        for kind, name in names.items():
            if kind in figures:
                node = figures[kind]
                seconds = f"{node['seconds']:.3f}"
                rows.append([way, name, f"{node['messages']:,.0f}", f"{node['bytes'] / 1e3:,.0f}", seconds])
    columns = ["1,000 hospitals", "node", "messages a round", "kB a round", "CPU s a round"]
    return {"regions": make_table(columns, rows, COMMAND)}


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--hospitals", type=int, default=1000)
    line.add_argument("--regions", type=int, default=10)
    asked = line.parse_args()
    figures = measure(asked.hospitals, asked.regions)
    if (asked.hospitals, asked.regions) == (1000, 10):
        write_measured("regions", {**read_measured("regions"), **figures})


if __name__ == "__main__":
    main()
