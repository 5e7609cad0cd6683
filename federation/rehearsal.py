"""One round of an algorithm on two invented patients of zeros: what a reply looks like, before any hospital is
asked.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.parameters import read
from federation.randomness import seeded
from federation.task import Task
from privacy.access import Rows, Split, open_access
from privacy.message import Call, Message, Params


def initial_parameters(algorithm: Algorithm, task: Task, *, seed: int) -> Params:
    """The common start: the algorithm's network, initialized once from the run's seed."""
    with seeded(seed):
        return read(algorithm.network(task))


def rehearse(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> Message:
    """A reply of round 1 on zeros: names, shapes and types that every real reply must have.

    Raises:
        Whatever the algorithm raises: a mistake in it shows here, not at a hospital.
    """
    rows = Rows(torch.zeros(2, *task.inputs), torch.arange(2) % task.classes, torch.arange(2))
    splits: dict[Split, Rows] = {"train": rows, "validation": rows}
    site = Site(
        "rehearsal", task, replace(work, epochs=None, steps=1), open_access(splits, batch=2, seed=0, balance=False)
    )
    with seeded(0):
        introduction = algorithm.introduce(site)
        state = algorithm.start(initial, {site.name: introduction})
        call = Call("rehearsal", 1, "train", {})
        reply, _ = algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        algorithm.merge(state, {site.name: reply})
    return Message(reply.tensors, {"algorithm": dict(reply.facts)})
