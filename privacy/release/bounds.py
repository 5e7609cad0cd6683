"""The bounds that every call and message from the coordinator must meet.

`check_request` is the first thing that a hospital does with a request, in every engine. No patient's data have been
read by then, so a refusal cannot depend on a patient. It leaves no line in the ledger, so that malformed requests
cannot fill the ledger with text of the sender's choice.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from html import escape
from itertools import islice

from torch import Tensor

from privacy.message import Call, Message
from privacy.release.gate import Refused

RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}/[a-z0-9][a-z0-9_-]{0,79}")
"""A run's name and a conversation's name in it."""
TENSOR = re.compile(r"[!-~]{1,300}")
ROUNDS = 1_000_000
SITES = 10_000
FACTS, DEPTH, TEXT, NUMBER = 100_000, 24, 2**20, 2**64
"""Of a message's facts: how many values and keys, how deep, how many characters in all, and the largest integer."""
TENSORS, BYTES, AXES = 100_000, 2**32, 8
HEADER = 2**26
"""Bytes of names, shapes and facts in front of a message's tensors, on a wire."""
SHOWN = 60
ACTIVE = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
"""Characters that are Markdown syntax anywhere in a line."""
CONTROL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible characters: they control a terminal, break lines, change the direction of text, or
are unassigned surrogates."""


def check_request(call: Call, message: Message, rounds: Mapping[str, bool]) -> None:
    """Check that a request is within bounds. rounds: request -> whether it belongs to the rounds of a training.

    Raises:
        Refused: `malformed_run`, `malformed_round`, `malformed_merged`, `unknown_request`, `malformed_message`; its
        cause is a sentence on one line, which quotes at most `SHOWN` characters of the request.
    """
    for code, complaint in (
        ("malformed_run", _find_run_problem(call.run)),
        (
            "unknown_request",
            (
                None
                if isinstance(call.request, str) and call.request in rounds
                else f"no such request: {show_value(call.request)}"
            ),
        ),
        ("malformed_round", _find_round_problem(call, rounds)),
        ("malformed_merged", _find_merged_problem(call.merged)),
        ("malformed_message", facts_beyond(message.facts)),
        ("malformed_message", tensors_beyond(message.tensors)),
    ):
        if complaint is not None:
            raise Refused(code) from ValueError(complaint)


def show_value(value: object) -> str:
    """An untrusted value in one short line of printable ASCII; of a large value only its type."""
    if isinstance(value, str):
        cut = "" if len(value) <= SHOWN else f"... ({len(value)} characters)"
        return f"{value[:SHOWN]!a}{cut}"
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < NUMBER):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def remove_controls(text: str) -> str:
    """A text without the characters of `CONTROL`: each becomes a space."""
    return "".join(" " if unicodedata.category(c) in CONTROL else c for c in text)


def escape_text(text: str) -> str:
    """An untrusted text on one line, with Markdown and HTML escaped."""
    words = escape(" ".join(remove_controls(text).split()), quote=False)
    return ACTIVE.sub(r"\\\g<0>", words).replace("://", "&#58;//")


def _find_run_problem(run: object) -> str | None:
    """What is wrong with a run's name, or None."""
    if isinstance(run, str) and len(run) <= 161 and RUN.fullmatch(run):
        return None
    return f"a run is named RUN/CONVERSATION, each of a-z 0-9 _ - (1 to 80), found {show_value(run)}"


def _find_round_problem(call: Call, rounds: Mapping[str, bool]) -> str | None:
    """Training has rounds from 1; all other requests have round 0."""
    low, high = (1, ROUNDS) if rounds.get(call.request) else (0, 0)
    if _is_round(call.round) and low <= call.round <= high:
        return None
    return f"the round of {call.request} must be in [{low}, {high}], found {show_value(call.round)}"


def _is_round(value: object) -> bool:
    """Whether a value is an integer in [0, ROUNDS]; a truth value is none."""
    return type(value) is int and 0 <= value <= ROUNDS


def _find_merged_problem(merged: object) -> str | None:
    """What is wrong with `Call.merged`, or None."""
    if not isinstance(merged, Mapping) or len(merged) > SITES:
        return f"merged must be a mapping of at most {SITES} sites, found {show_value(merged)}"
    for site, value in merged.items():
        if not (isinstance(site, str) and len(site) <= 80 and _is_round(value)):
            return (
                f"merged must map names of sites to rounds in [0, {ROUNDS}], found {show_value(site)}:"
                f" {show_value(value)}"
            )
    return None


def facts_beyond(facts: object) -> str | None:
    """Why facts are out of bounds, or None. Reading stops at the first bound that is exceeded."""
    if not isinstance(facts, Mapping):
        return f"facts must be a mapping, found {show_value(facts)}"
    waiting: list[tuple[object, int]] = [(facts, 1)]
    values = text = 0
    while waiting:
        value, depth = waiting.pop()
        parts: list[object] = []
        if isinstance(value, str):
            text += len(value)
            if text > TEXT or _is_unprintable(value):
                return f"facts hold more than {TEXT} characters, or one that cannot be printed: {show_value(value)}"
        elif isinstance(value, Mapping):
            parts = [*islice(value.keys(), FACTS), *islice(value.values(), FACTS)]
            if any(not isinstance(key, str) for key in islice(value, FACTS)):
                return "keys of facts must be text"
        elif isinstance(value, list | tuple):
            parts = list(islice(value, FACTS))
        elif not (value is None or isinstance(value, bool) or _is_number(value)):
            return (
                "facts must be text, finite numbers (integers below 2^64), lists and mappings, found"
                f" {show_value(value)}"
            )
        values += 1
        waiting += [(part, depth + 1) for part in parts]
        if values + len(waiting) > FACTS or depth > DEPTH:
            return f"facts hold more than {FACTS} values, or lie more than {DEPTH} deep"
    return None


def _is_unprintable(text: str) -> bool:
    """Whether a text has a character of `CONTROL`."""
    return not text.isprintable() and any(unicodedata.category(c) in CONTROL for c in text)


def _is_number(value: object) -> bool:
    """Whether a value is an integer below 2^64 in size, or a finite float."""
    return abs(value) < NUMBER if isinstance(value, int) else isinstance(value, float) and math.isfinite(value)


def tensors_beyond(tensors: object) -> str | None:
    """Why tensors are out of bounds, or None."""
    if not isinstance(tensors, Mapping) or len(tensors) > TENSORS:
        return f"tensors must be a mapping of at most {TENSORS}, found {show_value(tensors)}"
    size = 0
    for name, tensor in tensors.items():
        if not (isinstance(name, str) and TENSOR.fullmatch(name)):
            return f"a tensor is named by 1 to 300 letters, digits and signs of ASCII, found {show_value(name)}"
        if not isinstance(tensor, Tensor) or tensor.is_sparse or tensor.is_complex() or tensor.dim() > AXES:
            return f"{show_value(name)} must be a dense, real tensor of at most {AXES} axes"
        size += tensor.numel() * tensor.element_size()
        if size > BYTES:
            return f"tensors hold more than {BYTES} bytes"
    return None
