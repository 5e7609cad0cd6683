"""What a handler gets, as the worker makes it of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.hospital.hospital import Asked
from pipelines.requests.check import parse_question
from privacy.message import Call, Json, Message, Params


def asked(call: Call, facts: Mapping[str, Json] | None = None, tensors: Params | None = None) -> Asked[Any]:
    """The parsed question. Raises: Refused: it is none of the call's request."""
    message = Message(tensors or {}, facts or {})
    return Asked(call, parse_question(call.request, message), message)
