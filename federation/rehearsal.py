"""A rehearsal: one round of a method on two invented patients of zeros, which gives the form of a reply in advance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from federation.algorithm import Algorithm, Memory
from federation.descent import Site, Work
from federation.findings import encode_findings
from federation.parameters import read_parameters
from federation.participant import answer_training_call, facts_of_fixed
from federation.randomness import use_seed
from federation.spool import move_params_to_file
from federation.task import STEPS, Task
from privacy.dp.access import Access, Rows, Split, open_access
from privacy.dp.events import NOTHING, Event, compose_events
from privacy.dp.protection import Protection
from privacy.message import Buffer, Call, Json, Message, Params, as_mapping


def initial_parameters(algorithm: Algorithm, task: Task, *, seed: int) -> Params:
    """The common start: the algorithm's network, initialized once from the run's seed."""
    with use_seed(seed):
        return read_parameters(algorithm.network(task))


class Forms(NamedTuple):
    """A site's introduction and its reply in a round: names, shapes and types of tensors, on torch's device without
    memory, and facts. sent: tensors of the question that the reply answers.
    """

    introduction: Message
    reply: Message
    sent: Message = Message()


def rehearse_reply(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> Message:
    """A reply of round 1 on zeros: names, shapes and types that every real reply must have.

    Raises:
        Whatever the algorithm raises: its mistakes appear here, and not at a hospital.
    """
    return rehearse_forms(algorithm, task, work, initial).reply


def rehearse_forms(algorithm: Algorithm, task: Task, work: Work, initial: Params) -> Forms:
    """An introduction and a reply of round 1 on zeros. Raises: as `rehearse_reply`."""
    access = open_access(zero_patients(task), batch=2, seed=0, balance=False)
    site = Site("rehearsal", task, replace(work, epochs=None, steps=1), access)
    with use_seed(0):
        introduction = algorithm.introduce(site)
        state = algorithm.start(move_params_to_file(initial), {site.name: introduction})
        del initial
        call = Call("rehearsal", 1, "train", {})
        question = algorithm.send(state, site.name, call)
        sent = _drop_numbers(question, {})
        reply = algorithm.train(site, question, Message(), call)[0]
        reply = Message(move_params_to_file(reply.tensors), reply.facts)
        algorithm.merge(state, {site.name: reply})
    introduced = {"algorithm": dict(introduction.facts), **facts_of_fixed(task)}
    replied: dict[str, Json] = {"algorithm": dict(reply.facts)}
    return Forms(_drop_numbers(introduction, introduced), _drop_numbers(reply, replied), sent)


def _drop_numbers(message: Message, facts: Mapping[str, Json]) -> Message:
    """The form of a message, with these facts."""
    return Message({name: tensor.detach().to("meta") for name, tensor in message.tensors.items()}, facts)


class Rehearsed(NamedTuple):
    """Events of private training at one site: of its introduction, of one round's training, of one validation."""

    introduction: Event
    training: Event
    validation: Event


def rehearse_events(algorithm: Algorithm, task: Task, work: Work, initial: Params, protection: Protection) -> Rehearsed:
    """The events that private training records, found on invented patients: data access records events and computes
    nothing.

    Raises:
        privacy.dp.access_limit.TooLong: it would use patients' data far too often.
    """
    from privacy.dp.private_access import open_private  # Opacus: seconds that plain training saves

    def open_rehearsal() -> tuple[Site, Access]:
        access = open_private(zero_patients(task), protection, counts=NOTHING, dry=True)
        return Site("rehearsal", task, work, access), access

    with use_seed(0):
        site, introducing = open_rehearsal()
        introduction = algorithm.introduce(site)
        state = algorithm.start(initial, {site.name: introduction})
        call = Call("rehearsal", 1, "train", {})
        site, training = open_rehearsal()
        algorithm.train(site, algorithm.send(state, site.name, call), Message(), call)
        site, validating = open_rehearsal()
        site.measure(algorithm.network(task), task.validation, "validation")
    return Rehearsed(*(compose_events(access.events) for access in (introducing, training, validating)))


