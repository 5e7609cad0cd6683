"""Rehearsal: run a method on synthetic patients before its work, and to check its replies.

A reply of training must have the names, shapes and types of the rehearsed one. With a budget, a request is rehearsed
first: a request that fails for any patients then fails before a failure could reveal something about real ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from federation.descent import Work
from federation.rehearsal import (
    Forms,
    Rehearsed,
    find_form_differences,
    initial_parameters,
    rehearse_events,
    rehearse_forms,
    rehearse_question,
)
from federation.summing import find_sum_problem as find_unsummable
from federation.summing import has_words
from federation.task import Task
from personalize import AnyAlgorithm
from privacy.dp.access_limit import TooLong
from privacy.dp.protection import Protection
from privacy.message import Call, Message, as_mapping
from privacy.release.gate import Refused
from privacy.system_errors import of_machine

FINISHED = Message({}, {"algorithm": {}})
"""The form of the reply to `finish`, beside its validation loss."""


@lru_cache(maxsize=64)
def rehearse_private_events(algorithm: AnyAlgorithm, task: Task, work: Work, protection: Protection) -> Rehearsed:
    """The privacy events of private training.

    Raises:
        Refused: `malformed_opening`: it would take too long, fails on zeros and so would fail on any patients, or the
            method itself says that it cannot be private.
    """
    try:
        if complaints := algorithm.complaints(algorithm.network(task), work, True):
            raise ValueError("; ".join(complaints))
        rehearsed = rehearse_events(algorithm, task, work, initial_parameters(algorithm, task, seed=0), protection)
        _rehearse_forms(algorithm, task, work)
    except TooLong as error:
        raise Refused("malformed_opening") from error
    except Exception as error:
        if of_machine(error):
            raise
        text = f"{algorithm.name} cannot train this network privately: {type(error).__name__}: {error}"
        raise Refused("malformed_opening") from ValueError(text)
    return rehearsed


@lru_cache(maxsize=64)
def _rehearse_forms(algorithm: AnyAlgorithm, task: Task, work: Work) -> Forms:
    return rehearse_forms(algorithm, task, work, initial_parameters(algorithm, task, seed=0))


def find_sum_problem(algorithm: AnyAlgorithm, task: Task, work: Work) -> str | None:
    """Why what a method says cannot be hidden in sums, or None."""
    forms = _rehearse_forms(algorithm, task, work)
    return find_unsummable(algorithm, forms.introduction, forms.reply)


def sends_parameters(algorithm: AnyAlgorithm, task: Task, work: Work) -> bool:
    """Whether replies of a method's rounds hold anything but a loss."""
    return has_words(_rehearse_forms(algorithm, task, work).reply)


def check_trainable(
    algorithm: AnyAlgorithm,
    task: Task,
    work: Work,
    protection: Protection,
    site: str,
    call: Call,
    message: Message,
    memory: Message,
) -> None:
    """Check that a private site can work on a request, without reading patients.

    Raises:
        Refused: `malformed_opening`: it would take too long; `malformed_message`: the method cannot work on what came.
    """
    try:
        rehearse_question(algorithm, task, work, replace(protection, cut=""), site, call, message, memory)
    except TooLong as error:
        raise Refused("malformed_opening") from error
    except Exception as error:
        if of_machine(error):
            raise
        text = f"{algorithm.name} cannot work on these tensors and facts: {type(error).__name__}: {error}"
        raise Refused("malformed_message") from ValueError(text)


def check_reply(
    algorithm: AnyAlgorithm, task: Task, work: Work, call: Call, message: Message, reply: Message, *, private: bool
) -> None:
    """Check that a reply has the form of the rehearsed reply.

    Raises:
        Refused: `unexpected_reply`; its cause names every tensor and fact that differs.
    """
    forms = _rehearse_forms(algorithm, task, work)
    form = {"introduce": forms.introduction, "finish": FINISHED}.get(call.request, forms.reply)
    received = Message({}, as_mapping(message.facts.get("algorithm")))
    is_compared_whole = private or call.request != "introduce"
    if wrong := find_form_differences(reply, form, received, first=is_compared_whole):
        names = f"{', '.join(wrong[:10])}{' and more' * (len(wrong) > 10)}"
        raise Refused("unexpected_reply") from ValueError(
            f"{algorithm.name}, {call.request}: not as rehearsed: {names}"
        )
