"""A question or a reply as the message that is sent, and a reply's message as what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from pipelines.loader.validation import to_plain
from pipelines.requests.fields import WITHOUT_NULLS
from pipelines.requests.request import Request
from privacy.message import Json, Message, Params
from privacy.release.form import Absent, fields_of, read_fitting_form

R = TypeVar("R")


def to_facts(form: Any) -> dict[str, Json]:
    """The facts of a question or a reply, as JSON; fields that were left out are left out."""
    facts: dict[str, Json] = {}
    for field in fields_of(cast("type", type(form))):
        value = getattr(form, field.name)
        if field.shape is None and not isinstance(value, Absent):
            plain = to_plain(value)
            if WITHOUT_NULLS in get_args(field.kind) and isinstance(plain, dict):
                plain = {key: each for key, each in plain.items() if each is not None}
            facts[field.name] = plain
    return facts


def to_message(form: Any) -> Message:
    """A question or a reply as a message."""
    tensors: dict[str, Any] = {}
    for field in fields_of(cast("type", type(form))):
        value = getattr(form, field.name)
        if field.shape is None or isinstance(value, Absent):
            continue
        tensors |= value if isinstance(value, Mapping) else {field.name: value}
    return Message(cast("Params", tensors), to_facts(form))


def read_reply(request: Request[Any, R], message: Message) -> R:
    """What a hospital replied.

    Raises:
        Misformed: the request declares no such reply.
    """
    return read_fitting_form(request.replies, message)
