"""A site may compute on another device than its neighbour: what crosses the wall is the same, to rounding.

Tests marked `gpu` need a GPU (docs/how-to/gpu.md). Their bodies run on the CPU too, on fewer methods, where both sides
are one device: so that a test which nobody could run yet is known to run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import methods
import small_clip
from consilium.testing import testbed
from federation.augmentation import AUGMENTATIONS
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.parameters import loaded
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from personalize.fenda import Fenda
from privacy.dp.access import Rows
from privacy.dp.protection import Protection

GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
)
ADAM, SGD = Work(lr=1e-2, batch=8, epochs=2), Work(optimizer="sgd", lr=1e-2, batch=8, epochs=2)
FEW = [FedAvg(), Scaffold(), Fenda()]
QUIET = Protection(clip=0.5, sampling=0.5, views=2, noise=0.0, validation_noise=0.0)


def there_and_here(chosen, few=FEW):
    """(device, method, its local work): every method on a GPU, a few on the CPU."""
    said = [("cuda", one, GPU) for one in chosen] + [("cpu", one, ()) for one in few]
    return [
        pytest.param(device, one, methods.work_of(one, ADAM, SGD), marks=marks, id=f"{one.name}-{device}")
        for device, one, marks in said
    ]


def on(device: str, splits: dict[str, Rows]) -> dict[str, Rows]:
    return {name: Rows(*(part.to(device) for part in (r.x, r.y, r.patient))) for name, r in splits.items()}


def ground(algorithm):
    """A task that the method accepts, and two hospitals."""
    if algorithm.name in methods.ON_PROMPTS:
        return small_clip.task(), small_clip.table(1, n=14), small_clip.table(2, n=14, shift=0.4)
    return testbed.task(), testbed.table(1), testbed.table(2, shift=0.7)


@pytest.mark.parametrize(("device", "algorithm", "work"), there_and_here(methods.ALL))
def test_a_mixed_federation_learns_what_one_on_the_cpu_learns(device, algorithm, work):
    task, here, there = ground(algorithm)
    if algorithm.name not in {one.name for one in methods.fit(task)}:
        task, here, there = testbed.mask_task(), testbed.scenes(1), testbed.scenes(2, shift=0.1)
    found = []
    for where in ("cpu", device):
        sites = {"a": here, "b": on(where, there)}
        crew = testbed.federation(algorithm, sites, task=task, work=work)
        outcome = testbed.train(algorithm, crew, task=task, work=work, schedule=Schedule(rounds=3))
        found.append((outcome.state.tensors, {name: testbed.final(hospital) for name, hospital in crew.items()}))
    (one, mine), (two, theirs) = found
    assert all(tensor.device.type == "cpu" for tensor in two.values())
    assert testbed.close(one, two, 1e-3)
    assert all(testbed.close(mine[name], theirs[name], 1e-3) for name in mine)


@pytest.mark.parametrize(("device", "algorithm", "work"), there_and_here(methods.private()))
def test_private_training_is_the_same_on_any_device(device, algorithm, work):
    """Samples and views come from the same bytes, and without noise so does all that follows, to rounding."""
    found, task = [], testbed.task()
    for where in ("cpu", device):
        sites = {"a": on(where, testbed.table(1)), "b": on(where, testbed.table(2, shift=0.7))}
        crew = testbed.federation(algorithm, sites, task=task, work=work)
        private = {name: replace(hospital, protection=QUIET) for name, hospital in crew.items()}
        found.append(testbed.train(algorithm, private, task=task, work=work, schedule=Schedule(rounds=3)))
    assert testbed.close(found[0].state.tensors, found[1].state.tensors, 1e-3)


@pytest.mark.parametrize(
    ("name", "device"),
    [("flip", "cpu"), *(pytest.param(name, "cuda", marks=GPU) for name, augment in AUGMENTATIONS.items() if augment)],
)
def test_augmentation_moves_the_same_way_on_any_device(name, device):
    x, y = torch.rand(4, 1, 16, 16), torch.rand(4, 16, 16).gt(0.5).long()
    views = (AUGMENTATIONS[name](x.to(d), y.to(d), torch.Generator().manual_seed(0)) for d in ("cpu", device))
    here, there = ([one.cpu() for one in view] for view in views)
    assert torch.allclose(here[0], there[0], atol=1e-5)
    assert float((here[1] != there[1]).float().mean()) < 0.01, "but for places half way between two pixels"


def test_a_model_goes_to_where_its_parameters_are():
    network = testbed.task().network()
    there = {name: tensor.to("meta") for name, tensor in network.state_dict().items()}
    assert {p.device.type for p in loaded(network, there).parameters()} == {"meta"}


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU), "cpu"])
def test_bfloat16_and_channels_last_learn_the_same_to_rounding(device):
    task, found = testbed.dense_task(norm="group"), []
    for work in (SGD, replace(SGD, precision="bf16", channels_last=True)):
        sites = {"a": on(device, testbed.scenes(1)), "b": on(device, testbed.scenes(2, shift=0.1))}
        crew = testbed.federation(FedAvg(), sites, task=task, work=work)
        found.append(testbed.train(FedAvg(), crew, task=task, work=work, schedule=Schedule(rounds=2)).state.tensors)
    assert not testbed.equal(*found) and testbed.close(*found, 0.05)
    assert all(tensor.dtype == torch.float32 for tensor in found[1].values() if tensor.is_floating_point())
