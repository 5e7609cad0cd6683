"""One round of an algorithm on two invented patients of zeros: what a reply looks like, before any hospital is
asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.parameters import read
from federation.randomness import seeded
from federation.task import Task
from privacy.access import Access, Rows, Split, open_access
from privacy.events import NOTHING, Event, composed
from privacy.message import Call, Message, Params
from privacy.protection import Protection


def initial_parameters(algorithm: Algorithm, task: Task, *, seed: int) -> Params:
    """The common start: the algorithm's network, initialized once from the run's seed."""
    with seeded(seed):
        return read(algorithm.network(task))


def rehearse(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> Message:
    """A reply of round 1 on zeros: names, shapes and types that every real reply must have.

    Raises:
        Whatever the algorithm raises: a mistake in it shows here, not at a hospital.
    """
    door = open_access(_invented(task), batch=2, seed=0, balance=False)
    site = Site("rehearsal", task, replace(work, epochs=None, steps=1), door)
    with seeded(0):
        introduction = algorithm.introduce(site)
        state = algorithm.start(initial, {site.name: introduction})
        call = Call("rehearsal", 1, "train", {})
        reply, _ = algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        algorithm.merge(state, {site.name: reply})
    return Message(reply.tensors, {"algorithm": dict(reply.facts)})


class Rehearsed(NamedTuple):
    """Events of private training at one site: of its introduction, of one round's training, of one validation."""

    introduction: Event
    training: Event
    validation: Event


def rehearse_events(algorithm: Algorithm, task: Task, work: Work, initial: Params, protection: Protection) -> Rehearsed:
    """What private training would do to patients, found out without any: the door books and computes nothing.

    Raises:
        privacy.roof.TooLong: it would look at them beyond all reason.
    """
    from privacy.private import open_private  # Opacus: seconds that plain training saves

    def rehearsed() -> tuple[Site, Access]:
        door = open_private(_invented(task), protection, counts=NOTHING, dry=True)
        return Site("rehearsal", task, work, door), door

    with seeded(0):
        site, introducing = rehearsed()
        introduction = algorithm.introduce(site)
        state = algorithm.start(initial, {site.name: introduction})
        call = Call("rehearsal", 1, "train", {})
        site, training = rehearsed()
        algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        site, validating = rehearsed()
        site.measure(algorithm.network(task), task.validation, "validation")
    return Rehearsed(*(composed(door.events) for door in (introducing, training, validating)))


def _invented(task: Task) -> dict[Split, Rows]:
    y = (torch.arange(2) % task.classes).view(2, *[1] * len(task.spatial)).repeat(1, *task.spatial)
    rows = Rows(torch.zeros(2, *task.inputs), y, torch.arange(2))
    return {"train": rows, "validation": rows}
