"""What was done to patients, in dp-accounting's terms; what it costs is computed elsewhere, from these.

A reply that carries no event is a non-private one: epsilon is infinite, never zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, NoOpDpEvent

from privacy.message import Json

NON_PRIVATE: DpEvent = NonPrivateDpEvent()
NOTHING: DpEvent = NoOpDpEvent()  # declared: no patient had any influence


def composed(events: Sequence[DpEvent]) -> DpEvent:
    """All events together. One non-private part makes the whole non-private; no event at all is NOTHING."""
    if any(isinstance(event, NonPrivateDpEvent) for event in events):
        return NON_PRIVATE
    return ComposedDpEvent(list(events)) if events else NOTHING


def describe(event: DpEvent) -> Json:
    """A JSON form of the event for the ledger.

    Raises:
        ValueError: the event is of a kind that this project does not book (it would be booked wrongly).
    """
    if isinstance(event, NonPrivateDpEvent):
        return {"kind": "non_private"}
    if isinstance(event, NoOpDpEvent):
        return {"kind": "nothing"}
    if isinstance(event, ComposedDpEvent):
        return {"kind": "composed", "events": [describe(part) for part in event.events]}
    raise ValueError(f"the event {event!r} is of a kind that the ledger does not know")
