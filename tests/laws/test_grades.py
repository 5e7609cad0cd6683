"""Ordered classes: every method that descends a loss knows their order, and the loss as laws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import methods
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.unet import UNet
from federation.parameters import loaded
from federation.rehearsal import initial_parameters
from federation.task import Output, Task, label_loss, ranked_probability_loss
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

GRADES = 4
TABLE = {ordered: Task(Mlp(hidden=(6,)), (4,), GRADES, ordered=ordered) for ordered in (False, True)}
IMAGES = {
    ordered: Task(Cnn(widths=(8, 8), norm="group"), (1, 8, 8), GRADES, ordered=ordered) for ordered in (False, True)
}
EQUATIONS = {"as_begun", "local_ridge", "local_svm", "moments"}
"""Methods that solve equations, or train nothing: no loss says what they learn."""
WORK = Work(optimizer="sgd", lr=0.05, epochs=5)


def table(task: Task, n: int = 32, seed: int = 0) -> Rows:
    """Grades that rise with the first input, two rows a patient."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *task.inputs, generator=g)
    return Rows(x, (x.flatten(1)[:, 0].sigmoid() * GRADES).long().clamp(max=GRADES - 1), torch.arange(n) // 2)


def trained(algorithm, task: Task, site: Site, rounds: int = 4):
    """The network of one hospital after some rounds alone, and its first network."""
    initial = initial_parameters(algorithm, task, seed=0)
    torch.manual_seed(0)
    state, memory = algorithm.start(initial, {"a": algorithm.introduce(site)}), Message()
    for number in range(1, rounds + 1):
        call = Call("run", number, "train", {"a": number - 1})
        reply, memory = algorithm.train(site, algorithm.send(state, "a", call), memory, call)
        state = algorithm.merge(state, {"a": reply})
    last = algorithm.send(state, "a", Call("run", rounds + 1, "finish", {"a": rounds}))
    networks = algorithm.model(site, last, memory), initial
    return [loaded(algorithm.network(task), parameters) for parameters in networks]


@pytest.mark.parametrize(
    "algorithm",
    [one for one in methods.ALL if one.name not in {*methods.ON_PROMPTS, "feddg"}],
    ids=lambda one: one.name,
)
def test_every_method_learns_grades_and_those_that_descend_a_loss_know_their_order(algorithm):
    """All but those of prompts, which need a CLIP's vectors, and of masks."""
    tasks, ends = IMAGES if algorithm.name in ("fedavg_turns", "fedbn") else TABLE, {}
    for ordered, task in tasks.items():
        rows = table(task)
        access = open_access({"train": rows, "validation": rows}, batch=8, seed=0)
        site = Site("a", task, WORK, access)
        module, before = trained(algorithm, task, site)
        ends[ordered] = torch.cat([value.flatten() for value in module.state_dict().values()])
        losses = [site.measure(network, task.validation, "validation") for network in (module, before)]
        assert losses[0] < losses[1] or algorithm.name == "as_begun", losses
    assert torch.equal(ends[True], ends[False]) == (algorithm.name in EQUATIONS)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 7), st.floats(0.1, 30))
def test_the_loss_is_the_sum_over_cuts_of_squared_differences(seed, classes, scale):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(5, classes, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (5,), generator=g)
    losses = ranked_probability_loss(logits, y)
    for row, true, loss in zip(logits.softmax(dim=1).tolist(), y.tolist(), losses.tolist(), strict=True):
        literal = sum((sum(row[: k + 1]) - (1 if true <= k else 0)) ** 2 for k in range(classes - 1))
        assert loss == pytest.approx(literal, abs=1e-12)
        assert 0 <= loss <= classes - 1 + 1e-12
    for ordered in (True, False):
        task = Task(Mlp(), (4,), classes, ordered=ordered)
        expected = losses if ordered else label_loss(Output(logits, logits), y)
        assert task.losses(Output(logits, logits), y) == pytest.approx(expected)
        assert task.comparable_loss(Output(logits, logits), y) == pytest.approx(expected)


@given(st.integers(0, 10**6), st.integers(3, 6))
def test_the_true_probabilities_have_the_lowest_expected_loss(seed, classes):
    g = torch.Generator().manual_seed(seed)
    true, other = (torch.rand(classes, generator=g, dtype=torch.float64) + 0.01 for _ in range(2))
    true, other = true / true.sum(), other / other.sum()
    labels = torch.arange(classes)
    expected = [
        float((true * ranked_probability_loss(said.log().expand(classes, classes), labels)).sum())
        for said in (true, other)
    ]
    assert expected[0] <= expected[1] + 1e-12


@given(st.integers(3, 7), st.floats(0.3, 0.95))
def test_probability_that_lies_farther_away_costs_more(classes, sure):
    """Which cross-entropy does not see."""
    logits = torch.full((classes - 1, classes), (1 - sure) / 2 / (classes - 1), dtype=torch.float64)
    for far in range(1, classes):
        logits[far - 1, far] = sure
    logits = (logits / logits.sum(dim=1, keepdim=True)).log()
    losses = ranked_probability_loss(logits, torch.zeros(classes - 1, dtype=torch.long)).tolist()
    assert losses == sorted(losses) and losses[0] < losses[-1]


@pytest.mark.parametrize("wrong", [(UNet(), (1, 32, 32), 3, "segmentation"), (Mlp(), (4,), 1, "regression")])
def test_only_classes_are_ordered(wrong):
    with pytest.raises(ValueError, match="only classes are ordered"):
        Task(*wrong, ordered=True)


def test_a_network_with_a_loss_of_its_own_keeps_it_beside_the_order():
    cam = Task(Cam(), (1, 32, 32), 3, ordered=True)
    output, y = cam.network()(torch.rand(4, 1, 32, 32)), torch.tensor([0, 1, 2, 1])
    expected = cam.model.losses(output, y) + ranked_probability_loss(output.logits, y)
    assert torch.equal(cam.losses(output, y), expected)


def test_private_training_cuts_each_patient_whose_grade_is_far_off():
    rows, protection = table(TABLE[True]), Protection(clip=0.01, noise=0.0, sampling=1.0, views=1)
    rows = Rows(rows.x, rows.y, torch.arange(len(rows.y)))
    other = Rows(rows.x.clone(), rows.y.clone(), rows.patient)
    other.x[0], other.y[0] = 100.0, 0
    sums = []
    for each in (rows, other):
        counts = {"counts": NOTHING, "sizes": {"train": len(rows.y)}}
        access = open_private({"train": each, "validation": each}, protection, **counts)
        network = loaded(TABLE[True].network(), initial_parameters(FedAvg(), TABLE[True], seed=0))
        gradient = access.gradient(network, TABLE[True].objective, access.draw()).gradient
        sums.append(torch.cat([value.flatten() for value in gradient.values()]) * len(rows.y))
    assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * 0.01 * (1 + 1e-6)
