"""A method's replies as words that can be added up, and the sum as one reply that stands for all.

A method is `summable` if one reply with the weighted mean of all replies leads to the same state as all of them
(`merge({site: mean}) = merge(replies)`), so that the coordinator need not see any. Tensors of the role `sum` are whole
numbers and are added as they are; all others are averaged, weighted as the method says. Each hospital sends

    w, n, and for each number x of its reply round(2^30 w x), or x itself for the role `sum`,

as whole numbers modulo 2^64. 2^-30 is finer than the float32 of a network's parameters; a number beyond what 64 bits
hold for so many hospitals is refused, never wrapped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from federation.algorithm import Algorithm, is_summable
from federation.parameters import split_numbers
from privacy.message import Call, Json, Message, as_mapping
from privacy.secure_sum import add_words, mask_words

SUM = "sum"
"""The role of tensors that are added up and not averaged."""
MASKED = "masked"
"""The tensor of a reply whose words are hidden."""
FRACTION = 2.0**30
EVERYBODY = "everybody"
"""The name under which a method gets the reply that stands for all hospitals."""
WEIGHT = "n"
KEY, KEYS = "key", "keys"
"""Facts: a hospital's public key in its introduction, and in a round's question the keys of all in the sum."""


class Unsummable(ValueError):
    """A reply holds a number that is not finite, or too large to be added up."""


def find_sum_problem(algorithm: Algorithm, introduction: Message, form: Message) -> str | None:
    """Why a method's replies cannot be added up unseen, or None. introduction, form: of a rehearsed site."""
    facts = as_mapping(form.facts.get("algorithm"))
    if introduction.tensors or as_mapping(introduction.facts.get("algorithm")):
        return f"{algorithm.name} begins with something that each hospital says alone, which no sum can hide"
    if not form.tensors and not facts:
        return None
    if not is_summable(algorithm):
        return (
            f"{algorithm.name} needs more of each hospital's reply than a weighted mean; take fedavg, fedsgd, or "
            "another method that averages, or leave secure_sum out"
        )
    return None if set(facts) == {WEIGHT} else f"{algorithm.name} says more than its number of examples"


def has_words(form: Message) -> bool:
    """Whether a reply of this form holds anything to add up."""
    return bool(form.tensors)


def masked_form(form: Message) -> Message:
    """The form of a hidden reply. form: of the reply itself."""
    size = 2 + sum(tensor.numel() for tensor in form.tensors.values())
    return Message({MASKED: torch.zeros(size, dtype=torch.int64, device="meta")}, {"algorithm": {}})


def encode_reply(algorithm: Algorithm, reply: Message, hospitals: int) -> Tensor:
    """A reply as words: (2 + numbers,) int64. hospitals: how many are added up.

    Raises:
        Unsummable: a number is not finite, or too large.
    """
    n = int(str(as_mapping(reply.facts["algorithm"])[WEIGHT]))
    weights = getattr(algorithm, "merge_weights", None) or getattr(algorithm, "weights", "size")
    weight = 1 if weights == "uniform" else n
    words = torch.empty(2 + sum(tensor.numel() for tensor in reply.tensors.values()), dtype=torch.int64)
    words[:2] = torch.tensor([weight, n])
    largest, place = 2.0**62 / max(1, hospitals), 2
    for name, tensor in sorted(reply.tensors.items()):
        is_sum = name.startswith(f"{SUM}/")
        for piece in split_numbers(tensor.detach().cpu()):
            words[place : place + len(piece)] = _encode_numbers(name, piece, None if is_sum else weight, largest)
            place += len(piece)
    return words


def _encode_numbers(name: str, numbers: Tensor, weight: int | None, largest: float) -> Tensor:
    """Numbers as words (m,), weighted; None: as they are. name: of their tensor. Raises: Unsummable."""
    if weight is not None:
        exact = (numbers.double() * (weight * FRACTION)).round()
        if not bool((exact.abs() < largest).all()):  # NaN is not
            raise Unsummable(f"{name} holds a number that is not finite, or too large to be added up")
        return exact.long()
    if len(numbers) and not max(-int(numbers.min()), int(numbers.max())) < largest:
        raise Unsummable(f"{name} holds a sum that is too large to be added up")
    return numbers


def hide_reply(
    algorithm: Algorithm,
    reply: Message,
    *,
    secret: str,
    keys: Mapping[str, str],
    site: str,
    call: Call,
    terms: Json = None,
) -> Message:
    """The reply to a call as masked words; its validation loss stays readable. keys: of all hospitals in the sum.

    terms: what all of them must have been told alike, such as the noise that each adds: the masks of hospitals with
    other terms, another method or a reply of another form do not cancel.

    Raises:
        Unsummable; ValueError: as `privacy.secure_sum.mask_words`.
    """
    words = encode_reply(algorithm, reply, len(keys))
    layout: list[Json] = [[name, list(tensor.shape)] for name, tensor in sorted(reply.tensors.items())]
    context = json.dumps([call.run, call.round, algorithm.name, layout, terms], sort_keys=True)
    masked = mask_words(words, secret, keys, site=site, context=context)
    return Message({MASKED: masked}, {**reply.facts, "algorithm": {}})


def reveal_sum(replies: Mapping[str, Message], form: Message) -> Message:
    """The reply that stands for all hospitals, from masked replies of every hospital in the sum.

    Raises:
        Unsummable: as `decode_sum`.
    """
    masked = [reply.tensors[MASKED] for reply in replies.values()]
    return _decode_words(lambda start, end: add_words([words[start:end] for words in masked]), form)


def decode_sum(words: Tensor, form: Message) -> Message:
    """The reply that stands for all hospitals. words: their sum. form: of a reply.

    Raises:
        Unsummable: the hospitals have no weight, so that there is no mean.
    """
    return _decode_words(lambda start, end: words[start:end], form)


def _decode_words(read: Callable[[int, int], Tensor], form: Message) -> Message:
    """As `decode_sum`. read: gives the words of the sum from one place to another, so that no more are in memory."""
    weight, n = (int(word) for word in read(0, 2))
    if weight <= 0:
        raise Unsummable(f"the hospitals' weights add up to {weight}")
    tensors, place = dict[str, Tensor](), 2
    for name, like in sorted(form.tensors.items()):
        tensors[name] = torch.empty(like.shape, dtype=torch.int64 if name.startswith(f"{SUM}/") else like.dtype)
        for piece in split_numbers(tensors[name]):
            part = read(place, place + len(piece))
            place += len(piece)
            if not name.startswith(f"{SUM}/"):
                mean = part.double() / (weight * FRACTION)
                part = mean if like.is_floating_point() else mean.round()
            piece.copy_(part)
    return Message(tensors, {WEIGHT: n})


def average_replies(algorithm: Algorithm, replies: Mapping[str, Message]) -> Message:
    """The reply that stands for all, from replies as a method gives them; what `summable` promises is about it."""
    wrapped = {site: Message(reply.tensors, {"algorithm": dict(reply.facts)}) for site, reply in replies.items()}
    words = [encode_reply(algorithm, reply, len(wrapped)) for reply in wrapped.values()]
    return decode_sum(torch.stack(words).sum(dim=0), next(iter(wrapped.values())))
