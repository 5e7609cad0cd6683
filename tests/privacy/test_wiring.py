"""The wiring of privacy, from the door to the plan: what is done is what is booked, and nobody can ask around it.

Every test here fails on a fault that was put in by hand and that no other test found.
"""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import rig
from federation.descent import Work
from federation.local import Local
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters, rehearse_events
from pipelines import check
from pipelines.cohort.cohort import Cohort
from pipelines.cohort.features import TableSource
from pipelines.cohort.phantom import PhantomSource
from pipelines.config import Config
from pipelines.document import ConfigError
from pipelines.door import to_plain, validate
from pipelines.run import make_world, with_own_policies
from pipelines.site import attack, learn, score
from pipelines.site.hospital import Hospital, write_cohort_file
from pipelines.site.stated import left, own_statement
from pipelines.site.worker import worker
from pipelines.site_settings import SiteSettings
from pipelines.spending import after, at_cut, planned, planned_in_all, renoised, steps_of
from pipelines.stages.audit import SAMPLING, STEPS, _attacked, tried
from pipelines.stopping import Stop
from pipelines.store import short
from pipelines_settings import BASE
from privacy import audit as auditing
from privacy import ledger as book
from privacy.access import Batch, Rows
from privacy.accounting import by_split, cost
from privacy.events import (
    NON_PRIVATE,
    NOTHING,
    Composed,
    Declared,
    Gaussian,
    Part,
    PoissonSampled,
    SelfComposed,
    composed,
    describe,
    read,
)
from privacy.gate import BUDGET, Refused, release, unaffordable
from privacy.message import Call, Message
from privacy.persample import patient_gradients, without_strays
from privacy.policy import Budget, Policy
from privacy.private import open_private
from privacy.protection import Protection

COUNTS = Declared("counts")
QUIET = Protection(clip=1e9, sampling=0.5, views=2, noise=0.0, cut="c")
DELTA = 1e-5


def bytes_of(seed: int):
    return random.Random(seed).randbytes


class Weights(nn.Module):
    """<w, x>: the gradient of a row is the row, so a noiseless gradient says who was drawn and with what."""

    def __init__(self, m: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.w, self.drop = nn.Parameter(torch.zeros(m)), nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(x) @ self.w


def inner(forward, batch):
    return forward(batch.x)


def known(sizes=(1, 2, 3), copies=1) -> Rows:
    """Row i is the i-th unit vector; patients have these many rows each, and their rows stand apart."""
    patient = torch.repeat_interleave(torch.arange(len(sizes) * copies), torch.tensor(sizes).repeat(copies))
    mixed = torch.randperm(len(patient), generator=torch.Generator().manual_seed(0))
    return Rows(torch.eye(len(patient)), (patient % 2)[mixed], patient[mixed])


def added(access, rows: Rows, *, full: bool = False, aux=None, objective=inner):
    """(sum of clipped gradients of the drawn patients) / what the door divides by."""
    return access.gradient(Weights(len(rows.y)), objective, access.draw(full=full), aux).gradient["w"]


# The door


def test_a_full_draw_is_every_row_of_everybody_as_it_is_divided_by_all_and_booked_as_no_sample():
    rows = known()
    access = open_private(
        {"train": rows}, replace(QUIET, noise=0.0), counts=COUNTS, augment=lambda x, generator: torch.zeros_like(x)
    )
    found = added(access, rows, full=True)
    assert found == pytest.approx(1.0 / torch.bincount(rows.patient)[rows.patient] / 3)
    assert composed(access.events) == composed([COUNTS, Part("c", "train", PoissonSampled(1.0, Gaussian(0.0)))])


def test_each_patient_is_drawn_with_q_alone_and_shows_k_views_that_change():
    rows, p = known(copies=2), replace(QUIET, sampling=0.3, views=2)
    access = open_private({"train": rows}, p, source=bytes_of(3))
    found = torch.stack([added(access, rows) for _ in range(600)]) * 0.3 * 6
    seen = torch.zeros(600, 6).index_add_(1, rows.patient, found)
    assert set(seen.round(decimals=4).flatten().tolist()) == {0.0, 1.0}
    assert seen.mean(dim=0) == pytest.approx(torch.full((6,), 0.3), abs=0.08)  # four standard deviations
    assert torch.corrcoef(seen.T).fill_diagonal_(0.0).abs().max() < 0.17
    assert set(found.round(decimals=4).flatten().tolist()) == {0.0, 0.5, 1.0}, "two views, of one row or of two"
    even = found.mean(dim=0) / 0.3 * torch.bincount(rows.patient)[rows.patient]
    assert even == pytest.approx(torch.ones(len(rows.y)), abs=0.4)


def test_augmentation_follows_from_a_state_of_its_own_for_every_draw():
    states = []

    def noted(x, generator):
        states.append(bytes(generator.get_state().tolist()))
        return x

    rows = known()
    for _ in range(2):
        torch.manual_seed(0)
        access = open_private({"train": rows}, replace(QUIET, sampling=1.0), augment=noted)
        for _ in range(2):
            added(access, rows)
    assert len(set(states)) == 4


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_patients_take_the_sets_of_aux_in_turn_whatever_the_chunk(chunk):
    rows = Rows(torch.eye(7), torch.zeros(7, dtype=torch.long), torch.arange(7))
    access = open_private({"train": rows}, replace(QUIET, chunk=chunk))
    aux = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    found = added(access, rows, full=True, aux=aux, objective=lambda f, b: f(b.x) * b.aux[:, 0])
    assert (7 * found).tolist() == pytest.approx([1, 2, 3, 1, 2, 3, 1])
    with pytest.raises(ValueError, match=r"aux must be \(A, 1, ...\)"):
        added(access, rows, full=True, aux=torch.zeros(3, 2, 1))


def test_dropout_differs_between_patients_and_needs_more_than_a_seed_of_64_bits():
    rows = Rows(torch.ones(12, 3), torch.zeros(12, dtype=torch.long), torch.arange(12))
    draw = bytes_of(5)
    found = []
    for _ in range(2):
        access = open_private({"train": rows}, QUIET, source=lambda n: bytes(8) if n == 8 else draw(n))
        module = Weights(3, dropout=0.5)
        found.append(access.gradient(module, inner, access.draw(full=True)).gradient["w"])
    assert not torch.equal(*found), "the eight bytes of the seed were the same"
    assert not set((found[0] * 12).round().tolist()) <= {0.0, 24.0}, "one mask for all patients"


def test_every_new_module_is_checked_before_its_gradient():
    rows = known()
    access = open_private({"train": rows}, QUIET)
    added(access, rows)
    both = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), Weights(6))
    with pytest.raises(ValueError, match="BatchNorm1d mixes the examples"):
        access.gradient(both, inner, access.draw())


