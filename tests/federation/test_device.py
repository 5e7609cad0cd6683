"""A site may compute on another device than its neighbour: what crosses the wall is the same, to rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import testbed
from federation.augmentation import AUGMENTATIONS
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.fedprox import FedProx
from federation.parameters import loaded
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from personalize.fedper import FedPer
from privacy.dp.access import Rows
from privacy.dp.protection import Protection

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
ADAM, SGD = Work(lr=1e-2, batch=8, epochs=2), Work(optimizer="sgd", lr=1e-2, batch=8, epochs=2)
METHODS = [(FedAvg(), ADAM), (FedProx(mu=0.5), ADAM), (Scaffold(), SGD), (FedPer(), ADAM)]


def on(device: str, splits: dict[str, Rows]) -> dict[str, Rows]:
    return {name: Rows(*(part.to(device) for part in (r.x, r.y, r.patient))) for name, r in splits.items()}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("algorithm", "work"), METHODS, ids=lambda value: getattr(value, "name", ""))
def test_a_mixed_federation_learns_what_one_on_the_cpu_learns(algorithm, work):
    found = []
    for device in ("cpu", "cuda"):
        sites = {"a": testbed.table(1), "b": on(device, testbed.table(2, shift=0.7))}
        crew = testbed.federation(algorithm, sites, task=testbed.task(), work=work)
        outcome = testbed.train(algorithm, crew, task=testbed.task(), work=work, schedule=Schedule(rounds=3))
        found.append((outcome.state.tensors, {name: testbed.final(hospital) for name, hospital in crew.items()}))
    (one, mine), (two, theirs) = found
    assert all(tensor.device.type == "cpu" for tensor in two.values())
    assert testbed.close(one, two, 1e-4)
    assert all(testbed.close(mine[name], theirs[name], 1e-4) for name in mine)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", [name for name, augment in AUGMENTATIONS.items() if augment])
def test_augmentation_moves_the_same_way_on_any_device(name):
    x, y = torch.rand(4, 1, 16, 16), torch.rand(4, 16, 16).gt(0.5).long()
    views = (AUGMENTATIONS[name](x.to(d), y.to(d), torch.Generator().manual_seed(0)) for d in ("cpu", "cuda"))
    here, there = ([one.cpu() for one in view] for view in views)
    assert torch.allclose(here[0], there[0], atol=1e-5)
    assert float((here[1] != there[1]).float().mean()) < 0.01, "but for places half way between two pixels"


def test_a_model_goes_to_where_its_parameters_are():
    network = testbed.task().network()
    there = {name: tensor.to("meta") for name, tensor in network.state_dict().items()}
    assert {p.device.type for p in loaded(network, there).parameters()} == {"meta"}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("algorithm", "work"), METHODS, ids=lambda value: getattr(value, "name", ""))
def test_private_training_is_the_same_on_any_device(algorithm, work):
    """Samples and views come from the same bytes, and without noise so does all that follows, to rounding."""
    quiet = Protection(clip=0.5, sampling=0.5, views=2, noise=0.0, validation_noise=0.0)
    found = []
    for device in ("cpu", "cuda"):
        sites = {"a": on(device, testbed.table(1)), "b": on(device, testbed.table(2, shift=0.7))}
        crew = testbed.federation(algorithm, sites, task=testbed.task(), work=work)
        private = {name: replace(hospital, protection=quiet) for name, hospital in crew.items()}
        found.append(testbed.train(algorithm, private, task=testbed.task(), work=work, schedule=Schedule(rounds=3)))
    assert testbed.close(found[0].state.tensors, found[1].state.tensors, 1e-4)
