"""The door: which rows are drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rig
from privacy.access import batches_per_epoch, minibatches, open_access
from privacy.events import NON_PRIVATE, composed


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_an_epoch_draws_every_row_once_in_as_many_batches_as_promised(n, batch, seed):
    stream = minibatches(
        torch.zeros(n, dtype=torch.long), batch=batch, balance=False, generator=torch.Generator().manual_seed(seed)
    )
    for _ in range(2):
        parts = [next(stream) for _ in range(batches_per_epoch(n, batch))]
        assert sorted(torch.cat(parts).tolist()) == list(range(n))
        assert all(2 <= len(part) <= batch + 1 for part in parts) or n == 1 or batch == 1


def test_balance_draws_classes_equally_often():
    y = torch.tensor([0] * 190 + [1] * 10)
    stream = minibatches(y, batch=50, balance=True, generator=torch.Generator().manual_seed(0))
    drawn = y[torch.cat([next(stream) for _ in range(80)])]
    assert 0.47 < drawn.float().mean() < 0.53


def test_every_look_at_a_patient_is_an_event():
    access = open_access(rig.table(0), batch=4, seed=0)
    task = rig.task()
    looks = [
        lambda: access.size("train"),
        lambda: access.shares(2),
        access.draw,
        lambda: access.gradient(task.network(), task.objective, access.draw()),
        lambda: access.measure(task.network(), task.validation, "validation"),
    ]
    for look in looks:
        before = len(access.events)
        look()
        assert len(access.events) > before
    assert composed(access.events) is NON_PRIVATE


def test_a_measure_is_the_mean_in_evaluation_mode_and_chunks_do_not_matter():
    rows = rig.table(0)
    access = open_access(rows, batch=4, seed=0)
    task = rig.task()
    module = task.network().train()
    whole = access.measure(module, task.validation, "train")
    assert whole == pytest.approx(access.measure(module, task.validation, "train", chunk=3), abs=1e-7)
    assert module.training


def test_a_parameter_that_the_loss_does_not_reach_gets_zeros():
    access = open_access(rig.table(0), batch=4, seed=0)
    task = rig.task()
    module = task.network()
    module.spare = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(access.gradient(module, task.objective, access.draw()).gradient["spare"], torch.zeros(3))


def test_the_same_seed_draws_the_same_rows_and_an_empty_site_is_refused():
    draws = [open_access(rig.table(0), batch=4, seed=7).draw() for _ in range(2)]
    assert torch.equal(draws[0].x, draws[1].x)
    with pytest.raises(ValueError, match="at least 1, found 0"):
        open_access(rig.table(0), batch=0, seed=0)
