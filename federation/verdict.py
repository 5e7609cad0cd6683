"""Checks of a hospital's reply before the coordinator computes with it: form, finite numbers, plausible counts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from federation.parameters import split_numbers
from federation.participant import FIXED
from federation.rehearsal import find_form_differences
from privacy.message import Json, Message, as_mapping

WRONG = MALFORMED, NON_FINITE = "malformed", "non_finite"
"""The codes of `find_reply_problem`."""
OTHER_FIXED = "other_fixed_values"
"""The code of an introduction from a hospital where the network's code fixes other values."""
LARGEST_COUNT = 10**7
"""The largest number of examples that is accepted from a hospital: more than any collection of medical images has. An
unlimited number could dominate every weighted mean."""
LARGEST_NUMBER = torch.finfo(torch.float32).max / 2**16


def find_introduction_problem(reply: Message, form: Message) -> str | None:
    """The code of the problem of an introduction, or None. form: a rehearsed one; the first axis of its tensors may
    count examples.
    """
    if reply.facts.get(FIXED) != form.facts.get(FIXED):
        return OTHER_FIXED
    return MALFORMED if find_form_differences(reply, form, Message(), first=False) else _find_number_problem(reply)


def find_reply_problem(reply: Message, template: Message) -> str | None:
    """The code of the problem of a reply, or None: `malformed` (names, shapes, types) or `non_finite`."""
    facts, rehearsed = reply.facts.get("algorithm"), as_mapping(template.facts.get("algorithm"))
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in template.tensors.items()}
    arrived = {name: (tensor.shape, tensor.dtype) for name, tensor in reply.tensors.items()}
    if expected != arrived or not isinstance(facts, dict) or set(facts) != set(rehearsed):
        return MALFORMED
    if any(type(facts[name]) is not type(rehearsed[name]) for name in facts):
        return MALFORMED
    if facts.get("n") == 0:  # no examples; if all hospitals sent 0, the mean over hospitals would divide by 0
        return MALFORMED
    loss, n = reply.facts.get("loss"), reply.facts.get("n")
    if type(n) is not int or not 0 <= n < LARGEST_COUNT:
        return MALFORMED
    if type(loss) is not (float if n else type(None)) or (isinstance(loss, float) and not loss >= 0):  # NaN is not
        return MALFORMED
    return _find_number_problem(Message(reply.tensors, {"algorithm": facts, "loss": loss}))


def _find_number_problem(reply: Message) -> str | None:
    """The code of a reply whose numbers cannot be used in a computation, in any form; or None."""
    if not isinstance(reply.facts.get("algorithm"), dict):
        return MALFORMED
    numbers = list(_list_numbers(dict(reply.facts)))
    if any(isinstance(value, int) and not 0 <= value < LARGEST_COUNT for value in numbers):
        return MALFORMED
    finite = all(map(_is_sane, reply.tensors.values())) and all(abs(value) < LARGEST_NUMBER for value in numbers)
    return None if finite else NON_FINITE


def _list_numbers(value: Json) -> Iterator[int | float]:
    """All numbers within facts, without truth values."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _list_numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _is_sane(tensor: Tensor) -> bool:
    """Whether all values are finite, and small enough that the mean over sites is finite too."""
    if not tensor.is_floating_point() or tensor.is_meta:  # a rehearsed form has no numbers
        return True
    most = torch.finfo(tensor.dtype).max / 2**16
    return all(bool((piece.abs() < most).all()) for piece in split_numbers(tensor.detach()))
