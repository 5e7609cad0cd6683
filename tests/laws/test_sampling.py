"""Poisson sampling as a law: what a step sees of N patients, told from outside by gradients without noise.

Row i is the i-th unit vector and the gradient of a row is the row, so a noiseless gradient says who was drawn. Sizes
are binomial in mean, variance and shape; each patient comes as often as any other; what one draw holds says nothing of
the next, nor of another patient; and a draw of nobody is a step like any other, noised and booked. Bytes come from
seeds, so nothing is left to chance; the thresholds are those of one false alarm in a million.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from consilium.testing import testbed
from federation.descent import Site, Work
from privacy.dp.access import Rows
from privacy.dp.events import NOTHING, Gaussian, Part, PoissonSampled, SelfComposed, compose_events
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from recorded_noise import ALARM, RecordingAccess, Tape, booked, complaints

DRAWS, PATIENTS = 400, 20


class Named(nn.Module):
    """<w, x>: the gradient of a row is the row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x @ self.w


def inner(forward, batch):
    return forward(batch.x)


def seen(q: float, seed: int) -> np.ndarray:
    """(DRAWS, PATIENTS) 0 or 1: who was in each draw. Patients have one, two or three rows, which stand apart."""
    sizes = torch.arange(PATIENTS) % 3 + 1
    patient = torch.repeat_interleave(torch.arange(PATIENTS), sizes)
    patient = patient[torch.randperm(len(patient), generator=torch.Generator().manual_seed(0))]
    rows = Rows(torch.eye(len(patient)), torch.zeros(len(patient), dtype=torch.long), patient)
    quiet = Protection(clip=1e2, sampling=q, views=2, noise=0.0)
    access = open_private({"train": rows}, quiet, source=random.Random(seed).randbytes)
    module = Named(len(patient))
    sums = torch.stack([access.gradient(module, inner, access.draw()).gradient["w"] for _ in range(DRAWS)])
    found = torch.zeros(DRAWS, PATIENTS).index_add_(1, patient, sums * q * PATIENTS).numpy()
    assert np.allclose(found, found.round(), atol=1e-3)
    return found.round()


@pytest.fixture(scope="module", params=[0.05, 0.35, 0.8])
def draws(request) -> tuple[float, np.ndarray]:
    return request.param, seen(request.param, seed=11)


def test_sizes_of_samples_have_the_mean_and_the_variance_of_independent_choices(draws):
    q, who = draws
    sizes, variance = who.sum(axis=1), PATIENTS * q * (1 - q)
    away = (sizes.mean() - PATIENTS * q) / (variance / DRAWS) ** 0.5
    assert abs(away) < stats.norm.isf(ALARM / 2)
    # the fourth moment of a binomial: the mean of (size - Nq)^2 has the deviation below
    spread = (variance * (1 + (3 * PATIENTS - 6) * q * (1 - q)) - variance**2) / DRAWS
    assert abs(np.mean((sizes - PATIENTS * q) ** 2) - variance) < stats.norm.isf(ALARM / 2) * spread**0.5


def test_sizes_of_samples_have_the_shape_of_a_binomial(draws):
    q, who = draws
    expected = DRAWS * stats.binom.pmf(np.arange(PATIENTS + 1), PATIENTS, q)
    found = np.bincount(who.sum(axis=1).astype(int), minlength=PATIENTS + 1)
    common = expected >= 5
    both = [np.append(one[common], one[~common].sum()) for one in (found, expected)]
    assert stats.chisquare(both[0], both[1]).pvalue > ALARM


def test_every_patient_is_as_likely_as_any_other_and_says_nothing_of_others(draws):
    q, who = draws
    times = who.sum(axis=0).astype(int)
    assert min(stats.binomtest(int(k), DRAWS, q).pvalue for k in times) > ALARM / PATIENTS
    unit = (who - q) / (q * (1 - q)) ** 0.5
    together = np.triu(unit.T @ unit / DRAWS**0.5, 1)
    assert np.abs(together).max() < stats.norm.isf(ALARM / PATIENTS**2)


def test_a_draw_says_nothing_of_later_draws(draws):
    q, who = draws
    unit = (who - q) / (q * (1 - q)) ** 0.5
    for lag in range(1, 6):
        common = (unit[lag:] * unit[:-lag]).sum() / ((DRAWS - lag) * PATIENTS) ** 0.5
        assert abs(common) < stats.norm.isf(ALARM / 20)
    assert len({row.tobytes() for row in who}) > (1 if q < 0.1 else DRAWS // 2)


def test_draws_of_nobody_are_steps_with_noise_that_are_booked():
    """With q = 0.02 and 12 patients, four draws in five are of nobody."""
    rows, task = testbed.make_table(1), testbed.make_task()
    access = open_private(
        rows, Protection(sampling=0.02, noise=50.0), counts=NOTHING, source=Tape(random.Random(5).randbytes)
    )
    heard = RecordingAccess(access)
    site = Site("a", task, Work(optimizer="sgd", lr=1e-6, epochs=None, steps=60), heard)
    assert site.descend(task.network(), task.objective).steps == 60
    empty = sum(not len(use.views) for use in access.uses)
    assert 30 < empty < 60
    assert compose_events(access.events) == SelfComposed(Part("", "train", PoissonSampled(0.02, Gaussian(50.0))), 60)
    assert Counter(booked(access.events)) == {("train", 0.02, 50.0): 60}
    assert complaints(heard.pieces, access.events) == []
