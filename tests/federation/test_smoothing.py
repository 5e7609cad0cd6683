"""Label smoothing: in each training loss, beside a slow loop, and in no loss of patients that are not trained on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from consilium.testing import testbed
from federation.algorithm import find_work_problems, without_loss
from federation.alone import Alone
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.finetuning import Tuning, fine_tuned
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.unet import UNet
from federation.task import Output, Task, cross_entropy, smoothing_term
from personalize.fedfomo import FedFomo
from personalize.fedrod import Heads, two_head_losses
from personalize.moments import Moments
from privacy.dp.access import Batch, open_access
from privacy.settings_error import SettingsError

TASKS = {
    "classes": Task(Mlp(hidden=(6,)), (4,), 3),
    "one logit": Task(Mlp(hidden=(), logits="one"), (4,), 2),
    "pictures": Task(Cnn(widths=(8, 8), norm="group"), (1, 8, 8), 3),
    "maps": Task(Cam(widths=(8, 8, 8, 8)), (1, 16, 16), 2),
    "masks": Task(UNet(width=4, levels=1, norm="group"), (1, 8, 8), 3, "segmentation"),
}


def smooth(task: Task, amount: float) -> Task:
    return replace(task, smoothing=amount)


def slow_cross_entropy(logits: Tensor, y: Tensor, amount: float) -> list[float]:
    """(1 - s) (-log p_y) + s mean_c(-log p_c), in Python's floats, the mean over the pixels of each example."""
    losses = []
    for example, labels in zip(logits.double(), y, strict=True):
        columns = example.reshape(len(example), -1).T.tolist()
        parts = []
        for values, label in zip(columns, labels.reshape(-1).tolist(), strict=True):
            highest = max(values)
            total = highest + math.log(math.fsum(math.exp(value - highest) for value in values))
            surprise = [total - value for value in values]
            parts.append((1 - amount) * surprise[label] + amount * math.fsum(surprise) / len(surprise))
        losses.append(math.fsum(parts) / len(parts))
    return losses


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 6),
    st.sampled_from([(), (5,), (3, 4), (2, 3, 2)]),
    st.floats(0.01, 0.99),
    st.floats(0.1, 30),
)
def test_a_smoothed_cross_entropy_is_that_of_a_slow_loop_and_of_torch(seed, classes, sides, amount, scale):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(4, classes, *sides, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (4, *sides), generator=g)
    output = Output(logits, logits)
    ours = cross_entropy(output, y) + amount * smoothing_term(output, y)
    assert ours.tolist() == pytest.approx(slow_cross_entropy(logits, y, amount), rel=1e-9, abs=1e-9)
    theirs = functional.cross_entropy(logits, y, reduction="none", label_smoothing=amount)
    assert torch.allclose(ours, theirs.flatten(1).mean(dim=1) if sides else theirs)


def outputs_of(task: Task, n: int = 5) -> tuple[Output, Tensor]:
    torch.manual_seed(0)
    module = task.network().eval()
    with torch.no_grad():
        output = module(torch.randn(n, *task.inputs))
    return output, torch.randint(task.classes, (n, *task.spatial))


@pytest.mark.parametrize("name", TASKS)
def test_training_losses_are_smoothed_losses_of_validation_are_not_and_0_is_no_smoothing(name):
    task, amount = TASKS[name], 0.2
    output, y = outputs_of(task)
    smoothed = smooth(task, amount)
    moved = torch.tensor(slow_cross_entropy(output.logits, y, amount)) - torch.tensor(
        slow_cross_entropy(output.logits, y, 0.0)
    )
    assert float(moved.abs().max()) > 1e-3
    assert torch.allclose(smoothed.losses(output, y), task.losses(output, y) + moved, atol=1e-5)
    assert torch.allclose(smoothed.mapless_losses(output, y), task.comparable_loss(output, y) + moved, atol=1e-5)

    def forward(_: Tensor) -> Output:
        return output

    batch = Batch(output.logits, y)
    assert torch.equal(smoothed.objective(forward, batch), smoothed.losses(output, y))
    assert torch.equal(smoothed.objective_of_method(forward, batch), smoothed.losses(output, y))
    assert torch.equal(smoothed.comparable_loss(output, y), task.comparable_loss(output, y))
    assert torch.equal(smoothed.validation(forward, batch), task.validation(forward, batch))
    assert smoothed.drop_smoothing() == task and smooth(task, 0.0) == task
    assert torch.equal(task.losses(output, y), task.model.losses(output, y))


