"""The gate: the one function that every reply of a site passes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from privacy import ledger as book
from privacy.message import Call, Json
from privacy.policy import Policy


class Refused(Exception):
    """What crosses the wall instead of a reply: a code, because a sentence could carry patient data."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def release(
    reply: bytes, event: Json, *, call: Call, policy: Policy, ledger: Path, recipient: str, now: str, replay: bool
) -> None:
    """Let a serialized reply go, or refuse it. The ledger line is on disk before this returns.

    Args:
        event: what was done to patients to make this reply, as `events.describe` says it.
        recipient: who gets it. now: ISO time. replay: the reply was committed before, so it may have left before.

    Raises:
        Refused: the policy does not allow it; the refusal stands in the ledger too.
    """
    digest = hashlib.sha256(reply).hexdigest()
    code = None if policy.allows(call.request) else "policy_request"
    if code is None and len(reply) > policy.max_bytes:
        code = "policy_bytes"
    book.append(
        ledger,
        {
            "time": now,
            "run": call.run,
            "round": call.round,
            "request": call.request,
            "recipient": recipient,
            "event": event,
            "sha256": digest,
            "bytes": 0 if code else len(reply),
            "again": replay and code is None and _left_before(ledger, call, digest),
            "refused": code,
        },
    )
    if code is not None:
        raise Refused(code)


def book_refusal(code: str, event: Json, *, call: Call, ledger: Path, recipient: str, now: str) -> None:
    """Write down a code that leaves instead of a reply: whether something failed can depend on patients."""
    line: dict[str, Json] = {
        "time": now,
        "run": call.run,
        "round": call.round,
        "request": call.request,
        "recipient": recipient,
    }
    book.append(ledger, {**line, "event": event, "sha256": None, "bytes": 0, "again": False, "refused": code})


def _left_before(ledger: Path, call: Call, digest: str) -> bool:
    """Whether these bytes left in answer to this call already: read from the ledger, which alone knows what left."""
    asked = (call.run, call.round, call.request, digest, None)
    keys = ("run", "round", "request", "sha256", "refused")
    return any(tuple(line.get(key) for key in keys) == asked for line in book.lines(ledger))
