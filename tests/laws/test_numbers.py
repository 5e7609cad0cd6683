"""Numbers as labels: every method trains on them or says why it cannot; the loss, and the range, as laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV
from sklearn.svm import SVR

import methods
from federation.algorithm import find_class_needs
from federation.alone import STRENGTHS, Alone, fit_machine
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.unet import UNet
from federation.parameters import loaded
from federation.rehearsal import initial_parameters, rehearse_events
from federation.task import STEPS, Output, Task, label_loss, place_in_range
from personalize.partial import Partial
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

TABLE = Task(Mlp(hidden=(6,)), (4,), 1, "regression")
IMAGES = Task(Cnn(widths=(8, 8), norm="group"), (1, 8, 8), 1, "regression")
NEED = {"feddg", "fedsld", "dp_head", "fedrod", "moe", "moments", "pfedmoap", "private_intercept", "zero_shot"}
"""Methods whose equations need classes."""
WORK = Work(optimizer="sgd", lr=0.05, epochs=5)


def table(task: Task, n: int = 24, seed: int = 0) -> Rows:
    """Numbers that grow with the first input, two rows a patient."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *task.inputs, generator=g)
    return Rows(x, (x.flatten(1)[:, 0].sigmoid() * STEPS).round().long(), torch.arange(n) // 2)


def trained(algorithm, task: Task, site: Site, rounds: int = 6):
    """The network of one hospital after some rounds alone, and the loss of its first network."""
    initial = initial_parameters(algorithm, task, seed=0)
    state, memory = algorithm.start(initial, {"a": algorithm.introduce(site)}), Message()
    for number in range(1, rounds + 1):
        call = Call("run", number, "train", {"a": number - 1})
        reply, memory = algorithm.train(site, algorithm.send(state, "a", call), memory, call)
        state = algorithm.merge(state, {"a": reply})
    last = algorithm.send(state, "a", Call("run", rounds + 1, "finish", {"a": rounds}))
    return loaded(algorithm.network(task), algorithm.model(site, last, memory)), loaded(
        algorithm.network(task), initial
    )


@pytest.mark.parametrize("algorithm", methods.ALL, ids=lambda one: one.name)
def test_every_method_learns_a_number_or_says_why_it_cannot(algorithm):
    """A method that needs classes says so by what it declares; every other one lowers the loss or never trains."""
    task = IMAGES if algorithm.name in ("fedavg_turns", "fedbn") else TABLE
    why = find_class_needs(algorithm, task)
    assert bool(why) == (algorithm.name in NEED), why
    assert find_class_needs(algorithm, Task(Mlp(), (4,), 2)) == []
    if why:
        assert why[0].startswith(f"{algorithm.name} needs classes") and "leave this method out" in why[0]
        return
    assert algorithm.complaints(algorithm.network(task), WORK, False) == []
    rows = table(task)
    site = Site("a", task, WORK, open_access({"train": rows, "validation": rows}, batch=6, seed=0))
    after, before = (site.measure(module, task.validation, "validation") for module in trained(algorithm, task, site))
    assert after < 0.95 * before or algorithm.name == "as_begun", (after, before)


def test_what_a_method_inherits_it_needs_too():
    class Renamed(Partial):
        pass

    assert find_class_needs(Renamed(name="private_intercept"), TABLE)
    assert not find_class_needs(Renamed(name="fedper"), TABLE)


@pytest.mark.parametrize("model", [Cam(), UNet()], ids=["cam", "unet"])
def test_a_network_that_gives_no_number_is_refused(model):
    with pytest.raises(ValueError, match="gives no number"):
        Task(model, (1, 32, 32), 1, "regression")


def test_a_number_is_one():
    with pytest.raises(ValueError, match="one number an example"):
        Task(Mlp(), (4,), 2, "regression")


@given(st.lists(st.tuples(st.floats(-30, 30), st.integers(0, STEPS)), min_size=1, max_size=8))
def test_the_loss_is_hubers_on_the_range_and_its_slope_at_most_one(pairs):
    logits = torch.tensor([[a] for a, _ in pairs], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([b for _, b in pairs])
    losses = label_loss(Output(logits, logits), y)
    for loss, (a, b) in zip(losses.tolist(), pairs, strict=True):
        off = abs(a - (2 * b / STEPS - 1))
        assert loss == pytest.approx(off**2 / 2 if off <= 1 else off - 0.5, abs=1e-9)
    losses.sum().backward()
    assert float(logits.grad.abs().max()) <= 1


@given(st.floats(-1e6, 1e6))
def test_a_prediction_stays_in_the_range(logit):
    place = float(place_in_range(torch.tensor([[logit]])))
    assert 0 <= place <= 1
    if -1 <= logit <= 1:
        assert place == pytest.approx((logit + 1) / 2, abs=1e-6)


@pytest.mark.parametrize("name", ["local_ridge", "local_svm"])
def test_floors_are_scikit_learns(name):
    own, new = table(TABLE, 60), table(TABLE, 60, seed=1)
    module = Alone(name=name).network(TABLE)
    fit_machine(module, own.x, own.y, own.patient, 1)
    predicted = TABLE.probabilities(module, new.x)[:, 0].numpy()
    place = own.y.numpy() / STEPS
    machine = RidgeCV(alphas=STRENGTHS) if name == "local_ridge" else SVR(C=1.0, epsilon=0.1)
    expected = machine.fit(own.x.numpy(), (place - place.mean()) / place.std()).predict(new.x.numpy())
    expected = np.clip(expected * place.std() + place.mean(), 0, 1)
    assert np.abs(predicted - expected).max() < (1e-5 if name == "local_ridge" else 0.05)


@pytest.mark.parametrize("name", ["local_ridge", "local_svm"])
def test_a_floor_of_equal_numbers_predicts_them(name):
    own = table(TABLE)
    module = Alone(name=name).network(TABLE)
    fit_machine(module, own.x, torch.full_like(own.y, STEPS // 4), own.patient, 1)
    assert TABLE.probabilities(module, own.x).flatten().tolist() == pytest.approx([0.25] * len(own.y), abs=1e-6)


def test_private_training_cuts_each_patient_whatever_the_label():
    """Of two sets of patients that differ in one, sums of gradients differ by the clip at most."""
    rows, protection = table(TABLE), Protection(clip=0.01, noise=0.0, sampling=1.0, views=1)
    rows = Rows(rows.x, rows.y, torch.arange(len(rows.y)))
    other = Rows(rows.x.clone(), rows.y.clone(), rows.patient)
    other.x[0], other.y[0] = 100.0, 0
    sums = []
    for each in (rows, other):
        access = open_private({"train": each, "validation": each}, protection, counts=NOTHING, sizes={"train": 24})
        network = loaded(TABLE.network(), initial_parameters(FedAvg(), TABLE, seed=0))
        gradient = access.gradient(network, TABLE.objective, access.draw()).gradient
        sums.append(torch.cat([value.flatten() for value in gradient.values()]) * 24)
    assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * 0.01 * (1 + 1e-6)


def test_private_training_is_rehearsed_as_it_is_for_classes():
    protection = Protection(clip=1.0, noise=1.0, sampling=0.5)
    events = []
    for task in (TABLE, Task(Mlp(hidden=(6,)), (4,), 2)):
        initial = initial_parameters(FedAvg(), task, seed=0)
        events.append(rehearse_events(FedAvg(), task, WORK, initial, protection))
    assert events[0] == events[1]
