"""What a handler gets, as the worker makes it of a message; and which requests a file asks."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.coordinator.trained import TrainedMethod
from pipelines.hospital.hospital import Context
from pipelines.requests import REQUESTS
from pipelines.requests.check import parse_question
from privacy.message import Call, Json, Message, Params


def asked(call: Call, facts: Mapping[str, Json] | None = None, tensors: Params | None = None) -> Context[Any]:
    """The parsed question. Raises: Refused: it is none of the call's request."""
    message = Message(tensors or {}, facts or {})
    return Context(call, parse_question(call.request, message), message)


ASKS = {"ask", "ask_all", "ask_each", "ask_one"}


def requests_in(path: Path) -> set[str]:
    """The requests that a file asks hospitals, by the declarations that it gives to what asks."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    asking = [node for node in calls if getattr(node.func, "attr", getattr(node.func, "id", "")) in ASKS]
    constants = {getattr(each, "attr", getattr(each, "id", "")) for node in asking for each in node.args[:2]}
    return {name.lower() for name in constants if name.isupper() and name.lower() in REQUESTS}


def trained_method(**changes: Any) -> TrainedMethod:
    """What the stage `train` writes of a method, of one round and without losses."""
    facts = {"label": "a", "name": "fedavg", "space": "raw", "train_run": "r/x", "rounds": 1, "best": None}
    nothing = {"losses": {}, "totals": {}, "missing": [], "parameters": 0, "received": 0, "between": {}}
    return TrainedMethod(**{**facts, **nothing, **changes})