def site_of(work: Work, task: Task | None = None, seed: int = 0) -> Site:
    return Site("a", task or testbed.make_task(), work, open_access(testbed.make_table(1), batch=5, seed=seed))


def test_a_sites_losses_are_smoothed_as_its_work_says_and_without_that_its_task_is_the_one_it_got():
    task = testbed.make_task()
    assert site_of(Work(), task).task is task
    assert site_of(Work(label_smoothing=0.3), task).task == smooth(task, 0.3)
    assert site_of(Work(), smooth(task, 0.3)).task == task


def test_outputs_without_maps_are_smoothed_too():
    """Two extractors side by side, a personal head, and a model that is tuned."""
    cam, amount = TASKS["maps"], 0.3
    output, y = outputs_of(cam)
    mapless = output._replace(maps=None)
    expected = torch.tensor(slow_cross_entropy(output.logits, y, amount))
    loss = smooth(cam, amount).objective_of_method(lambda _: mapless, Batch(output.logits, y))
    assert torch.allclose(loss, expected, atol=1e-5)
    table = TASKS["classes"]
    output, y = outputs_of(table)
    batch, heads = Batch(output.logits, y), Heads(output, output.logits + 1.5 * torch.eye(5, 3))
    both = two_head_losses(smooth(table, amount), torch.zeros(3))(lambda _: heads, batch)
    slow = [slow_cross_entropy(logits, y, amount) for logits in (output.logits, heads.personal)]
    assert torch.allclose(both, torch.tensor(slow).sum(dim=0), atol=1e-5)
    torch.manual_seed(0)
    module, models = FedAvg().network(testbed.make_task()), []
    for value in (0.0, 0.0, amount):
        site = site_of(Work(lr=0.05, batch=5, label_smoothing=value))
        models.append(dict(fine_tuned(site, module, Tuning(epochs=2)).named_parameters()))
    assert testbed.are_equal(models[0], models[1]) and not testbed.are_equal(models[0], models[2])


def test_validation_patients_weigh_models_without_smoothing():
    task = testbed.make_task()
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append({name: p.detach() for name, p in FedFomo().network(task).named_parameters()})
    before, *candidates = models
    named = dict(zip("bc", candidates, strict=True))
    weights = [FedFomo()._weights(site_of(Work(label_smoothing=amount)), before, named) for amount in (0.0, 0.4)]
    assert weights[0] == weights[1] and any(weights[0].values())


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Task(Mlp(), (4,), 1, "regression"), "the task is a number"),
        (Task(Mlp(), (4,), 3, "findings"), "several findings, each for itself"),
        (Task(Mlp(), (4,), 3, ordered=True), "grades are ordered"),
    ],
    ids=["regression", "findings", "grades"],
)
def test_what_has_no_classes_or_has_an_order_refuses_it(task: Task, words: str):
    (problem,) = find_work_problems(FedAvg(), task, Work(label_smoothing=0.1))
    assert problem.path == "label_smoothing" and words in problem.message
    assert "say label_smoothing: 0" in problem.message
    assert find_work_problems(FedAvg(), task, Work()) == []
    with pytest.raises(ValueError, match=words):
        smooth(task, 0.1)


@pytest.mark.parametrize("method", [Moments(), Alone(), Alone(name="local_svm")], ids=lambda one: one.name)
def test_a_method_without_a_loss_takes_no_notice_and_says_why(method: Any):
    assert find_work_problems(method, testbed.make_task(), Work(label_smoothing=0.1, mixup=0.2)) == []
    assert without_loss(method).startswith("it solves for")


@pytest.mark.parametrize("amount", [-0.1, 1.0, 2.0])
def test_its_range_is_told(amount: float):
    with pytest.raises(SettingsError, match=r"label_smoothing must be in \[0, 1\), found"):
        Work(label_smoothing=amount)
