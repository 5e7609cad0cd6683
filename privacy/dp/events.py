"""Privacy events: frozen records of the mechanisms that were applied to patients' data, as the ledger stores them.

`privacy/dp/accounting.py` computes their cost. Mechanisms have the names and parameters of dp-accounting's events, so
that a ledger can be accounted for without this code. Every noise multiplier is relative to the sensitivity to adding or
removing one patient, in L2 for Gaussian and in L1 for Laplace noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from privacy.message import Json

Declaration: TypeAlias = Literal["counts", "fingerprint", "failure"]
"""Facts that may leave outside the guarantee: `counts` of files, studies, patients and examples and what follows from
them (who takes part); `fingerprint`, percentiles of studies' spacings, shapes, values and volumes, and the median
share of a study that is not empty; `failure`, that a request failed."""


@dataclass(frozen=True)
class NonPrivate:
    """No bound on what a patient contributed: epsilon is infinite, never zero."""

    kind: ClassVar = "non_private"


@dataclass(frozen=True)
class Nothing:
    """No patient had any influence beyond events that are in the ledger already (post-processing)."""

    kind: ClassVar = "nothing"


@dataclass(frozen=True)
class Declared:
    """Depends on patients, has no noise, and is outside the guarantee because the hospital declared it so. It costs
    nothing, and every statement lists it."""

    what: Declaration
    kind: ClassVar = "declared"


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise; noise_multiplier = standard deviation / L2 sensitivity."""

    noise_multiplier: float
    kind: ClassVar = "gaussian"

    def __post_init__(self) -> None:
        _check_nonnegative("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class SharedGaussian:
    """Gaussian noise in a sum over hospitals, of which each adds a part and nothing but the sum is seen.

    noise_multiplier: standard deviation of one hospital's part / L2 sensitivity. hospitals: n, which all add as much.
    Where c of them work together with the coordinator, the others hide a patient of theirs by
    noise_multiplier * sqrt(n - c); where all others do, by noise_multiplier alone.
    """

    noise_multiplier: float
    hospitals: int
    kind: ClassVar = "shared_gaussian"

    def __post_init__(self) -> None:
        _check_nonnegative("noise_multiplier", self.noise_multiplier)
        if type(self.hospitals) is not int or self.hospitals < 1:
            raise ValueError(f"hospitals must be a whole number >= 1, found {self.hospitals!r}")

    def against(self, colluding: int | None) -> Gaussian:
        """The noise that remains where so many hospitals work together with the coordinator; None = all others do."""
        honest = 1 if colluding is None else max(1, self.hospitals - colluding)
        return Gaussian(self.noise_multiplier * math.sqrt(honest))


@dataclass(frozen=True)
class Laplace:
    """Laplace noise; noise_multiplier = scale / L1 sensitivity = 1 / epsilon."""

    noise_multiplier: float
    kind: ClassVar = "laplace"

    def __post_init__(self) -> None:
        _check_nonnegative("noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Pure:
    """An (epsilon, 0)-private mechanism of any form, such as a noisy maximum."""

    epsilon: float
    kind: ClassVar = "pure"

    def __post_init__(self) -> None:
        _check_nonnegative("epsilon", self.epsilon)


@dataclass(frozen=True)
class PoissonSampled:
    """`event` on a Poisson sample: every patient is in it with the same probability, independently of all others."""

    probability: float
    event: Event
    kind: ClassVar = "poisson_sampled"

    def __post_init__(self) -> None:
        _check_nonnegative("probability", self.probability)
        if self.probability > 1:
            raise ValueError(f"probability must be in [0, 1], found {self.probability}")


@dataclass(frozen=True)
class SelfComposed:
    """`event`, `count` times; each one may depend on the results before (adaptive composition)."""

    event: Event
    count: int
    kind: ClassVar = "self_composed"

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise ValueError(f"count must be a whole number >= 0, found {self.count!r}")


@dataclass(frozen=True)
class Composed:
    """All of `events`, one after the other."""

    events: tuple[Event, ...]
    kind: ClassVar = "composed"


@dataclass(frozen=True)
class Part:
    """`event` on the patients of one split only. cut: name of the division of the hospital's patients into splits.

    A patient is in one split of a cut, decided independently of other patients, so each patient is charged for one
    split of a cut only (parallel composition). Events of different cuts add up.
    """

    cut: str
    split: str
    event: Event
    kind: ClassVar = "part"

    def __post_init__(self) -> None:
        if not (isinstance(self.cut, str) and isinstance(self.split, str)):
            raise ValueError(f"cut and split must be text, found {self.cut!r} and {self.split!r}")


Event: TypeAlias = (
    NonPrivate
    | Nothing
    | Declared
    | Gaussian
    | SharedGaussian
    | Laplace
    | Pure
    | PoissonSampled
    | SelfComposed
    | Composed
    | Part
)
KINDS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        *(NonPrivate, Nothing, Declared, Gaussian, SharedGaussian, Laplace, Pure),
        *(PoissonSampled, SelfComposed, Composed, Part),
    )
}
DECLARATIONS: tuple[Declaration, ...] = ("counts", "fingerprint", "failure")
NON_PRIVATE, NOTHING = NonPrivate(), Nothing()


