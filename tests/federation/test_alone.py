"""Floors at home: against scikit-learn's own machines, and what they leave out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.svm import SVC

import reference
from consilium.testing import testbed
from federation import alone
from federation.alone import STRENGTHS, Alone, Machine, fit_machine
from federation.descent import Work
from federation.task import Task
from privacy.dp.access import Rows

TASK = Task(testbed.Linear(), (6,), 2)


def rows(n: int = 90, d: int = 6, classes: int = 2, seed: int = 0) -> Rows:
    """Classes on rings about the origin, so that no line divides them, with a tilt, and two rows a patient."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, d))
    level = np.linalg.norm(x[:, :2], axis=1) + 0.3 * x[:, 2] + 0.2 * random.standard_normal(n)
    y = np.searchsorted(np.quantile(level, np.arange(1, classes) / classes), level)
    return Rows(torch.from_numpy(x).float(), torch.from_numpy(y), torch.arange(n) // 2)


def learnt(name: str, own: Rows, classes: int = 2) -> Machine:
    module = Alone(name=name).network(Task(testbed.Linear(), tuple(own.x.shape[1:]), classes))
    fit_machine(module, own.x, own.y, own.patient, classes)
    return module.eval()


def logits(module: Machine, x: torch.Tensor) -> np.ndarray:
    return module(x).logits.detach().double().numpy()


def test_ridge_ranks_as_scikit_learn_does():
    own, new = rows(), rows(seed=1)
    expected = RidgeClassifierCV(alphas=STRENGTHS).fit(own.x.numpy(), own.y.numpy()).decision_function(new.x.numpy())
    found = logits(learnt("local_ridge", own), new.x)
    assert np.corrcoef(found[:, 1] - found[:, 0], expected)[0, 1] > 1 - 1e-6


def test_the_machine_decides_as_one_with_the_exact_kernel():
    own, new = rows(), rows(seed=1)
    expected = SVC(class_weight="balanced").fit(own.x.numpy(), own.y.numpy()).decision_function(new.x.numpy())
    found = logits(learnt("local_svm", own), new.x)
    assert np.corrcoef(found[:, 1] - found[:, 0], expected)[0, 1] > 0.99


@pytest.mark.parametrize("name", ["local_ridge", "local_svm"])
def test_many_classes_and_their_probabilities(name):
    """A class that nobody has stays improbable; the mean probability of each class is its share."""
    own = rows(300, classes=3)
    found = torch.from_numpy(logits(learnt(name, own, classes=4), own.x)).softmax(dim=1)
    assert found.shape == (300, 4) and float(found[:, 3].max()) < 0.02
    assert found[:, :3].mean(dim=0).numpy() == pytest.approx(1 / 3, abs=0.05)
    assert (found.argmax(dim=1) == own.y).double().mean() > (0.8 if name == "local_svm" else 0.34)


@pytest.mark.parametrize("name", ["local_ridge", "local_svm"])
@pytest.mark.parametrize("y", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]])
def test_a_tiny_hospital_or_one_class_gives_numbers(name, y):
    own = Rows(torch.zeros(4, 6), torch.tensor(y), torch.arange(4))
    found = torch.from_numpy(logits(learnt(name, own), own.x)).softmax(dim=1)
    assert bool(found.isfinite().all())
    if len(set(y)) == 1:
        assert bool((found[:, y[0]] > 0.85).all())


def test_a_model_holds_no_row_of_any_patient():
    """Its size does not depend on how many patients there are, and two rows swapped change nothing."""
    small, large = learnt("local_svm", rows(20)), learnt("local_svm", rows(90))
    assert {n: t.shape for n, t in small.state_dict().items()} == {n: t.shape for n, t in large.state_dict().items()}


def test_a_large_hospital_learns_from_part_of_its_rows(monkeypatch):
    monkeypatch.setattr(alone, "ROWS", 60)
    own = rows(90)
    kept = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(90)[:60]))
    part = Rows(own.x[kept], own.y[kept], own.patient[kept])
    assert torch.equal(learnt("local_svm", own).head.weight, learnt("local_svm", part).head.weight)


def test_nothing_is_sent_and_the_one_round_is_the_model():
    own = {
        "a": {"train": rows(), "validation": rows(20, seed=2)},
        "b": {"train": rows(40, seed=3), "validation": rows()},
    }
    outcome, crew = reference.trained(Alone(name="local_ridge"), own, TASK, Work())
    assert list(outcome.totals) == ["1"]
    expected = learnt("local_ridge", own["b"]["train"]).state_dict()
    assert testbed.are_equal(testbed.newest_model(crew["b"]), expected)


def test_images_and_privacy_are_refused_in_words():
    network = Alone().network(Task(testbed.Linear(), (1, 8, 8), 2))
    found = Alone().complaints(network, Work(), True)
    assert "images" in found[0] and "method_model" in found[0] and "moments with others_gram: 0" in found[1]
    assert not Alone().complaints(Alone().network(TASK), Work(), False)
