"""MONAI's networks are what MONAI makes, with names for their parts; and what cannot serve is told."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import methods
from consilium.testing import testbed
from consilium.testing.networks import LAWS
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.models.monai import BOUNDS, NETWORKS, UNFIT, Monai, Unmade
from federation.models.own import Own, register_network
from federation.parameters import read_parameters
from federation.pretraining import Pretrained, pretrain_network, start_task_with
from federation.randomness import use_seed
from federation.rounds import Schedule
from federation.sizes import count_network_values
from federation.task import Task
from pipelines.models.size_limits import find_size_problems
from privacy.dp.modules import find_unfit_parts
from privacy.dp.protection import Protection

SMALL: dict[str, dict[str, Any]] = {
    "DenseNet": {"init_features": 16, "growth_rate": 16, "block_config": (1, 1)},
    "EfficientNetBN": {"model_name": "efficientnet-b0"},
    "BasicUNet": {"features": (8, 8, 8, 8, 8, 8)},
    "SegResNet": {"init_filters": 8, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)},
    "DynUNet": {
        "kernel_size": (3, 3, 3),
        "strides": (1, 2, 2),
        "upsample_kernel_size": (2, 2),
        "filters": (8, 8, 16),
    },
}
LARGE = ("DenseNet169", "DenseNet201", "DenseNet264", "resnet34", "resnet50", "resnet101", "resnet152")
SGD = Work(optimizer="sgd", lr=0.05, batch=4, epochs=None, steps=2)
NOISED = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")


def small(network: str, **more: Any) -> Monai:
    return Monai(network=network, arguments=SMALL.get(network, {}), **more)


def task(network: str, inputs: tuple[int, ...] = (1, 32, 32), **more: Any) -> Task:
    model = small(network, **more)
    return Task(model, inputs, 3 if model.kind == "segmentation" else 2, model.kind)


def by_hand(network: str, inputs: tuple[int, ...], classes: int) -> torch.nn.Module:
    from monai.networks import nets

    known = NETWORKS[network]
    shape = dict(zip(known.shape, (len(inputs) - 1, inputs[0], classes), strict=True))
    made: torch.nn.Module = getattr(nets, network)(**shape, **known.fixed, **SMALL.get(network, {}))
    return made


@pytest.mark.repeats(8)
@pytest.mark.parametrize("network", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in NETWORKS])
@pytest.mark.parametrize("inputs", [(2, 32, 32), (1, 16, 32, 32)])
def test_it_is_the_network_that_monai_makes(network: str, inputs: tuple[int, ...]) -> None:
    if len(inputs) == 4 and (network not in SMALL or network == "EfficientNetBN"):
        pytest.skip("volumes are tried on small networks")
    x = torch.randn(2, *inputs, generator=torch.Generator().manual_seed(1))
    with use_seed(3):
        theirs = by_hand(network, inputs, 3).eval()
    with use_seed(3):
        ours = small(network).build(inputs=inputs, classes=3).eval()
    with torch.no_grad():
        whole, output = theirs(x), ours(x)
    other = network == "EfficientNetBN"  # whose swish is written in another way, that vmap can differentiate
    assert torch.allclose(output.logits, whole, atol=1e-5) if other else torch.equal(output.logits, whole)
    assert output.logits.shape[:2] == (2, 3)
    assert output.features.shape[2:] == output.logits.shape[2:], "features of each pixel, or of each picture"
    values = [value for value in read_parameters(theirs).values() if value.numel() > 1]
    mine = sorted(float(value.double().sum()) for value in read_parameters(ours).values() if value.numel() > 1)
    assert set(mine) <= {float(value.double().sum()) for value in values}
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    parts = {name.partition(".")[0] for name, _ in ours.named_parameters()}
    assert parts == {"stem", "blocks", "head"} and len(ours.get_submodule("blocks")) >= 2


@pytest.mark.parametrize("network", NETWORKS)
def test_what_settings_may_say_is_what_monai_takes(network: str) -> None:
    from monai.networks import nets

    known, made = NETWORKS[network], getattr(nets, network)
    kind = nets.ResNet if network.startswith("resnet") else nets.DenseNet if network.startswith("Dense") else made
    names = {*known.takes, *known.needs, *known.shape, *known.fixed, *([known.norm] if known.norm else [])}
    assert names <= set(inspect.signature(kind).parameters)
    assert not {"pretrained", "progress"} & set(known.takes), "a hospital fetches nothing"
    assert set(known.takes) <= set(BOUNDS), "each argument has bounds"
    assert not set(UNFIT) & set(NETWORKS)


def test_the_page_says_which_there_are_and_what_they_take() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/methods.md").read_text().partition("## Networks of MONAI")[2]
    rows = [row.split(" | ") for row in page.partition("## ")[0].splitlines() if row.startswith(("| class", "| masks"))]
    told = {
        name: set(re.findall(r"\w+", row[2].split(" (")[0])) for row in rows for name in re.findall(r"`(\w+)`", row[1])
    }
    assert list(told) == list(NETWORKS)
    for name, said in told.items():
        assert said <= {*NETWORKS[name].takes} and (said == {*NETWORKS[name].takes} or NETWORKS[name].needs)


@pytest.mark.parametrize("network", ["DenseNet", "BasicUNet", "SegResNet", "DynUNet"])
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_keeps_the_laws_of_networks(law: Any, network: str) -> None:
    law(task(network))


@pytest.mark.parametrize("network", ["DenseNet121", "BasicUNet", "SegResNet", "DynUNet", "EfficientNetBN"])
def test_with_group_norm_it_may_be_trained_privately(network: str) -> None:
    assert find_unfit_parts(task(network, norm="group").network()) == []


def test_what_has_batch_norm_is_refused_privately_with_the_remedy() -> None:
    assert "use group norm (norm: group)" in find_unfit_parts(task("DenseNet").network())[0]
    with pytest.raises(ValueError, match=r"norm: resnet18 of MONAI has batch norm .*found group; remove it, or take"):
        Monai(network="resnet18", norm="group")


def wrapped(of: Task) -> Task:
    """The same network, as a person would wrap it."""
    model = of.model
    assert isinstance(model, Monai)
    known = NETWORKS[model.network]

    def build(inputs: tuple[int, ...], classes: int) -> torch.nn.Module:
        return by_hand(model.network, inputs, classes)

    register_network("by hand", build)
    found = model.build(inputs=of.inputs, classes=of.classes)
    assert len(found.get_submodule("blocks")) == 4 if model.network == "DenseNet" else True
    blocks = ("features.denseblock1", "features.transition1", "features.denseblock2", "features.norm5")
    return replace(of, model=Own(network="by hand", stem=known.stem, blocks=blocks, head=known.head))


def trained(algorithm: Algorithm, of: Task, private: bool) -> dict[str, Tensor]:
    splits = {site: labelled(seed) for seed, site in enumerate("ab")}
    hospitals = testbed.make_federation(algorithm, splits, task=of, work=SGD)
    if private:
        hospitals = {name: replace(each, protection=NOISED) for name, each in hospitals.items()}
    done = testbed.train(algorithm, hospitals, task=of, work=SGD, schedule=Schedule(rounds=1))
    return dict(done.state.tensors)


def labelled(seed: int) -> Any:
    """Pictures with a label each: whether more than half of it is bright."""
    scenes = testbed.make_scenes(seed, n=6, side=8, shift=0.1 * seed)
    return {name: replace(one, y=(one.y.flatten(1).double().mean(dim=1) > 0.5).long()) for name, one in scenes.items()}


EVERY = {one.name: one for one in methods.ALL}


@pytest.mark.repeats(3)
@pytest.mark.parametrize("name", ["fedavg", "fenda", "cusfl", "moon", "fedbn", "apfl"])
def test_methods_train_it_as_the_network_that_a_person_wraps(name: str) -> None:
    ours = task("DenseNet", (1, 8, 8))
    algorithm = EVERY[name]
    assert algorithm.complaints(algorithm.network(ours), SGD, False) == []
    theirs = wrapped(ours)
    one, other = trained(algorithm, ours, False), trained(algorithm, theirs, False)
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("network", ["BasicUNet", "SegResNet", "DynUNet"])
@pytest.mark.parametrize("name", ["fedavg", "fenda", "cusfl"])
def test_methods_train_networks_that_segment(name: str, network: str) -> None:
    of = task(network)
    splits = {site: testbed.make_scenes(seed, side=32) for seed, site in enumerate("ab")}
    algorithm = EVERY[name]
    hospitals = testbed.make_federation(algorithm, splits, task=of, work=SGD)
    done = testbed.train(algorithm, hospitals, task=of, work=SGD, schedule=Schedule(rounds=1))
    assert done.state.tensors and all(bool(value.isfinite().all()) for value in done.state.tensors.values())


@pytest.mark.parametrize("network", ["DenseNet", "EfficientNetBN", "SegResNet"])
def test_each_patients_gradient_is_that_of_the_patient_alone(network: str) -> None:
    of = task(network, norm="group")
    with use_seed(2):
        module = of.network().eval().double()
    x = torch.randn(3, *of.inputs, dtype=torch.float64)
    y = torch.randint(of.classes, (3, *of.spatial))
    params = dict(module.named_parameters())

    def loss(given: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return of.model.losses(torch.func.functional_call(module, given, (one[None],)), label[None]).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")(params, x, y)
    for row in range(len(x)):
        module.zero_grad()
        of.model.losses(module(x[row : row + 1]), y[row : row + 1]).sum().backward()
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and torch.allclose(each[name][row], parameter.grad, atol=1e-8), name


def test_a_private_round_runs() -> None:
    found = trained(EVERY["fedavg"], task("DenseNet", (1, 8, 8), norm="group"), True)
    assert found and all(bool(value.isfinite().all()) for value in found.values())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"network": "DenseNet12"}, ["network must be one of DenseNet, DenseNet121", "found 'DenseNet12'"]),
        ({"network": "UNet"}, ["found 'UNet': it ends in a transposed convolution", "take BasicUNet"]),
        (
            {
                "network": "DenseNet121",
                "arguments": {"pretrained": True, "depth": 3, "norm": "batch", "out_channels": 4},
            },
            [
                "arguments.pretrained: nothing is fetched; weights of a file come by",
                "arguments.depth: unknown argument; DenseNet121 takes init_features",
                "arguments.norm: say norm: beside arguments",
                "arguments.out_channels: follows from images and task",
            ],
        ),
        ({"network": "EfficientNetBN"}, ["arguments.model_name: missing; EfficientNetBN needs model_name"]),
        (
            {"network": "DenseNet", "arguments": {"block_config": (10**9,), "init_features": -1, "act": ("x",) * 65}},
            [
                "arguments.block_config must be in [0, 4096], found 1000000000",
                "arguments.init_features must be in [0, 4096], found -1",
                "arguments.act must be a list of at most 64 values, found 65",
            ],
        ),
        (
            {"network": "DenseNet", "arguments": {"block_config": (200, 200)}},
            ["arguments.block_config must be at most 256 layers together, found 400"],
        ),
        (
            {
                "network": "DenseNet",
                "arguments": {
                    "growth_rate": 1.5e9,
                    "init_features": math.nan,
                    "bn_size": True,
                    "block_config": (2, 2.0),
                    "dropout_prob": math.inf,
                    "act": "x" * 65,
                },
            },
            [
                "arguments.growth_rate must be a whole number, found 1500000000.0",
                "arguments.init_features must be a whole number, found NaN",
                "arguments.bn_size must be a whole number, found true",
                "arguments.block_config must be a whole number, found 2.0",
                "arguments.dropout_prob must be in [0, 1], found Infinity",
                "arguments.act must be words of at most 64 letters, found 65",
            ],
        ),
        (
            {"network": "DynUNet", "arguments": {**SMALL["DynUNet"], "kernel_size": (3, 4096, 3), "res_block": 1}},
            [
                "arguments.kernel_size must be in [1, 15], found 4096",
                "arguments.res_block must be true or false, found 1",
            ],
        ),
        (
            {"network": "resnet18", "arguments": {"widen_factor": math.nan, "conv1_t_stride": 0}},
            [
                "arguments.widen_factor must be in [0.015625, 64], found NaN",
                "arguments.conv1_t_stride must be in [1, 15], found 0",
            ],
        ),
    ],
)  # fmt: skip
def test_wrong_settings_are_told_all_at_once(said: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words follow
        Monai(**said)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (small("DenseNet"), (4,), r"DenseNet needs images \(C, H, W\) or volumes .*found \[4\]"),
        (
            Monai(network="EfficientNetBN", arguments={"model_name": "b9"}),
            (1, 32, 32),
            "MONAI cannot make a EfficientNetBN with model_name: b9, norm: None .*efficientnet-b0",
        ),
        (
            Monai(network="DenseNet", arguments={"init_features": 4}, norm="group"),
            (1, 32, 32),
            r"init_features: 4, norm: group \(num_channels",
        ),
    ],
)
def test_what_monai_cannot_make_is_told(model: Monai, inputs: tuple[int, ...], words: str) -> None:
    with pytest.raises(Unmade, match=words):
        model.build(inputs=inputs, classes=2)


def test_it_may_begin_on_public_pictures() -> None:
    of = task("DenseNet", (1, 16, 16))
    y = torch.arange(32) % 2
    x = torch.randn(32, 1, 16, 16, generator=torch.Generator().manual_seed(0)) + 2.0 * y.view(-1, 1, 1, 1)
    found = pretrain_network(of, Pretrained(on="spots", epochs=15, lr=1e-2), x, y, low=-5.0, high=5.0)
    module = start_task_with(of, found).network()
    assert (of.probabilities(module, x).argmax(dim=1) == y).double().mean() > 0.9


def test_its_size_is_counted_without_memory() -> None:
    fedavg = EVERY["fedavg"]
    of = task("DenseNet")
    assert count_network_values(fedavg, of) == sum(value.numel() for value in read_parameters(of.network()).values())
    huge = Monai(network="DenseNet", arguments={"init_features": 4096, "growth_rate": 4096, "bn_size": 64})
    assert "parameters" in find_size_problems(fedavg, replace(of, model=huge), SGD)[0]
