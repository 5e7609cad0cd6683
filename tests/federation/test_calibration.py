"""Calibration at a hospital: what it may change (offset, scale, batch-norm statistics) and what it may not (order)."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from federation.calibration import (
    QUANTILE,
    How,
    Quantile,
    adapt_batch_norms,
    calibrate_model,
    centred_probabilities,
    compute_centring,
    has_adaptable_norms,
    log_odds,
)
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.task import Task
from privacy.dp.access import Rows

logits = st.lists(st.floats(-30, 30), min_size=1, max_size=30)
IMAGES = (1, 16, 16)


def doubles(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def centred(tested: Tensor, training: Tensor, quantile: float) -> Tensor:
    return centred_probabilities(tested, compute_centring(training, quantile))


def probabilities(task: Task, module: nn.Module, x: Tensor, train: Rows, how: How, *quantile: Quantile) -> Tensor:
    return calibrate_model(task, module, train, how, *quantile).probabilities(task, x)


def slow(tested: list[float], training: list[float], quantile: float) -> list[float]:
    """Centring written out: a sorted list, a line between two of it, a root of a mean of squares."""
    ordered = sorted(training)
    place = quantile * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    middle = ordered[low] + (place - low) * (ordered[high] - ordered[low])
    mean = math.fsum(training) / len(training)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in training) / len(training))
    spread = spread if ordered[0] < ordered[-1] else 1.0
    return [1 / (1 + math.exp(-(one - middle) / spread)) for one in tested]


@given(logits, logits, st.floats(0, 1))
def test_centring_against_a_slow_second_implementation(tested, training, quantile):
    assume(np.ptp(training) == 0 or np.std(training) > 1e-3)
    found = centred(doubles(tested), doubles(training), quantile)
    assert found.tolist() == pytest.approx(slow(tested, training, quantile), abs=1e-9)


def hospital(seed: int, n: int = 80) -> tuple[Tensor, Tensor, Tensor]:
    """Test logits, their labels, training logits."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < 0.4).long()
    return 1.2 * y + torch.randn(n, generator=g), y, torch.randn(n, generator=g, dtype=torch.float64) + 0.4


def pooled(parts: list[Tensor], labels: list[Tensor]) -> float:
    return float(roc_auc_score(torch.cat(labels), torch.cat(parts)))


@given(
    st.lists(st.tuples(st.floats(-50, 50), st.floats(0.01, 100)), min_size=2, max_size=3),
    st.floats(0, 1),
)
def test_a_constant_and_a_positive_factor_of_a_hospital_cancel_out(changes, quantile):
    found = [hospital(seed) for seed in range(len(changes))]
    labels = [y for _, y, _ in found]
    before = [centred(test, train, quantile) for test, _, train in found]
    after = [
        centred(factor * test.double() + offset, factor * train + offset, quantile)
        for (test, _, train), (offset, factor) in zip(found, changes, strict=True)
    ]
    for one, other in zip(before, after, strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    assert pooled(after, labels) == pytest.approx(pooled(before, labels), abs=1e-12)


def test_an_offset_between_hospitals_costs_pooled_auc_and_centring_gives_it_back():
    (one, y1, train1), (other, y2, train2) = hospital(0), hospital(1)
    moved = other + 4.0
    assert pooled([one, moved], [y1, y2]) < pooled([one, other], [y1, y2]) - 0.1
    given_back = [centred(one, train1, QUANTILE), centred(moved, train2 + 4.0, QUANTILE)]
    assert pooled(given_back, [y1, y2]) == pytest.approx(pooled([one, other], [y1, y2]), abs=0.03)


@given(st.integers(0, 50), st.floats(0, 1))
def test_the_order_within_a_hospital_stays(seed, quantile):
    test, y, train = hospital(seed)
    found = centred(test, train, quantile)
    assert torch.equal(found.argsort(stable=True), test.argsort(stable=True))
    assert roc_auc_score(y, found) == roc_auc_score(y, test)


@given(st.integers(0, 20), st.floats(0, 1))
def test_so_many_training_examples_are_called_positive_as_the_quantile_says(seed, quantile):
    _, _, train = hospital(seed)
    share = float((centred(train, train, quantile) > 0.5).double().mean())
    assert share == pytest.approx(1 - quantile, abs=1.01 / len(train))


def test_what_training_logits_cannot_tell():
    tested = doubles([-1.0, 0.0, 2.0])
    assert torch.equal(centred(tested, doubles([0.1] * 7), 0.3), (tested - 0.1).sigmoid()), "only shifted"
    assert torch.equal(centred(tested, doubles([]), 0.3), doubles([0.5, 0.5, 0.5]))
    usable, broken = doubles([0.0, 1.0]), doubles([0.0, math.nan, 1.0, math.inf, -math.inf])
    assert torch.equal(centred(tested, broken, 0.3), centred(tested, usable, 0.3))
    assert centred(doubles([math.nan, math.inf]), usable, 0.3).isnan().tolist() == [True, False]
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"quantile must be in \[0, 1\], found"):
            centred(tested, usable, wrong)


