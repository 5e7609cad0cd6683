"""What an event did to patients, in words for readers without knowledge of privacy accounting."""

from __future__ import annotations

from privacy.dp.events import (
    Composed,
    Declared,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    Nothing,
    Part,
    PoissonSampled,
    Pure,
    SelfComposed,
    SharedGaussian,
)
from privacy.release.meaning import DECLARED


def describe_in_words(event: Event) -> str:
    """The privacy mechanism of an event in words, for readers without knowledge of privacy accounting."""
    match event:
        case NonPrivate():
            return "no bound on what one patient contributed: no formal guarantee"
        case Nothing():
            return "no patients' data beyond those in other lines"
        case Declared():
            return f"{DECLARED[event.what]}; no noise, declared to be outside the guarantee"
        case Gaussian(0) | Laplace(0) | SharedGaussian(0):
            return "no noise: no formal guarantee"
        case Gaussian():
            return f"noise {event.noise_multiplier:g} times what one patient can change"
        case SharedGaussian():
            together = f"{event.against(0).noise_multiplier:.4g} times by {event.hospitals} hospitals together"
            return (
                f"in a sum over hospitals, noise {event.noise_multiplier:.4g} times what one patient can change by "
                f"this hospital, {together}"
            )
        case Laplace():
            return f"Laplace noise {event.noise_multiplier:g} times what one patient can change"
        case Pure():
            return f"a choice at random that is ({event.epsilon:g}, 0)-private"
        case SelfComposed(event=PoissonSampled() as part):
            inner = f"each patient in one with probability {part.probability:g}, {describe_in_words(part.event)}"
            return f"{event.count:,} {'step' if event.count == 1 else 'steps'}, {inner}"
        case SelfComposed():
            return f"{event.count:,} times {describe_in_words(event.event)}"
        case PoissonSampled():
            return f"each patient in it with probability {event.probability:g}, {describe_in_words(event.event)}"
        case Composed():
            return "; and ".join(describe_in_words(part) for part in event.events) or "nothing"
        case Part():
            return f"of the {event.split} patients only: {describe_in_words(event.event)}"
