"""Sites that answer at once, late or never, in a file that a new process imports quickly."""

from __future__ import annotations

import time

from federation.engine import Worker
from privacy.message import Message
from privacy.release.gate import Refused


def echo(call, message):
    return Message(message.tensors, {**message.facts, "round": call.round, "run": call.run, "runs": {**call.runs}})


def refuse(call, message):
    raise Refused("policy_request")


def fail(call, message):
    raise RuntimeError("Mr Smith, born 1950, has a file that cannot be read")


def slow(call, message):
    """Works for longer than the deadline that it is told."""
    time.sleep(0.1 + float(message.facts.get("deadline", 0.0)))
    return Message()


WORKERS: dict[str, Worker] = {"c": echo, "a": echo, "refusing": refuse, "failing": fail, "slow": slow}


def hired(asked, tell):
    return WORKERS
