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
    reply: bytes, event: Json, *, call: Call, policy: Policy, ledger: Path, recipient: str, now: str, again: bool
) -> None:
    """Let a serialized reply go, or refuse it. The ledger line is on disk before this returns.

    Args:
        event: what was done to patients to make this reply, as `events.describe` says it.
        recipient: who gets it. now: ISO time. again: the same bytes were released before (a repeated call).

    Raises:
        Refused: the policy does not allow it; the refusal stands in the ledger too.
    """
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
            "sha256": hashlib.sha256(reply).hexdigest(),
            "bytes": 0 if code else len(reply),
            "again": again,
            "refused": code,
        },
    )
    if code is not None:
        raise Refused(code)
