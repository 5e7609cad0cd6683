"""Quantized uploads: of a reply only what changed is sent, each number in eight bits.

A hospital sends the difference between each tensor of its reply and what it was sent, as whole numbers q of -127 to 127
and one step for the tensor:

    step = max |reply - sent| / 127,  q = round((reply - sent) / step),  half to even,

and the coordinator computes with sent + step q, which is at most step / 2 from the reply. Alistarh, Grubic, Li, Tomioka
and Vojnovic (QSGD, NeurIPS 2017) quantize gradients by norms and at random; the nearest number has a smaller error, and
is the same each time.

Tensors with fewer than two axes go as they are: they are few bytes, and among them are the variances of norms, which a
rounded difference could make negative. So do whole numbers, and what has nothing to be
compared with.

Under differential privacy this comes after the noise: what is sent is a function of a reply that is private already,
and costs no more (post-processing). torch's own quantized tensors are deprecated, and would round to -128, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from federation.algorithm import Absorbing, Algorithm
from federation.merging import DIFFERENCES, find_reference
from federation.parameters import split_numbers
from federation.rehearsal import Forms
from federation.spool import move_params_to_file
from federation.verdict import MALFORMED, NON_FINITE
from privacy.message import Message, Params, as_mapping

SCALES = "scales"
"""The tensor of a packed reply with the step of each quantized tensor, float64, in the order of their names."""
LARGEST = 127
"""q is at least its negative, so that a difference and its opposite are rounded alike."""
SUM_NEEDS = (
    "masked sums add words of one grid, and each hospital's steps are its own: all would have to agree on them first"
)
"""Why quantized replies cannot be hidden in sums."""


@dataclass(frozen=True, kw_only=True)
class Int8:
    """Differences to what was sent, in eight bits a number."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["int8"] = "int8"


def find_upload_problem(algorithm: Algorithm, forms: Forms) -> str | None:
    """Why a method's replies cannot be quantized, or None, as where it sends none. forms: of its messages."""
    if not forms.reply.tensors or _find_befores(forms.reply.tensors, forms.sent):
        return None
    return (
        f"{algorithm.name} sends no matrix of floating-point numbers that its hospitals were sent before, so there is "
        "no difference to quantize; leave upload out, or take another method"
    )


def pack_reply(algorithm: Algorithm, reply: Message, received: Message, memory: Message) -> tuple[Message, Message]:
    """A hospital's reply as it crosses, and the memory that goes with it. received: the question.

    A method that remembers what it said learns by `absorb` what the coordinator reads instead, so that both go on from
    the same.
    """
    befores = _find_befores(reply.tensors, received)
    pairs = {name: _quantize(reply.tensors[name], before) for name, before in befores.items()}
    steps = torch.tensor([step for _, step in pairs.values()], dtype=torch.float64)
    tensors = {**reply.tensors, **{name: q for name, (q, _) in pairs.items()}, SCALES: steps}
    packed = Message(tensors, reply.facts)
    if not isinstance(algorithm, Absorbing):
        return packed, memory
    lost = {
        name: (value := reply.tensors[name]) - _restore(q, step, befores[name], value.dtype).to(value.device)
        for name, (q, step) in pairs.items()
    }
    question = Message(received.tensors, as_mapping(received.facts.get("algorithm")))
    return packed, Message(algorithm.absorb(memory.tensors, lost, question), memory.facts)


def packed_form(form: Message, sent: Message) -> Message:
    """The form of a packed reply, on torch's device without memory. form: of the reply; sent: what it answers."""
    befores = _find_befores(form.tensors, sent)
    tensors = {name: torch.empty_like(form.tensors[name], dtype=torch.int8, device="meta") for name in befores}
    steps = torch.empty(len(befores), dtype=torch.float64, device="meta")
    return Message({**form.tensors, **tensors, SCALES: steps}, form.facts)


