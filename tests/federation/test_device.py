"""A site may compute on another device than its neighbour: what crosses the wall is the same, to rounding.

Tests marked `gpu` need a GPU (docs/how-to/gpu.md). Everywhere else a stand-in takes its place, whose tensors refuse to
meet those of the CPU and are rounded otherwise (`tests/other_device.py`). Methods learn by SGD: Adam divides a gradient
that is zero but for rounding by its own size, and goes a whole step in a direction of chance.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from other_device import OTHER, other_device

import methods
import small_clip
from consilium.testing import testbed
from federation.augmentation import AUGMENTATIONS
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.feddyn import FedDyn
from federation.parameters import loaded
from federation.rounds import Schedule
from federation.scaffold import Scaffold
from privacy.dp.access import Rows
from privacy.dp.batches import iterate_minibatches
from privacy.dp.protection import Protection

GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
)
SGD = Work(optimizer="sgd", lr=1e-2, batch=8, epochs=1)
QUIET = Protection(clip=0.5, sampling=0.5, views=2, noise=0.0, validation_noise=0.0)


def everywhere(methods_):
    """(device, method, its local work)."""
    return [
        pytest.param(device, one, methods.work_of(one, SGD, SGD), marks=marks, id=f"{one.name}-{name}")
        for name, device, marks in (("GPU", "cuda", GPU), ("stand-in", OTHER, ()))
        for one in methods_
    ]


def place(device: str):
    """Where a stand-in is asked for, it rounds sums otherwise."""
    return other_device(1e-7) if device == OTHER else nullcontext()


def on(device: str, splits: dict[str, Rows]) -> dict[str, Rows]:
    return {name: Rows(*(part.to(device) for part in (r.x, r.y, r.patient))) for name, r in splits.items()}


def ground(algorithm):
    """A task that the method accepts, and two hospitals."""
    if algorithm.name in methods.ON_PROMPTS:
        return small_clip.task(), small_clip.table(1, n=14), small_clip.table(2, n=14, shift=0.4)
    return testbed.make_task(), testbed.make_table(1), testbed.make_table(2, shift=0.7)


@pytest.mark.repeats(12)
@pytest.mark.parametrize(("device", "algorithm", "work"), everywhere(methods.ALL))
def test_a_mixed_federation_learns_what_one_on_the_cpu_learns(device, algorithm, work):
    task, here, there = ground(algorithm)
    if algorithm.name not in {one.name for one in methods.fit(task)}:
        task, here, there = testbed.mask_task(), testbed.make_scenes(1), testbed.make_scenes(2, shift=0.1)
    found = []
    for where in ("cpu", device):
        with place(where):
            sites = {"a": here, "b": on(where, there)}
            crew = testbed.make_federation(algorithm, sites, task=task, work=work)
            outcome = testbed.train(algorithm, crew, task=task, work=work, schedule=Schedule(rounds=3))
            found.append(
                (outcome.state.tensors, {name: testbed.newest_model(hospital) for name, hospital in crew.items()})
            )
    (one, mine), (two, theirs) = found
    assert all(tensor.device.type == "cpu" for tensor in two.values())
    assert testbed.are_close(one, two, 1e-3)
    assert all(testbed.are_close(mine[name], theirs[name], 1e-3) for name in mine)


@pytest.mark.parametrize(("device", "algorithm", "work"), everywhere([FedAvg(), FedDyn(), Scaffold()]))
def test_a_reply_is_quantized_on_any_device(device, algorithm, work):
    """To a step: where a difference lies between two multiples of it, rounding may decide."""
    task, here, there = ground(algorithm)
    states = []
    for where in ("cpu", device):
        with place(where):
            crew = testbed.make_federation(algorithm, {"a": here, "b": on(where, there)}, task=task, work=work)
            packed = {name: replace(hospital, upload=True) for name, hospital in crew.items()}
            schedule = Schedule(rounds=3)
            outcome = testbed.train(algorithm, packed, task=task, work=work, schedule=schedule, upload=True)
            assert not outcome.missing
            states.append(outcome.state.tensors)
    assert testbed.are_close(*states, 1e-3)


@pytest.mark.repeats(6)
@pytest.mark.parametrize(("device", "algorithm", "work"), everywhere(methods.private()))
def test_private_training_is_the_same_on_any_device(device, algorithm, work):
    """Samples and views come from the same bytes, and without noise so does all that follows, to rounding."""
    found, task = [], testbed.make_task()
    for where in ("cpu", device):
        with place(where):
            sites = {"a": on(where, testbed.make_table(1)), "b": on(where, testbed.make_table(2, shift=0.7))}
            crew = testbed.make_federation(algorithm, sites, task=task, work=work)
            private = {name: replace(hospital, protection=QUIET) for name, hospital in crew.items()}
            found.append(testbed.train(algorithm, private, task=task, work=work, schedule=Schedule(rounds=2)))
    assert testbed.are_close(found[0].state.tensors, found[1].state.tensors, 1e-3)


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
    network = testbed.make_task().network()
    there = {name: tensor.to("meta") for name, tensor in network.state_dict().items()}
    assert {p.device.type for p in loaded(network, there).parameters()} == {"meta"}


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU), "cpu"])
def test_bfloat16_and_channels_last_learn_the_same_to_rounding(device):
    task, found = testbed.dense_task(norm="group"), []
    for work in (SGD, replace(SGD, precision="bf16", channels_last=True)):
        sites = {"a": on(device, testbed.make_scenes(1)), "b": on(device, testbed.make_scenes(2, shift=0.1))}
        crew = testbed.make_federation(FedAvg(), sites, task=task, work=work)
        found.append(testbed.train(FedAvg(), crew, task=task, work=work, schedule=Schedule(rounds=2)).state.tensors)
    assert not testbed.are_equal(*found) and testbed.are_close(*found, 0.05)
    assert all(tensor.dtype == torch.float32 for tensor in found[1].values() if tensor.is_floating_point())


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU), OTHER])
def test_balanced_batches_are_drawn_in_the_same_way_for_any_device(device):
    y = torch.tensor([0, 0, 0, 0, 1, 0, 1, 0])
    with place(device):
        here, there = (
            next(iterate_minibatches(labels, batch=8, balance=True, generator=torch.Generator().manual_seed(3)))
            for labels in (y, y.to(device))
        )
    assert torch.equal(here, there.cpu())


def test_a_stand_in_refuses_what_a_gpu_refuses():
    with other_device():
        x, there = torch.rand(4, 4), torch.rand(4, 4).to(OTHER)
        for mixed in (lambda: x + there, lambda: x @ there, lambda: torch.cat([x, there])):
            with pytest.raises(RuntimeError, match="two devices meet"):
                mixed()
        for index in ([0, 1], torch.tensor([0, 1]), (slice(None), [0]), x > 0.5):
            with pytest.raises(RuntimeError, match="copied in silence"):
                there[index]
        with pytest.raises(RuntimeError, match="a random generator of one device"):
            torch.multinomial(there, 2, generator=torch.Generator())
        with pytest.raises(RuntimeError):
            there.numpy()
        assert there.device.type == OTHER and float(there.norm() * x.sum()) > 0, "numbers alone may meet"


@pytest.mark.parametrize(
    ("does", "reads", "uploads"),
    [
        (lambda there: float(there.sum()), 1, 0),
        (lambda there: bool((there > 2).any()), 1, 0),
        (lambda there: there.cpu(), 1, 0),
        (lambda there: there.tolist(), 1, 0),
        (lambda there: (there > 0.5).nonzero(), 1, 0),
        (lambda there: there[there > 0.5], 1, 0),
        (lambda there: torch.unique(there), 1, 0),
        (lambda there: torch.equal(there, there), 1, 0),
        (lambda there: torch.zeros(4, 4).copy_(there), 1, 0),
        (lambda there: torch.rand(4).to(OTHER), 0, 1),
        (lambda there: torch.tensor([0, 1], device=OTHER), 0, 1),
        (lambda there: there.copy_(torch.rand(4, 4)), 0, 1),
        (lambda there: there[1:, torch.arange(2, device=OTHER)] @ torch.ones(2, 3, device=OTHER), 0, 0),
        (lambda there: torch.where(there > 0.5, there, 0.0).sum(), 0, 0),
    ],
)
def test_a_stand_in_counts_what_a_gpu_waits_for_and_is_sent(does, reads, uploads):
    with other_device() as crossings:
        there = torch.rand(4, 4, device=OTHER)
        does(there)
    assert (sum(crossings.reads.values()), sum(crossings.uploads.values())) == (reads, uploads)
