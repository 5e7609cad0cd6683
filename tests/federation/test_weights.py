"""Weights that somebody brings: by the names of the network alone or by ours, and all that does not fit at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.monai import Monai
from federation.models.own import Own, register_network
from federation.parameters import read_parameters
from federation.pretraining import start_task_with
from federation.randomness import use_seed
from federation.rehearsal import initial_parameters
from federation.task import Task
from federation.weights import SHOWN, Weights, select_fitting_tensors

DYNAMIC = {"kernel_size": (3, 3, 3), "strides": (1, 2, 2), "upsample_kernel_size": (2, 2), "filters": (8, 8, 8)}


class Plain(nn.Module):
    """A network whose names are not ours."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)).relu())  # type: ignore[no-any-return]


register_network("weighed", Plain)
OWN = Task(Own(network="weighed", stem=("one", "norm"), head="two"), (4,), 2)


def made(task: Task, seed: int) -> nn.Module:
    with use_seed(seed):
        return task.network()


def same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


TASKS = {
    "cnn": Task(Cnn(widths=(8, 8)), (1, 16, 16), 2),
    "own": OWN,
    "monai": Task(Monai(network="DenseNet", arguments={"init_features": 8, "block_config": (1, 1)}), (1, 16, 16), 2),
    "masks": Task(Monai(network="DynUNet", arguments=DYNAMIC), (1, 16, 16), 2, "segmentation"),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_start_from_the_initial_values_is_no_start(name: str) -> None:
    task = TASKS[name]
    initial = initial_parameters(FedAvg(), task, seed=3)
    started = start_task_with(task, select_fitting_tensors(initial, made(task, 9)))
    assert same(initial_parameters(FedAvg(), started, seed=3), initial)
    assert same(initial_parameters(FedAvg(), started, seed=4), initial), "whatever the seed"


@pytest.mark.parametrize("name", ["own", "monai", "masks"])
def test_the_names_that_a_network_has_by_itself_serve_too(name: str) -> None:
    """Of a network that holds a part under two names too, as DynUNet's."""
    task = TASKS[name]
    module = made(task, 1)
    ours = read_parameters(module)
    originals: dict[str, str] = module.originals  # type: ignore[assignment]
    theirs = {original: ours[name] for original, name in originals.items()}
    assert not set(theirs) & set(ours) and set(originals.values()) == set(ours)
    with torch.device("meta"):
        blank = task.network()
    assert same(select_fitting_tensors(theirs, blank), ours)
    first = {name: original for original, name in reversed(originals.items())}
    once = {original: theirs[original] for original in first.values()}
    assert same(select_fitting_tensors(once, blank), ours), "and of such a part one name is enough"


def test_names_are_those_of_the_network_that_a_person_saves() -> None:
    with use_seed(5):
        person = Plain().eval()
    module = start_task_with(OWN, select_fitting_tensors(person.state_dict(), made(OWN, 1))).network().eval()
    x = torch.randn(3, 4)
    assert torch.equal(module(x).logits, person(x))


def test_halves_become_the_networks_type_and_a_fresh_head_is_drawn() -> None:
    task = TASKS["cnn"]
    whole = read_parameters(made(task, 1))
    half = {name: value.half() if value.is_floating_point() else value for name, value in whole.items()}
    found = select_fitting_tensors(half, made(task, 2))
    assert all(found[name].dtype == whole[name].dtype for name in whole)
    body = {name: value for name, value in whole.items() if not name.startswith("head.")}
    assert same(select_fitting_tensors(body, made(task, 2), head="fresh"), body)
    other = {**body, "head.weight": torch.zeros(7, 16), "head.bias": torch.zeros(7)}
    assert same(select_fitting_tensors(other, made(task, 2), head="fresh"), body)
    started = initial_parameters(FedAvg(), start_task_with(task, body), seed=8)
    assert torch.equal(started["head.weight"], initial_parameters(FedAvg(), task, seed=8)["head.weight"])


def test_all_that_does_not_fit_is_told_at_once() -> None:
    given = dict(Plain().state_dict())
    del given["two.bias"]
    given |= {
        "one.weight": torch.zeros(5, 4),
        "norm.num_batches_tracked": torch.zeros(()),
        "two.weight": torch.full((2, 6), torch.nan),
        "module.x": torch.zeros(1),
    }
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words follow
        select_fitting_tensors(given, OWN.network())
    assert str(caught.value) == (
        "1 of the network's 9 tensors are missing: two.bias; 1 are none of the network's: module.x; "
        "1 have another shape: one.weight [5, 4] for [6, 4]; 1 have numbers of another kind: "
        "norm.num_batches_tracked float32; 1 have values that are not finite in the network's type: two.weight"
    )


@pytest.mark.parametrize(
    ("strange", "words"),
    [
        (torch.full((2, 6), 1e300, dtype=torch.float64), "1 have values that are not finite in the network's type"),
        (torch.full((2, 6), torch.nan).to(torch.float8_e4m3fn), "1 have values that are not finite"),
        (torch.zeros(2, 6, dtype=torch.complex64), "1 have numbers of another kind: two.weight complex64"),
    ],
)
def test_numbers_that_the_network_cannot_hold_are_told(strange: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        select_fitting_tensors({**Plain().state_dict(), "two.weight": strange}, OWN.network())


def test_many_problems_are_counted() -> None:
    task = replace(TASKS["cnn"], model=Cnn(widths=(8, 8, 8, 8)))
    with pytest.raises(ValueError, match=rf"{SHOWN} more|and \d+ more"):
        select_fitting_tensors({}, task.network())


@pytest.mark.parametrize(("said", "words"), [({"file": ""}, "file.*empty"), ({"file": "x", "sha256": "ab"}, "64 of")])
def test_settings_are_checked(said: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Weights(**said)  # type: ignore[arg-type]
