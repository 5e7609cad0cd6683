"""Private training as laws: every method gets it without knowing, and pays exactly what was planned.

All of them compute in doubles (`consilium.testing.held.in_doubles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from consilium.testing import testbed
from consilium.testing.held import hold, hold_equal
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import Answers
from federation.outcome import Outcome
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import Schedule, method_schedule
from privacy.dp.access import Rows, Split
from privacy.dp.events import compose_events
from privacy.dp.protection import Protection
from privacy.message import Call, Message, number_of

ADAM = Work(optimizer="adam", lr=0.02, batch=24, epochs=2)
SGD = Work(optimizer="sgd", lr=0.05, batch=24, epochs=2)
SCHEDULE = Schedule(rounds=2)
NOISED = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")
QUIET = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, counts_noise=0.0)
"""Everybody is drawn at every step, nothing is clipped, and there is no noise."""


def make_single_row_table(seed: int, shift: float = 0.0) -> dict[Split, Rows]:
    """A table in which every patient has one row, so that a patient's mean is the row."""
    rows = testbed.make_table(seed, shift=shift)
    return {split: Rows(r.x.double(), r.y, torch.arange(len(r.y))) for split, r in rows.items()}


def make_private_hospitals(
    algorithm: Algorithm, work: Work, sites: Mapping[str, Mapping[Split, Rows]], protection: Protection | None
) -> dict[str, testbed.Hospital]:
    """Hospitals that train under this protection."""
    made = testbed.make_federation(algorithm, sites, task=testbed.make_task(), work=work)
    return {name: replace(hospital, protection=protection) for name, hospital in made.items()}


def train_hospitals(
    algorithm: Algorithm, work: Work, hospitals: Mapping[str, testbed.Hospital], **options: Any
) -> Outcome:
    """Train with these hospitals. options: of `testbed.train`."""
    options = {"schedule": SCHEDULE, **options}
    return testbed.train(algorithm, hospitals, work=work, task=testbed.make_task(), **options)


def without_noise_and_clipping_and_with_everybody_drawn_it_is_plain_training(
    algorithm: Algorithm, work: Work, near: float = 1e-9
) -> None:
    """Same draws (all patients each step), patient-mean loss, huge clip, no noise."""
    sites = {"a": make_single_row_table(1), "b": make_single_row_table(2, 0.7)}
    plain, private = (
        make_private_hospitals(algorithm, work, sites, None),
        make_private_hospitals(algorithm, work, sites, QUIET),
    )
    left, right = train_hospitals(algorithm, work, plain), train_hospitals(algorithm, work, private)
    for name in sites:
        models = testbed.newest_model(plain[name]), testbed.newest_model(private[name])
        hold(testbed.are_close(*models, near), f"the model of site {name} is not that of plain training, to {near:g}")
        for round_ in left.losses[name]:
            private_loss, loss = number_of(right.losses[name], round_), number_of(left.losses[name], round_)
            hold(
                abs(private_loss - loss) <= near,
                f"the loss of site {name}, round {round_}, is {private_loss}, without privacy {loss}",
            )


def what_was_done_is_what_was_rehearsed(algorithm: Algorithm, work: Work) -> None:
    """A hospital charges its patients by a rehearsal without patients, so training must touch them as it did."""
    drawn = {"a": testbed.make_table(1), "b": testbed.make_table(2)}
    sites = {name: {s: Rows(r.x.double(), r.y, r.patient) for s, r in splits.items()} for name, splits in drawn.items()}
    hospitals = make_private_hospitals(algorithm, work, sites, NOISED)
    train_hospitals(algorithm, work, hospitals)
    initial = initial_parameters(algorithm, testbed.make_task(), seed=0)
    seen = rehearse_events(algorithm, testbed.make_task(), work, initial, NOISED)
    rounds = method_schedule(algorithm, SCHEDULE).rounds
    expected = compose_events([seen.introduction, *[seen.training] * rounds, *[seen.validation] * rounds])
    for name, hospital in hospitals.items():
        hold(
            compose_events(hospital.events) == expected,
            f"site {name} did {compose_events(hospital.events)}, rehearsed was {expected}",
        )


@dataclass
class Recording:
    """An engine that records questions and replies."""

    hospitals: Mapping[str, testbed.Hospital]
    calls: list[tuple[Call, Mapping[str, Message], Answers]] = field(default_factory=list)

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, sorted."""
        return tuple(sorted(self.hospitals))

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        """Ask all sites."""
        answers = testbed.SerializingEngine(self.hospitals).ask(call, messages)
        self.calls.append((call, messages, answers))
        return answers


def a_replayed_call_gives_the_same_bytes_and_spends_nothing(algorithm: Algorithm, work: Work) -> None:
    """Noise is drawn once: a second answer to the same question is the first."""
    hospitals = make_private_hospitals(
        algorithm, work, {"a": make_single_row_table(1), "b": make_single_row_table(2)}, NOISED
    )
    engine = Recording(hospitals)
    train_hospitals(algorithm, work, hospitals, engine=engine)
    before = {name: list(hospital.events) for name, hospital in hospitals.items()}
    call, messages, answers = next(entry for entry in reversed(engine.calls) if entry[0].request == "train")
    again = testbed.SerializingEngine(hospitals).ask(call, messages)
    for name, reply in again.replies.items():
        hold_equal(reply.tensors, answers.replies[name].tensors, f"the repeated reply of site {name}")
        hold(hospitals[name].events == before[name], f"site {name} looked at patients again")


LAWS = (
    without_noise_and_clipping_and_with_everybody_drawn_it_is_plain_training,
    what_was_done_is_what_was_rehearsed,
    a_replayed_call_gives_the_same_bytes_and_spends_nothing,
)
"""Of methods that accept private training of a network without buffers."""
