"""Whether a ledger was restored from an older copy, by what others remember of it; and how to record that openly.

A ledger that was restored with its head is whole in itself: nothing in it tells that later lines are missing, and what
they spent would be spent again. The receiver of an answer is a witness that its line was there. A coordinator remembers
the last answer of each hospital, and names it when it begins again; a ledger without its line is refused
(`older_ledger`).

A person who restored a ledger on purpose says so by a line of its own, `restored`, which counts what was lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from privacy.dp.events import NON_PRIVATE, Pure, describe_event
from privacy.message import Json
from privacy.release import ledger as ledgers

OLDER = "older_ledger"
"""The code by which a hospital refuses."""
RESTORED = "restored"
"""In the place of a request: a person put the ledger back from an older copy."""


def has_left(lines: Iterable[Mapping[str, Json]], sha256: str) -> bool:
    """Whether an answer left by these lines, or a person said that its line was lost. sha256: of the answer's bytes."""
    return any(line.get("sha256") == sha256 for line in lines)


def book_restored(ledger: Path, sha256: str, epsilon: float | None, *, now: str) -> None:
    """Add the line of a person who restored a ledger in which the line of an answer is missing.

    Args:
        sha256: of the answer that a witness holds. epsilon: what all missing lines may have cost a patient; None:
        unknown, so that no finite ε is left. If they had a δ, it adds to the ledger's.

    Raises:
        ValueError: sha256 is not a digest; its line is there, so nothing was lost; or epsilon is negative.
        Damaged, OSError: as `ledger.open_transaction`.
    """
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"the sha256 of an answer has 64 hex digits, found {sha256[:80]!r}; the hospital's log has it")
    event = NON_PRIVATE if epsilon is None else Pure(epsilon)
    with ledgers.open_transaction(ledger) as opened:
        if has_left(opened.lines(), sha256):
            raise ValueError(f"the answer {sha256[:12]}… is in the ledger: it lacks nothing that this witness knows")
        line: dict[str, Json] = {"run": "", "round": 0, "request": RESTORED, "recipient": "", "bytes": 0}
        facts: dict[str, Json] = {"sha256": sha256, "event": describe_event(event), "again": False, "refused": None}
        opened.append({"time": now, **line, **facts})