def test_parameters_that_are_not_trained_have_no_gradient_and_no_part_in_the_clip():
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    module[0].requires_grad_(False)
    x, y, weight = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long), torch.full((2, 3), 1 / 3)
    found, _ = patient_gradients(module, lambda f, b: f(b.x)[:, 0], x, y, weight)
    assert set(found) == {"1.weight", "1.bias"}


def test_one_bad_number_in_any_parameter_leaves_the_whole_patient_out():
    gradients = {"a": torch.ones(3, 2), "b": torch.tensor([[1.0], [math.inf], [math.nan]])}
    kept, strays = without_strays(gradients)
    assert strays == 2
    assert kept["a"].tolist() == [[1, 1], [0, 0], [0, 0]] and kept["b"].tolist() == [[1], [0], [0]]


def wide(dropout: float) -> tuple[Weights, Rows]:
    """600 rows of 200 patients that stand apart: more than are measured at a time."""
    g = torch.Generator().manual_seed(1)
    patient = torch.randint(200, (600,), generator=g)
    module = Weights(5, dropout)
    module.w.data = torch.randn(5, generator=g)
    return module, Rows(torch.randn(600, 5, generator=g), torch.zeros(600, dtype=torch.long), patient)


def test_a_measure_is_of_patients_whose_rows_stand_apart_and_leaves_the_mode_as_it_was():
    module, rows = wide(0.5)
    p = replace(QUIET, validation_noise=0.0, loss_bound=100.0)
    access = open_private({"train": known(), "validation": rows}, p)
    found = [access.measure(module, lambda f, b: f(b.x) ** 2, "validation") for _ in range(2)]
    values = (rows.x @ module.w.detach()) ** 2
    wanted = torch.stack([values[rows.patient == one].mean() for one in rows.patient.unique()]).mean()
    assert found == pytest.approx([float(wanted)] * 2, rel=1e-5) and module.training


def test_noise_of_a_measure_and_of_shares_is_what_is_booked():
    p = replace(QUIET, validation_noise=1.5, loss_bound=4.0, counts_noise=0.25)
    rows = Rows(torch.eye(60), torch.arange(60) % 2, torch.arange(60))
    access = open_private({"train": rows, "validation": rows}, p, source=bytes_of(2))
    module = Weights(60)
    means = torch.tensor([access.measure(module, lambda f, b: f(b.x) + 2.0, "validation") for _ in range(400)])
    assert float(means.std()) == pytest.approx(1.5 * 2.0 / 60, rel=0.15)
    shares = torch.stack([access.shares(2) for _ in range(400)])
    assert float((shares[:, 0] - shares[:, 1]).std()) == pytest.approx(0.25 * 2**0.5 / 60, rel=0.15)


def test_shares_are_of_training_patients_booked_on_their_split_and_never_zero():
    rows = Rows(torch.zeros(6, 1), torch.tensor([1, 0, 1, 0, 0, 1]), torch.tensor([7, 3, 7, 3, 5, 7]))
    access = open_private({"train": rows}, replace(QUIET, counts_noise=0.0))
    assert access.shares(3).tolist() == pytest.approx([2 / 4, 1 / 4, 1 / 4])
    assert access.events == [Part("c", "train", Gaussian(0.0))]


def test_sizes_are_of_their_split_and_a_split_that_is_not_there_is_empty():
    access = open_private({"train": known(), "validation": known(copies=2)}, QUIET)
    assert [access.size(split) for split in ("train", "validation", "test")] == [6, 12, 0]


def test_settings_without_meaning_are_refused_one_by_one():
    for wrong in (
        {"sampling": 1.1},
        {"noise": -0.1},
        {"noise": math.inf},
        {"clip": math.inf},
        {"loss_bound": 0.0},
        {"loss_bound": math.nan},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Protection(**wrong)


def test_what_is_rehearsed_has_everything_that_is_booked_without_computing():
    class Told(Local):
        def introduce(self, site):
            site.shares()
            return super().introduce(site)

        def complaints(self, module, work, private):
            return []

    task, work = rig.task(), Work(epochs=3)
    p = replace(QUIET, noise=1.0, validation_noise=2.0, counts_noise=5.0)
    seen = rehearse_events(Told(), task, work, initial_parameters(Told(), task, seed=0), p)
    assert seen.introduction == Part("c", "train", Gaussian(5.0))
    assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.5, Gaussian(1.0))), 6)
    assert seen.validation == Part("c", "validation", Gaussian(2.0))