def rehearse_question(
    algorithm: Algorithm,
    task: Task,
    work: Work,
    protection: Protection,
    name: str,
    call: Call,
    message: Message,
    memory: Memory,
) -> None:
    """Check that a private site of this name can answer a call, by a dry run on invented patients.

    Raises:
        Whatever the algorithm raises; privacy.dp.access_limit.TooLong.
    """
    from privacy.dp.private_access import open_private  # Opacus: seconds that plain training saves

    site = Site(name, task, work, open_private(zero_patients(task), protection, counts=NOTHING, dry=True))
    with use_seed(0):
        answer_training_call(algorithm, site, call, message, memory, _Nowhere())


class _Nowhere:
    """A folder that stores nothing."""

    def write(self, name: str, data: bytes) -> None:
        pass

    def write_parts(self, name: str, parts: Sequence[Buffer]) -> None:
        pass

    def read(self, name: str) -> bytes:
        raise FileNotFoundError(name)

    def map(self, name: str) -> memoryview:
        raise FileNotFoundError(name)

    def has(self, name: str) -> bool:
        return False

    def names(self) -> Sequence[str]:
        return ()

    def remove(self, name: str) -> None:
        pass


def find_form_differences(reply: Message, form: Message, received: Message, *, first: bool = True) -> list[str]:
    """What differs between a reply and the rehearsed one; empty = nothing.

    Names, shapes and types of tensors and names and types of facts must be equal. A fact that is a list or a mapping
    may differ in length if it is about other sites: it then holds names that were received, each at most once, and a
    number for each. first: whether the first axis of a tensor must be equal too, which counts examples in some
    introductions.

    Args:
        reply, form: with the facts of the method under `algorithm`. received: the message that the site received.
    """
    skip = 0 if first else 1
    expected = {name: (tensor.shape[skip:], tensor.dtype) for name, tensor in form.tensors.items()}
    arrived = {name: (tensor.shape[skip:], tensor.dtype) for name, tensor in reply.tensors.items()}
    wrong = [f"tensor {name}" for name in sorted({*expected, *arrived}) if expected.get(name) != arrived.get(name)]
    facts, rehearsed = reply.facts.get("algorithm"), as_mapping(form.facts.get("algorithm"))
    if not isinstance(facts, dict):
        return [*wrong, "facts of the method"]
    names = frozenset(_list_texts(dict(received.facts)))
    differ = (
        name for name in sorted({*facts, *rehearsed}) if not _has_same_form(facts.get(name), rehearsed.get(name), names)
    )
    return wrong + [f"fact {name}" for name in differ]


def _has_same_form(fact: Json, rehearsed: Json, names: frozenset[str]) -> bool:
    """Whether a fact has the form of the rehearsed one. names: texts that a site may repeat."""
    if type(fact) is not type(rehearsed):
        return False
    if isinstance(fact, str):
        return fact in names
    if isinstance(fact, list) and isinstance(rehearsed, list):
        same = len(fact) == len(rehearsed) and all(
            _has_same_form(a, b, names) for a, b in zip(fact, rehearsed, strict=True)
        )
        return same or ({str(item) for item in fact} <= names and len({str(item) for item in fact}) == len(fact))
    if isinstance(fact, dict):
        return fact.keys() <= names and all(isinstance(value, float) for value in fact.values())
    return True


def _list_texts(value: Json) -> Iterator[str]:
    """All texts within facts, keys of mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from (text for inner in value.values() for text in _list_texts(inner))
    elif isinstance(value, list):
        yield from (text for inner in value for text in _list_texts(inner))


def zero_patients(task: Task, count: int = 2) -> dict[Split, Rows]:
    """Invented patients of zeros, one row each, with the classes in turn, with both ends of a number's range, or with
    no finding and all in turn.
    """
    labels = torch.arange(count) % task.classes
    if task.kind == "regression":
        labels = torch.arange(count) % 2 * STEPS
    elif task.kind == "findings":
        labels = encode_findings((torch.arange(count) % 2)[:, None].expand(count, task.classes))
    inputs = task.trained_inputs
    spatial = inputs[1:] if task.kind == "segmentation" else ()
    y = labels.view(count, *[1] * len(spatial)).repeat(1, *spatial)
    rows = Rows(torch.zeros(count, *inputs), y, torch.arange(count))
    return {"train": rows, "validation": rows}
