"""What a method does and says, found out without patients: before its work, and at the gate.

A reply of training must look like the rehearsed one: the same names, shapes and types. And with a budget a question is
tried on invented patients first, so that one on which no patient's data could be worked counts against nobody.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from federation.descent import Work
from federation.rehearsal import (
    Forms,
    Rehearsed,
    initial_parameters,
    rehearse_events,
    rehearse_forms,
    rehearse_question,
    unlike,
)
from federation.task import Task
from personalize import AnyAlgorithm
from privacy.dp.protection import Protection
from privacy.dp.roof import TooLong
from privacy.message import Call, Message, as_mapping
from privacy.release.gate import Refused

FINISHED = Message({}, {"algorithm": {}})
"""What a site says of the last merge beside its validation loss."""


@lru_cache(maxsize=64)
def events(algorithm: AnyAlgorithm, task: Task, work: Work, protection: Protection) -> Rehearsed:
    """What private training would do to patients.

    Raises:
        Refused: `malformed_opening`: it would hardly end, fails on zeros, and so would on any patients, or the method
            itself says that it cannot be private.
    """
    try:
        if said := algorithm.complaints(algorithm.network(task), work, True):
            raise ValueError("; ".join(said))
        found = rehearse_events(algorithm, task, work, initial_parameters(algorithm, task, seed=0), protection)
        _forms(algorithm, task, work)
    except TooLong as error:
        raise Refused("malformed_opening") from error
    except Exception as error:
        told = f"{algorithm.name} cannot train this network privately: {type(error).__name__}: {error}"
        raise Refused("malformed_opening") from ValueError(told)
    return found


@lru_cache(maxsize=64)
def _forms(algorithm: AnyAlgorithm, task: Task, work: Work) -> Forms:
    return rehearse_forms(algorithm, task, work, initial_parameters(algorithm, task, seed=0))


def workable(
    algorithm: AnyAlgorithm,
    task: Task,
    work: Work,
    protection: Protection,
    site: str,
    call: Call,
    message: Message,
    memory: Message,
) -> None:
    """Whether a private site can work on a question; nobody is looked at.

    Raises:
        Refused: `malformed_opening`: it would hardly end; `malformed_message`: the method cannot work on what came.
    """
    try:
        rehearse_question(algorithm, task, work, replace(protection, cut=""), site, call, message, memory)
    except TooLong as error:
        raise Refused("malformed_opening") from error
    except Exception as error:
        told = f"{algorithm.name} cannot work on these tensors and facts: {type(error).__name__}: {error}"
        raise Refused("malformed_message") from ValueError(told)


def as_rehearsed(
    algorithm: AnyAlgorithm, task: Task, work: Work, call: Call, message: Message, reply: Message, *, private: bool
) -> None:
    """Whether a reply looks as the method's replies do on invented patients.

    Raises:
        Refused: `unexpected_reply`; its cause names every tensor and fact that differs.
    """
    forms = _forms(algorithm, task, work)
    form = {"introduce": forms.introduction, "finish": FINISHED}.get(call.request, forms.reply)
    received = Message({}, as_mapping(message.facts.get("algorithm")))
    whole = private or call.request != "introduce"
    if wrong := unlike(reply, form, received, first=whole):
        names = f"{', '.join(wrong[:10])}{' and more' * (len(wrong) > 10)}"
        raise Refused("unexpected_reply") from ValueError(
            f"{algorithm.name}, {call.request}: not as rehearsed: {names}"
        )
