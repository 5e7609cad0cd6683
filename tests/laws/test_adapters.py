"""Every method trains a network with adapters, plainly and privately, or refuses it with a reason; what leaves, what is
noised and what is kept as a model is what is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import methods
from consilium.testing import testbed
from federation.descent import Work
from federation.features.lite0_file import read_lite0_weights
from federation.models.adapted import OwnModule
from federation.models.adapters import add_adapters
from federation.models.lite0 import PartlyTrained
from federation.models.own import Own, register_network
from federation.parameters import read_parameters
from federation.rounds import Schedule
from federation.task import Task
from privacy.dp import private_access
from privacy.dp.access import Rows, Split
from privacy.dp.protection import Protection

ADAM = Work(lr=1e-2, batch=4, epochs=None, steps=1)
SGD = Work(optimizer="sgd", lr=1e-2, batch=4, epochs=None, steps=1)
NOISED = Protection(clip=0.5, sampling=0.5, views=1, noise=1.0, validation_noise=1.0, votes_noise=1.0)
REFUSED = {
    "fedbn": "share every parameter",
    "feddg": "edges of masks",
    "local_ridge": "learns from numbers",
    "local_svm": "learns from numbers",
    "pfedmoap": "prompts of a frozen CLIP",
    "zero_shot": "prompts of a frozen CLIP",
}
REFUSED_PRIVATELY = {"fedfomo": "looks at validation patients", "perfedavg": "takes a gradient of a site's patients"}
"""Methods that refuse such a network, and words of the reason; all others run."""


class Pretrained(nn.Module):
    """Frozen convolutions with adapters, a frozen norm between them, and a new head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.middle, self.last = nn.Conv2d(4, 6, 1), nn.Conv2d(6, 6, 1)
        add_adapters(self, rank=2)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.middle(self.stem(x)).relu()).relu().mean((2, 3)))


def make_task() -> Task:
    register_network("pretrained", Pretrained)
    return Task(Own(network="pretrained", stem=("stem",), blocks=("middle", "last"), head="head"), (1, 8, 8), 2)


def make_pictures(seed: int, inputs: tuple[int, ...]) -> dict[Split, Rows]:
    """Four patients with a picture each, in both splits."""
    x = torch.rand(4, *inputs, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    rows = Rows(x, torch.tensor([0, 1, 1, 0]), torch.arange(4))
    return {"train": rows, "validation": rows}


def find_reasons(algorithm: Any, task: Task, work: Work, private: bool) -> list[str]:
    """Why a method refuses the task's network."""
    return methods.no_prompt(algorithm, task) or algorithm.complaints(algorithm.network(task), work, private)


@pytest.mark.repeats(24)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("algorithm", [pytest.param(one, id=one.name) for one in methods.ALL])
def test_every_method_trains_adapters_alone_or_says_why_not(
    algorithm: Any, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = methods.PRIVATELY.get(algorithm.name, algorithm) if private else algorithm
    task = make_task()
    plain_reasons = find_reasons(algorithm, task, ADAM, private)
    work = SGD if private or any("sgd" in text for text in plain_reasons) else ADAM
    refusals = REFUSED | (REFUSED_PRIVATELY if private else {})
    reasons = find_reasons(algorithm, task, work, private)
    assert bool(reasons) == (algorithm.name in refusals), reasons
    if reasons:
        assert refusals[algorithm.name] in " ".join(reasons)
        return
    names_hold(algorithm, task, work, private, monkeypatch)


@pytest.mark.repeats(4)
@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("trained", [PartlyTrained(stages=1, rank=2), PartlyTrained(train="all", stages=1)], ids=repr)
@pytest.mark.parametrize("name", ["fedavg", "fenda", "fedper", "ditto", "cusfl", "apfl", "pgfed"])
def test_methods_train_the_part_of_lite0_that_is_not_frozen(
    name: str, trained: PartlyTrained, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        read_lite0_weights()
    except ValueError as error:
        pytest.skip(str(error))
    algorithm: Any = next(one for one in methods.ALL if one.name == name)
    algorithm = methods.PRIVATELY.get(name, algorithm) if private else algorithm
    if name == "cusfl":  # the last of 16 blocks and the stem: what comes before has no parameters
        algorithm = replace(algorithm, depth=17)
    names_hold(algorithm, Task(trained, (3, 32, 32), 2), SGD if private else ADAM, private, monkeypatch)


def names_hold(algorithm: Any, task: Task, work: Work, private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train two rounds, and look at every name that was sent, noised or kept as a model."""
    network, noised = task.network(), set[str]()
    assert isinstance(network, OwnModule)
    frozen = {network.originals[name]: value for name, value in network.read_fixed().items()}
    release = private_access.private_gradient

    def recorded(params: Any, *rest: Any, **how: Any) -> Any:
        noised.update(params)
        return release(params, *rest, **how)

    monkeypatch.setattr(private_access, "private_gradient", recorded)
    patients = {site: make_pictures(seed, task.inputs) for seed, site in enumerate("ab")}
    hospitals = testbed.make_federation(algorithm, patients, task=task, work=work)
    if private:
        hospitals = {name: replace(each, protection=NOISED) for name, each in hospitals.items()}
    done = testbed.train(algorithm, hospitals, task=task, work=work, schedule=Schedule(rounds=2))
    held = {*done.state.tensors, *noised}
    for hospital in hospitals.values():
        held |= {*testbed.newest_model(hospital)}
    assert held and not [name for name in held if is_of(name, frozen)], "what is frozen is neither sent nor noised"
    assert any(is_of(name, read_parameters(network)) for name in held)
    again = task.network().read_fixed()
    assert all(torch.equal(value, again[name]) for name, value in network.read_fixed().items())


def is_of(name: str, tensors: Iterable[str]) -> bool:
    """Whether a name of a message ends with that of one of these tensors."""
    return name.endswith(tuple(tensors))
