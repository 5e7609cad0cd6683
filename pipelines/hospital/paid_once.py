"""Whether patients already paid for what is asked: a hospital whose policy says `spend_again: false` pays only once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from federation.conversation import load_memory, load_newest_memory
from pipelines.hospital.hospital import Hospital
from pipelines.requests import REQUESTS
from pipelines.requests.reading import Reading
from pipelines.runs.listing import list_paths
from pipelines.runs.store import DiskFolder
from privacy.message import Call, Json, Malformed, Message, as_mapping, to_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused

MEANING = "meaning"
"""The fact of a memory with the digest of the question that it answers, without the question's name."""


def meaning_of(call: Call, message: Message) -> str:
    """A digest of what is asked, whatever the conversation is called."""
    return hashlib.sha256(call.request.encode() + b"\0" + to_bytes(message)).hexdigest()


def check_paid_once(hospital: Hospital, call: Call, message: Message) -> None:
    """Check that no other conversation asked the same and was paid for.

    Raises:
        Refused: `policy_again`; its cause names the other conversation.
    """
    request = REQUESTS[call.request]
    # A round goes on with what `introduce` began, and is checked there. Reading files again costs nothing: counts leave
    # once, and are repeated.
    if hospital.policy.spend_again or request.rounds or issubclass(request.question, Reading):
        return
    lines = ledgers.read_lines(hospital.ledger) if hospital.ledger.exists() else iter(())
    paid = {str(line.get("run")) for line, _ in ledgers.charged_lines(lines) if _costs_privacy(line.get("event"))}
    meaning = meaning_of(call, message)
    for path in list_paths(hospital.root, "conversations/*/*/"):
        run = f"{path.parent.name}/{path.name}"
        if run != call.run and run in paid and meaning in _answered_meanings(path, call, message):
            raise Refused("policy_again") from ValueError(
                f"{run} asked the same, patients paid for it, and the policy says spend_again: false"
            )


def _answered_meanings(path: Path, call: Call, message: Message) -> set[str]:
    """Digests of the questions that a conversation answered; of a training, of its introduction."""
    folder = DiskFolder(path)
    try:
        facts = (load_memory(folder, 0) if call.request == "introduce" else load_newest_memory(folder)).facts
    except Malformed:
        return set()
    opening = as_mapping(facts.get("opening"))
    meaning_of_opening = (
        meaning_of(call, Message(message.tensors, opening)) if opening and call.request == "introduce" else ""
    )
    return {str(facts.get(MEANING, "")), meaning_of_opening} - {""}


def _costs_privacy(event: Json) -> bool:
    """Whether an event costs patients something."""
    return as_mapping(event).get("kind") not in ("nothing", "declared")