class UnknownEvent(ValueError):
    """An event in a ledger that this code does not know: it must be counted as non-private, or refused."""


def compose_events(events: Sequence[Event]) -> Event:
    """All events as one, in the shortest form with the same cost: equal events are counted, not repeated.

    One non-private part makes the whole non-private; no event at all, or nothing but NOTHING, is NOTHING.
    """
    if any(_non_private(event) for event in events):
        return NON_PRIVATE
    counted: dict[Event, int] = {}
    for event, times in _flatten_events(events, 1):
        if not isinstance(event, Nothing) and times:
            counted[event] = 1 if isinstance(event, Declared) else counted.get(event, 0) + times
    parts = tuple(event if times == 1 else SelfComposed(event, times) for event, times in counted.items())
    return NOTHING if not parts else parts[0] if len(parts) == 1 else Composed(parts)


def _flatten_events(events: Sequence[Event], times: int) -> Iterator[tuple[Event, int]]:
    """Every event that is not a composition, with its count."""
    for event in events:
        if isinstance(event, Composed):
            yield from _flatten_events(event.events, times)
        elif isinstance(event, SelfComposed):
            yield from _flatten_events([event.event], times * event.count)
        else:
            yield event, times


def _non_private(event: Event) -> bool:
    """Whether any mechanism of an event is non-private."""
    return any(isinstance(part, NonPrivate) for part in list_leaves(event))


def list_leaves(event: Event) -> Iterator[Event]:
    """The mechanisms and declarations that an event consists of, without counts and samples."""
    if isinstance(event, Composed):
        for part in event.events:
            yield from list_leaves(part)
    elif isinstance(event, PoissonSampled | SelfComposed | Part):
        yield from list_leaves(event.event)
    else:
        yield event


def change_event(event: Event, change: Callable[[Event], Event | None]) -> Event:
    """The event with its parts replaced by what `change` returns; None: the part stays, and its own parts are tried."""
    replacement = change(event)
    if replacement is not None:
        return replacement
    if isinstance(event, Composed):
        return Composed(tuple(change_event(part, change) for part in event.events))
    if isinstance(event, PoissonSampled | SelfComposed | Part):
        return replace(event, event=change_event(event.event, change))
    return event


def assume_colluding(event: Event, colluding: int | None) -> Event:
    """The event with shared noise as it protects where so many hospitals work together with the coordinator; None = all
    others do. Accountants that are not told assume the latter.
    """
    return change_event(event, lambda part: part.against(colluding) if isinstance(part, SharedGaussian) else None)


def describe_event(event: Event) -> Json:
    """The event as the ledger writes it.

    Raises:
        UnknownEvent: it is of a kind that the ledger does not know.
    """
    if type(event) not in KINDS.values():
        raise UnknownEvent(f"the event {event!r} is of a kind that the ledger does not know")
    if isinstance(event, Composed):
        return {"kind": event.kind, "events": [describe_event(part) for part in event.events]}
    inner = {"event": describe_event(event.event)} if isinstance(event, PoissonSampled | SelfComposed | Part) else {}
    facts = {name: value for name, value in vars(event).items() if name != "event"}
    return {"kind": event.kind, **facts, **inner}


def parse_event(facts: Json) -> Event:
    """The event from what `describe` wrote.

    Raises:
        UnknownEvent: naming what is not known: a kind, a field, or a value out of range.
    """
    if not isinstance(facts, dict) or not isinstance(facts.get("kind"), str) or facts["kind"] not in KINDS:
        raise UnknownEvent(f"no event: {str(facts)[:120]!r}; known kinds are {', '.join(KINDS)}")
    fields = {name: value for name, value in facts.items() if name != "kind"}
    kind = KINDS[str(facts["kind"])]
    try:
        if "event" in fields:
            fields["event"] = parse_event(fields["event"])  # type: ignore[assignment]
        if kind is Composed:
            events = fields.pop("events")
            if not isinstance(events, list) or fields:
                raise TypeError("events must be a list, and nothing else is known")
            return Composed(tuple(parse_event(part) for part in events))
        event = kind(**fields)  # type: ignore[arg-type]
    except (TypeError, KeyError, OverflowError) as error:
        raise UnknownEvent(f"the event {str(facts)[:120]!r} is not as it should be: {error}") from error
    except ValueError as error:
        raise UnknownEvent(str(error)) from error
    if isinstance(event, Declared) and event.what not in DECLARATIONS:
        raise UnknownEvent(f"declared {event.what!r}; known are {', '.join(DECLARATIONS)}")
    return event


def parse_or_non_private(facts: Json) -> Event:
    """As `parse_event`; an event that cannot be read counts as non-private, because it happened."""
    try:
        return parse_event(facts)
    except UnknownEvent:
        return NON_PRIVATE


def _check_nonnegative(name: str, value: float) -> None:
    """Raises: ValueError: the value is not a finite number >= 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number >= 0, found {value!r}")
