"""Noise as a law: each answer of private data access, of each method in each phase, has the noise in its events.

Two runs at two hospitals, with patients whose part in an answer is far below the noise (see `recorded_noise`). The
recorded difference is noise only; it has the deviation in the events in every tensor, and no part of it is repeated: in
another step, round, parameter, run or hospital. Nothing is random: bytes come from seeds, one for each request.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch

import methods
import small_clip
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.randomness import derive_seed
from federation.rounds import Schedule
from harmonize import evolution, fitted_prior, moments, wgan
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.networks import CLASSES
from harmonize.prior import PRIORS, draw_pictures
from harmonize.wgan import WganGp
from personalize.pfedmoap import PFedMoAP
from privacy.dp.access import Rows
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from recorded_noise import Piece, RecordingAccess, Tape, complaints

STEPS = Work(optimizer="sgd", lr=1e-4, batch=24, epochs=None, steps=3)
LOUD = Protection(
    clip=1e-4, sampling=0.5, views=2, noise=50.0, validation_noise=0.5, counts_noise=0.2, loss_bound=1.4, cut="c"
)
METHODS = methods.with_work(methods.private(), replace(STEPS, optimizer="adam", lr=1e-6), STEPS)


@dataclass
class RecordingHospital(testbed.Hospital):
    """A hospital whose data accesses are recorded."""

    run: int = 0
    accesses: list[RecordingAccess] = field(default_factory=list)
    phase: tuple[object, ...] = ()

    def __call__(self, call, message):
        self.phase = (call.round, call.request)
        return super().__call__(call, message)

    def access(self, seed: int):
        assert self.protection is not None
        source = Tape(random.Random(derive_seed(seed, self.run, self.name)).randbytes)
        made = open_private(self.splits, self.protection, counts=NOTHING, source=source)
        self.accesses.append(RecordingAccess(made, (self.run, self.name, *self.phase)))
        return self.accesses[-1]


def runs(algorithm, work, task=None, tables=None, protection=LOUD) -> tuple[list[Piece], list]:
    """The noise in two runs at two hospitals, and their events except those of counts."""
    task = task or testbed.make_task()
    tables = tables or {"a": testbed.make_table(1), "b": testbed.make_table(2, shift=0.5)}
    pieces, events = [], []
    for run in (0, 1):
        hospitals = {
            name: RecordingHospital(name, rows, algorithm, task, work, protection=protection, run=run)
            for name, rows in tables.items()
        }
        testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=2))
        accesses = [access for hospital in hospitals.values() for access in hospital.accesses]
        pieces += [piece for access in accesses for piece in access.pieces]
        events += [event for access in accesses for event in access.events]
    return pieces, events


@pytest.mark.repeats(12)
@pytest.mark.parametrize(("algorithm", "work"), METHODS)
def test_each_answer_of_each_method_and_phase_has_the_noise_that_was_booked_and_none_of_it_twice(algorithm, work):
    pieces, events = runs(algorithm, work)
    assert complaints(pieces, events) == []
    share = 1.0 if algorithm.name in ("moments", "dp_head") else 0.5  # these ask all patients
    trained = set() if algorithm.name == "as_begun" else {("train", share)}  # which asks nobody
    assert {piece.what for piece in pieces} >= {*trained, ("validation", 1.0)}


def test_a_network_of_masks_has_it_too():
    task, tables = testbed.dense_task(norm="group"), {"a": testbed.make_scenes(1), "b": testbed.make_scenes(2)}
    assert complaints(*runs(FedAvg(), STEPS, task, tables, replace(LOUD, validation_noise=None))) == []


def test_a_prompt_and_the_gate_of_experts_have_it_too():
    tables = {"a": small_clip.table(1), "b": small_clip.table(2, shift=0.5)}
    pieces, events = runs(PFedMoAP(d=4, heads=2, experts=2), STEPS, small_clip.task(), tables)
    assert complaints(pieces, events) == []
    gated = [any(name.startswith("gate.") for name in piece.parts) for piece in pieces if piece.what[0] == "train"]
    assert any(gated) and not all(gated)  # no expert has come in round 1, so the gate is not trained


def recorded(rows: Rows, protection: Protection, seed: int) -> RecordingAccess:
    source = Tape(random.Random(seed).randbytes)
    return RecordingAccess(open_private({"train": rows}, protection, source=source, counts=NOTHING), (seed,))


def images(patients: int = 6, each: int = 2) -> Rows:
    number = patients * each
    x = torch.rand(number, 1, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return Rows(x, torch.arange(number) % 2, torch.arange(number) // each)


INPUTS = (1, 16, 16)


def test_a_critic_that_patients_train_has_it_at_each_step():
    p = Protection(clip=1e-3, sampling=0.5, views=2, noise=50.0)
    settings = WganGp(
        learns="whole", steps=5, critic_steps=2, batch=8, latent=4, width=2, views=2, sampling=0.5, prior=None
    )
    accesses = [recorded(images(), p, seed) for seed in (0, 1)]
    for access in accesses:
        wgan.train(settings, access, INPUTS, seed=3)
    assert complaints(*together(accesses)) == []


def test_a_critic_on_public_features_has_it_at_each_look():
    p = Protection(clip=1e-3, sampling=1.0, noise=50.0)
    public = draw_pictures(PRIORS["prostate_adc"], torch.arange(60) % CLASSES, INPUTS, 0)
    critic = moments.make_moments(public, INPUTS, 20)
    accesses = [recorded(images(), p, seed) for seed in (0, 1)]
    for access in accesses:
        moments.mean_features(access, critic, 6)
    assert complaints(*together(accesses)) == []


def test_votes_of_an_evolution_have_it_in_each_round():
    settings = PrivateEvolution(candidates=16, rounds=4, public=50, components=5)
    accesses = [recorded(images(), Protection(votes_noise=50.0), seed) for seed in (0, 1)]
    for access in accesses:
        evolution.evolve_population(settings, access, INPUTS, seed=3)
    assert complaints(*together(accesses)) == []


def test_means_that_a_prior_is_fitted_to_have_it_at_each_look():
    settings = FittedPrior(pictures=16, squared=4)
    accesses = [recorded(images(), Protection(clip=1e-3, sampling=1.0, noise=50.0), seed) for seed in (0, 1)]
    for access in accesses:
        fitted_prior.fit(settings, access, INPUTS, seed=3)
    assert complaints(*together(accesses)) == []


def test_shares_of_classes_have_it_each_time():
    rows = testbed.make_table(1, n=400)
    source = Tape(random.Random(0).randbytes)
    access = RecordingAccess(open_private(rows, Protection(counts_noise=2.0), source=source))
    for _ in range(100):
        access.shares(2)
    assert complaints(access.pieces, access.events) == []


def together(accesses) -> tuple[list[Piece], list]:
    return [piece for access in accesses for piece in access.pieces], [
        event for access in accesses for event in access.events
    ]