def network(norm: str = "batch", *, seed: int = 0) -> tuple[Task, nn.Module]:
    task = Task(Cnn(widths=(8, 8), norm=norm), IMAGES, 2)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return task, task.network()


def rows(n: int = 40, seed: int = 0, *, shift: float = 0.0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < 0.3).long()
    return Rows(torch.randn(n, *IMAGES, generator=g) + shift, y, torch.arange(n) // 4)


def test_log_odds_are_those_of_the_probabilities_and_do_not_saturate():
    task, module = network()
    x = rows(9).x
    p = task.probabilities(module, x).double()
    assert torch.allclose(log_odds(module, x, chunk=4), (p[:, 1] / p[:, 0]).log(), atol=1e-5)
    with torch.no_grad():
        module.head.weight *= 0
        module.head.bias.copy_(torch.tensor([-30.0, 30.0]))
    assert log_odds(module, x).tolist() == [60.0] * 9
    assert log_odds(module, x[:0]).shape == (0,)


def test_only_two_logits_have_log_odds():
    task = Task(Mlp(hidden=()), (4,), 3)
    with pytest.raises(ValueError, match="two logits, found 3"):
        log_odds(task.network(), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="two classes and training examples, found 3"):
        probabilities(task, task.network(), torch.zeros(2, 4), rows(), "centred")
    with pytest.raises(TypeError, match="returns Output, found Tensor"):
        log_odds(nn.Linear(4, 2), torch.zeros(2, 4))


@pytest.mark.parametrize("how", ["centred", "adabn", "adabn_centred"])
def test_labels_enter_for_the_prevalence_only(how):
    task, module = network()
    train, x = rows(), rows(9, 1).x
    other = Rows(train.x, 1 - train.y, train.patient)
    found = probabilities(task, module, x, train, how)
    assert found.dtype == (torch.float32 if how == "adabn" else torch.float64)
    assert torch.allclose(found.sum(dim=1).double(), torch.ones(9, dtype=torch.float64))
    assert torch.equal(found, probabilities(task, module, x, other, how))
    if how != "adabn":
        share = float((train.y == 1).double().mean())
        by_labels = probabilities(task, module, x, train, how, "prevalence")
        assert torch.equal(by_labels, probabilities(task, module, x, train, how, 1 - share))
        assert not torch.allclose(by_labels, probabilities(task, module, x, other, how, "prevalence"))


def test_both_are_batch_norm_first_and_then_centring_of_what_it_gives():
    task, module = network()
    train, x = rows(shift=1.0), rows(9, 1, shift=1.0).x
    fitted = adapt_batch_norms(module, train.x)
    assert torch.equal(probabilities(task, module, x, train, "adabn"), task.probabilities(fitted, x))
    positive = centred(log_odds(fitted, x), log_odds(fitted, train.x), 0.4)
    assert torch.equal(probabilities(task, module, x, train, "adabn_centred", 0.4)[:, 1], positive)


@pytest.mark.parametrize("model", [Cnn(widths=(8, 8)), Cam(widths=(8, 8, 8, 8))])
def test_a_network_that_has_the_statistics_of_the_data_already_predicts_the_same(model):
    task = Task(model, IMAGES, 2)
    torch.manual_seed(3)
    module, x = task.network(), rows().x
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None
    with torch.no_grad():
        module.train()(x)
    before, after = task.probabilities(module, x), task.probabilities(adapt_batch_norms(module, x), x)
    assert torch.allclose(before, after, atol=1e-5)
    elsewhere = task.probabilities(adapt_batch_norms(module, 3 * x[:20] ** 2), x)
    assert not torch.allclose(before, elsewhere, atol=1e-3), "the statistics of other images would have shown"


def test_the_module_itself_stays_as_it_was():
    _, module = network()
    module.train()
    before = copy.deepcopy(module.state_dict())
    made = adapt_batch_norms(module, rows(shift=2.0).x)
    assert module.training and not made.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    weights = dict(made.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in module.named_parameters()), "no weight moves"
    changed = {name for name, value in made.state_dict().items() if not torch.equal(before[name], value)}
    assert changed and all("running" in name or "num_batches" in name for name in changed)
    momenta = [{p.momentum for p in one.modules() if isinstance(p, nn.BatchNorm2d)} for one in (module, made)]
    assert momenta[0] == momenta[1] == {0.1}


def test_adapting_twice_is_adapting_once_and_needs_no_chance():
    _, module = network()
    x = rows(70).x
    torch.manual_seed(1)
    once = adapt_batch_norms(module, x, batch=16).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    twice = adapt_batch_norms(adapt_batch_norms(module, x, batch=16), x, batch=16).state_dict()
    assert all(torch.equal(once[name], twice[name]) for name in once)
    assert torch.equal(before, torch.get_rng_state())


def test_a_scanner_that_multiplies_every_image_changes_nothing_after_adapting():
    task, module = network()
    train, x = rows(), rows(9, 1).x
    found = [task.probabilities(adapt_batch_norms(module, f * train.x), f * x) for f in (1.0, 5.0)]
    assert torch.allclose(*found, atol=1e-4)
    assert not torch.allclose(task.probabilities(module, x), task.probabilities(module, 5 * x), atol=1e-2)


def test_statistics_are_means_over_equal_batches_that_mix_patients():
    layer = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(3))
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) + torch.arange(50)[:, None] // 10
    made = adapt_batch_norms(layer, x, batch=20)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0)).numpy()
    parts = [x.numpy()[part] for part in np.array_split(order, 3)]
    assert {len(part) for part in parts} == {16, 17}
    assert made[1].running_mean.numpy() == pytest.approx(np.mean([p.mean(axis=0) for p in parts], axis=0), abs=1e-5)
    assert made[1].running_var.numpy() == pytest.approx(
        np.mean([p.var(axis=0, ddof=1) for p in parts], axis=0), abs=1e-5
    )
    assert made[1].running_var.numpy() == pytest.approx(x.numpy().var(axis=0, ddof=1), rel=0.2), "patients are mixed"
    assert layer[0].p == 0.9


@pytest.mark.parametrize("model", [Cnn(widths=(8, 8), norm="group"), Cam(widths=(8, 8, 8, 8), norm="group"), Mlp()])
def test_a_network_without_batch_norm_is_refused(model):
    task = Task(model, IMAGES, 2)
    module = task.network()
    assert not has_adaptable_norms(module)
    with pytest.raises(ValueError, match=r"AdaBN needs batch norm .* and no such layers"):
        adapt_batch_norms(module, rows().x)
    with pytest.raises(ValueError, match="AdaBN needs batch norm"):
        probabilities(task, module, rows().x, rows(), "adabn_centred")


def test_one_image_has_no_statistics_and_none_no_calibration():
    task, module = network()
    assert has_adaptable_norms(module)
    with pytest.raises(ValueError, match="at least two images, found 1 images and such layers"):
        adapt_batch_norms(module, rows(1).x)
    with pytest.raises(ValueError, match="training examples, found 2 and 0"):
        probabilities(task, module, rows(1).x, rows(0), "centred")
