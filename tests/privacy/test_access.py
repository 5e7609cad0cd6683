"""Data access: which rows are drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilium.testing import testbed
from privacy.dp.access import CHUNK, Batch, Rows, in_turn, open_access
from privacy.dp.batches import batches_per_epoch, iterate_minibatches
from privacy.dp.events import NON_PRIVATE, compose_events


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_an_epoch_draws_every_row_once_in_as_many_batches_as_promised(n, batch, seed):
    stream = iterate_minibatches(
        torch.zeros(n, dtype=torch.long), batch=batch, balance=False, generator=torch.Generator().manual_seed(seed)
    )
    for _ in range(2):
        parts = [next(stream) for _ in range(batches_per_epoch(n, batch))]
        assert sorted(torch.cat(parts).tolist()) == list(range(n))
        assert all(2 <= len(part) <= batch + 1 for part in parts) or n == 1 or batch == 1


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 5))
def test_whole_batches_have_as_many_rows_each_and_draw_all_rows_equally_often(n, batch, seed):
    """Of patches: the memory that a plan counts holds so many, and few patients give no smaller batches."""
    y = torch.zeros(n, dtype=torch.long)
    stream = iterate_minibatches(
        y, batch=batch, balance=False, generator=torch.Generator().manual_seed(seed), fixed_size=True
    )
    parts = [next(stream) for _ in range(3 * n)]
    assert all(len(part) == batch for part in parts)
    assert torch.bincount(torch.cat(parts), minlength=n).tolist() == [3 * batch] * n
    assert batches_per_epoch(n, batch, fixed_size=True) * batch >= n
    if n % batch == 0:
        generator = torch.Generator().manual_seed(seed)
        plain = iterate_minibatches(y, batch=batch, balance=False, generator=generator)
        assert all(torch.equal(part, next(plain)) for part in parts)


def test_balance_draws_classes_equally_often():
    y = torch.tensor([0] * 190 + [1] * 10)
    stream = iterate_minibatches(y, batch=50, balance=True, generator=torch.Generator().manual_seed(0))
    drawn = y[torch.cat([next(stream) for _ in range(80)])]
    assert 0.47 < drawn.float().mean() < 0.53


def test_every_look_at_a_patient_is_an_event():
    access = open_access(testbed.make_table(0), batch=4, seed=0)
    task = testbed.make_task()
    looks = [
        lambda: access.size("train"),
        lambda: access.shares(2),
        access.draw,
        lambda: access.gradient(task.network(), task.objective, access.draw()),
        lambda: access.measure(task.network(), task.validation, "validation"),
        lambda: access.votes(lambda x, y: y, 2),
    ]
    for look in looks:
        before = len(access.events)
        look()
        assert len(access.events) > before
    assert compose_events(access.events) is NON_PRIVATE


def test_a_measure_is_the_mean_in_evaluation_mode_and_chunks_do_not_matter():
    rows = testbed.make_table(0)
    access = open_access(rows, batch=4, seed=0)
    task = testbed.make_task()
    module = task.network().train()
    whole = access.measure(module, task.validation, "train")
    assert whole == pytest.approx(access.measure(module, task.validation, "train", chunk=3), abs=1e-7)
    assert module.training


def test_a_parameter_that_the_loss_does_not_reach_gets_zeros():
    access = open_access(testbed.make_table(0), batch=4, seed=0)
    task = testbed.make_task()
    module = task.network()
    module.spare = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(access.gradient(module, task.objective, access.draw()).gradient["spare"], torch.zeros(3))


def test_the_same_seed_draws_the_same_rows_and_an_empty_site_is_refused():
    draws = [open_access(testbed.make_table(0), batch=4, seed=7).draw() for _ in range(2)]
    assert torch.equal(draws[0].x, draws[1].x)
    with pytest.raises(ValueError, match="at least 1, found 0"):
        open_access(testbed.make_table(0), batch=0, seed=0)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_votes_are_each_patients_shares_added_up(n, patients, bins, seed):
    """The slow second implementation: dictionaries, patient by patient; a bin that is not there gets no vote."""
    g = torch.Generator().manual_seed(seed)
    patient = torch.randint(patients, (n,), generator=g)
    x = torch.randint(-1, bins + 1, (n,), generator=g)
    wanted = [0.0] * bins
    for one in set(patient.tolist()):
        own = [int(v) for v, p in zip(x, patient, strict=True) if p == one and 0 <= v < bins]
        for choice in own:
            wanted[choice] += 1 / len(own)
    access = open_access({"train": Rows(x, x.clamp(0, 1), patient)}, batch=2, seed=0)
    assert access.votes(lambda x, y: x, bins).tolist() == pytest.approx(wanted)


def test_whoever_assigns_votes_sees_one_patient_at_a_time_with_all_their_rows():
    rows = testbed.make_table(0)["train"]
    seen = []

    def assign(x, y):
        seen.append((x, y))
        return torch.zeros(len(x), dtype=torch.long)

    open_access({"train": rows}, batch=4, seed=0).votes(assign, 3)
    assert len(seen) == len(rows.patient.unique())
    for patient, (x, y) in zip(rows.patient.unique(), seen, strict=True):
        assert torch.equal(x, rows.x[rows.patient == patient]) and torch.equal(y, rows.y[rows.patient == patient])


def test_votes_of_another_shape_or_type_are_refused_without_a_word_about_patients():
    access = open_access(testbed.make_table(0), batch=4, seed=0)
    for assign in (lambda x, y: torch.zeros(len(x)), lambda x, y: torch.zeros(len(x), 2, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"one int64 a row, \(m,\), found torch.*give the index"):
            access.votes(assign, 2)
    with pytest.raises(ValueError, match="bins must be at least 1, found 0"):
        access.votes(lambda x, y: y, 0)


@pytest.mark.parametrize("shape", [(2, 3), (6, 1), (1, 6), (4, 2)])
def test_rows_of_a_draw_take_what_is_nobodys_in_turn(shape):
    x = torch.eye(8)
    access = open_access({"train": Rows(x, torch.zeros(8, dtype=torch.long), torch.arange(8))}, batch=8, seed=0)
    module = torch.nn.Linear(8, 1, bias=False)
    extra = torch.arange(1.0, 1.0 + shape[0] * shape[1]).reshape(*shape, 1)
    found = access.gradient(module, lambda f, b: f(b.x)[:, 0] * b.aux[:, 0], access.draw(full=True), extra)
    count = shape[0] * shape[1]
    assert (8 * found.gradient["weight"][0]).tolist() == pytest.approx([1.0 + i % count for i in range(8)])


@pytest.mark.parametrize("shape", [(3,), (0, 2, 1), (2, 0, 1)])
def test_an_aux_of_another_form_is_refused(shape):
    access, task = open_access(testbed.make_table(0), batch=4, seed=0), testbed.make_task()
    with pytest.raises(ValueError, match=r"aux must be \(A, K, ...\)"):
        access.gradient(task.network(), task.objective, access.draw(), torch.zeros(shape))


@pytest.mark.parametrize("aux", [None, torch.arange(12.0).view(3, 2, 2)])
@pytest.mark.parametrize("n", [1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_a_gradient_in_evaluation_mode_is_that_of_all_rows_at_once_though_they_go_through_in_chunks(n, aux):
    access = open_access({"train": table(n)}, batch=4, seed=0)
    module, seen = testbed.make_task().network().double().eval(), []

    def objective(forward, batch):
        seen.append(len(batch.y))
        beside = 0.0 if batch.aux is None else batch.aux.sum(dim=1)
        return testbed.make_task().objective(forward, batch) * (1 + beside)

    found = access.gradient(module, objective, access.draw(full=True), aux)
    draw, extra = access.draw(full=True), None if aux is None else in_turn(aux, n)
    loss = objective(module, Batch(draw.x, draw.y, extra)).mean()
    loss.backward()
    assert sum(seen[:-1]) == n
    assert max(seen[:-1]) <= CHUNK
    assert found.loss == pytest.approx(float(loss.detach()), rel=1e-12)
    assert testbed.are_close(found.gradient, {name: p.grad for name, p in module.named_parameters()}, 1e-12)
    assert len(access.events) == 3


def test_a_gradient_in_training_mode_is_that_of_one_batch():
    access = open_access({"train": table(3 * CHUNK)}, batch=2 * CHUNK, seed=0)
    module, seen = testbed.make_task().network().double().train(), []

    def objective(forward, batch):
        seen.append(len(batch.y))
        return testbed.make_task().objective(forward, batch)

    access.gradient(module, objective, access.draw())
    access.gradient(module, objective, access.draw(full=True))
    assert seen == [2 * CHUNK, 3 * CHUNK]


def table(n: int) -> Rows:
    g = torch.Generator().manual_seed(n)
    return Rows(torch.randn(n, 4, generator=g, dtype=torch.float64), torch.arange(n) % 2, torch.arange(n))