def unpack_replies(
    replies: Mapping[str, Message], sent: Mapping[str, Message], form: Message
) -> tuple[dict[str, Message], dict[str, str]]:
    """Packed replies as the method wrote them, up to rounding; and site -> code of those that are none: `malformed`, or
    `non_finite` where a number was not finite. sent: what each site answers. form: of a reply.
    """
    codes = {site: _find_packing_problem(reply, packed_form(form, sent[site])) for site, reply in replies.items()}
    good = {
        site: Message(move_params_to_file(_unpack(reply, sent[site], form)), reply.facts)
        for site, reply in replies.items()
        if codes[site] is None
    }
    return good, {site: code for site, code in codes.items() if code is not None}


def _find_packing_problem(reply: Message, form: Message) -> str | None:
    """The code of the problem of a packed reply, or None. Its other numbers are checked once it is unpacked."""
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in form.tensors.items()}
    if expected != {name: (tensor.shape, tensor.dtype) for name, tensor in reply.tensors.items()}:
        return MALFORMED
    steps = reply.tensors[SCALES]
    if not bool(steps.isfinite().all()):
        return NON_FINITE
    return MALFORMED if bool((steps < 0).any()) else None


def _unpack(reply: Message, sent: Message, form: Message) -> Params:
    """The tensors of a packed reply, whose form is right, in the order of the form."""
    befores = _find_befores(form.tensors, sent)
    steps = dict(zip(befores, reply.tensors[SCALES].tolist(), strict=True))
    return {
        name: _restore(reply.tensors[name], steps[name], befores[name], like.dtype)
        if name in befores
        else reply.tensors[name]
        for name, like in form.tensors.items()
    }


def _find_befores(tensors: Params, sent: Message) -> dict[str, Tensor]:
    """Name -> what a tensor is compared with, of those that are quantized, in the order of their names."""
    befores = {
        name: _find_before(name, value, sent)
        for name, value in sorted(tensors.items())
        if value.is_floating_point() and value.dim() > 1
    }
    return {name: before for name, before in befores.items() if before is not None}


def _find_before(name: str, value: Tensor, sent: Message) -> Tensor | None:
    """What a tensor is compared with: the tensor of the same name that was sent, the mean that CusFL sends in a role of
    its own, or zeros where it is a difference already; None: there is nothing.
    """
    if name.startswith(DIFFERENCES):
        return torch.zeros(()).expand(value.shape)
    if (before := find_reference(name, value, sent)) is None and name.startswith("model/"):
        before = sent.tensors.get(name.replace("model/", "federated/", 1))
    return before if before is not None and before.shape == value.shape and before.is_floating_point() else None


def _quantize(value: Tensor, before: Tensor) -> tuple[Tensor, float]:
    """q, int8 on the CPU, of the shape of `value`; and the step, which is not finite where a difference is not."""
    largest = torch.stack([piece.abs().amax() for piece in _differences(value, before)] or [torch.zeros(())]).amax()
    step = float(largest) / LARGEST
    numbers = torch.zeros(value.shape, dtype=torch.int8)
    if step > 0 and math.isfinite(step):
        for place, piece in zip(split_numbers(numbers), _differences(value, before), strict=True):
            place.copy_((piece / step).round().clamp(-LARGEST, LARGEST))
    return numbers, step


def _differences(value: Tensor, before: Tensor) -> Iterator[Tensor]:
    """value - before in float64 on the CPU, in pieces of its numbers (m,), without empty ones."""
    for left, right in zip(split_numbers(value.detach()), split_numbers(before), strict=True):
        if left.numel():
            yield left.cpu().double() - right.cpu().double()


def _restore(numbers: Tensor, step: float, before: Tensor, kind: torch.dtype) -> Tensor:
    """before + step q, on the device of `before`, of the type that a method has its numbers in."""
    restored = torch.empty(numbers.shape, dtype=kind, device=before.device)
    pieces = zip(split_numbers(restored), split_numbers(numbers), split_numbers(before), strict=True)
    for place, number, past in pieces:
        place.copy_(past.double() + step * number.to(past.device).double())
    return restored
