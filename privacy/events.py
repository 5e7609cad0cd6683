"""What was done to patients: frozen records, as the ledger writes them. What it costs is computed elsewhere, from
these.

Kinds so far: `NonPrivate` and `Nothing`. Mechanisms join them with their parameters, under the names that accountants
use (dp-accounting's events), so that a ledger line can be accounted for without knowing this code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from privacy.message import Json


@dataclass(frozen=True)
class NonPrivate:
    """No bound on what a patient contributed: epsilon is infinite, never zero."""

    kind: Literal["non_private"] = "non_private"


@dataclass(frozen=True)
class Nothing:
    """Declared: no patient had any influence."""

    kind: Literal["nothing"] = "nothing"


Event: TypeAlias = NonPrivate | Nothing
NON_PRIVATE, NOTHING = NonPrivate(), Nothing()


def composed(events: Sequence[Event]) -> Event:
    """All events together: one non-private part makes the whole non-private; no event at all is NOTHING."""
    return NON_PRIVATE if any(isinstance(event, NonPrivate) for event in events) else NOTHING


def describe(event: Event) -> Json:
    """The event as the ledger writes it.

    Raises:
        ValueError: it is of a kind that the ledger does not know, and would be booked wrongly.
    """
    if not isinstance(event, NonPrivate | Nothing):
        raise ValueError(f"the event {event!r} is of a kind that the ledger does not know")
    return dict(asdict(event))
