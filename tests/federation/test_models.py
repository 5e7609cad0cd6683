"""Networks: shapes, names of parts, and VAFL's loss against a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.networks.blocks import Convolution, ResidualUnit
from torch import Tensor, nn

from consilium.testing import networks
from federation.models.cam import Cam, Residual, map_loss
from federation.models.cnn import Cnn, build_convolution
from federation.models.maps import normalized_maps
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.task import Output, Task

NETWORKS = [
    pytest.param(Cnn(norm="batch"), (1, 48, 48), id="cnn-batch"),
    pytest.param(Cnn(norm="group"), (3, 32, 32), id="cnn-group"),
    pytest.param(Cam(norm="batch"), (1, 48, 48), id="cam-batch"),
    pytest.param(Cam(norm="group"), (1, 64, 64), id="cam-group"),
    pytest.param(ResNet18(width=8, small=True, norm="group"), (3, 32, 32), id="resnet-group"),
    pytest.param(ResNet18(width=8), (1, 64, 64), id="resnet-batch"),
    pytest.param(Mlp(hidden=(10, 5), dropout=0.3), (13,), id="mlp"),
    pytest.param(Mlp(hidden=()), (13,), id="logistic"),
]


@pytest.mark.parametrize(("model", "inputs"), NETWORKS)
@pytest.mark.parametrize("classes", [2, 5])
def test_every_network_keeps_the_contract(model, inputs, classes):
    for law in networks.LAWS:
        law(Task(model, inputs, classes))


@pytest.mark.parametrize("model", [Cam(norm="group"), Cnn(norm="group"), ResNet18(width=8, norm="group")])
def test_group_norm_has_no_buffers_so_it_can_be_private(model):
    assert not list(Task(model, (1, 48, 48), 2).network().buffers())


def _the_same_network(ours: nn.Module, monais: nn.Module, x: Tensor) -> None:
    """Names and numbers, from one seed, in training and evaluation."""
    mine, theirs = ours.state_dict(), monais.state_dict()
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    for training in (True, False):
        assert torch.equal(ours.train(training)(x), monais.train(training)(x))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("spatial", [2, 3])
def test_a_convolution_is_monais(norm, spatial):
    kind = ("group", {"num_groups": 8}) if norm == "group" else "batch"
    x = torch.rand(2, 3, *[8] * spatial)
    torch.manual_seed(1)
    ours = build_convolution(3, 16, norm, spatial, bias=norm == "group")
    torch.manual_seed(1)
    monais = Convolution(spatial, 3, 16, norm=kind, act="relu", adn_ordering="NA", bias=norm == "group")
    _the_same_network(ours, monais, x)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_residual_block_is_monais(norm):
    kind = ("group", {"num_groups": 8}) if norm == "group" else "batch"
    x = torch.rand(2, 16, 8, 8)
    torch.manual_seed(1)
    ours = Residual(16, norm)
    torch.manual_seed(1)
    _the_same_network(ours, ResidualUnit(2, 16, 16, norm=kind, act="relu", adn_ordering="NA"), x)


def test_resnet_18_has_as_many_parameters_as_its_authors_network():
    """11,689,512 with 1,000 classes (He et al.; torchvision's documentation of resnet18): 11,177,538 with two."""
    network = ResNet18().build(inputs=(3, 224, 224), classes=1000)
    assert sum(p.numel() for p in network.parameters()) == 11_689_512


def test_logistic_regression_of_heart_disease_has_fourteen_parameters():
    network = Mlp(hidden=()).build(inputs=(13,), classes=1)
    assert sum(p.numel() for p in network.parameters()) == 14


@given(st.integers(0, 10**6))
def test_equations_8_and_9_against_a_loop(seed):
    """The paper's formulas, example by example, in plain Python."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randn(3, 2, 2, 3, 3, generator=g, dtype=torch.float64)
    y = torch.randint(0, 2, (3,), generator=g)
    one, two = maps[:, 0].mean(dim=(2, 3)), maps[:, 1].amax(dim=(2, 3))
    p1, p2 = one.softmax(dim=1), two.softmax(dim=1)
    losses = Cam().losses(Output(((p1 + p2) / 2).log(), maps.flatten(1), maps), y)
    for i in range(3):
        label = int(y[i])
        cams = [[max(0.0, float(v)) for v in maps[i, :, c].mean(dim=0).flatten()] for c in (0, 1)]
        top = max(max(cams[0]), max(cams[1]), 1e-6)
        cams = [[v / top for v in cam] for cam in cams]
        union = sum(max(a, b) for a, b in zip(*cams, strict=True)) / 9
        area = [sum(cam) / 9 for cam in cams]
        equation_9 = union + label * area[0] + (1 - label) * area[1]
        cross = -math.log((p1[i, label] + p2[i, label]) / 2)
        heads = -math.log(p1[i, label]) - math.log(p2[i, label])
        assert float(losses[i]) == pytest.approx(cross + 0.1 * heads + equation_9, abs=1e-9)


def test_the_network_averages_the_heads_probabilities():
    network = Task(Cam(), (1, 48, 48), 2).network().eval()
    output = network(torch.rand(2, 1, 48, 48))
    one, two = output.maps[:, 0].mean(dim=(2, 3)), output.maps[:, 1].amax(dim=(2, 3))
    expected = (one.softmax(dim=1) + two.softmax(dim=1)) / 2
    assert torch.allclose(output.logits.softmax(dim=1), expected, atol=1e-6)


def test_maps_are_normalized_jointly_so_the_wrong_one_can_vanish():
    maps = torch.zeros(1, 2, 2, 2, 2)
    maps[:, :, 1] = 3.0
    cams = normalized_maps(maps)
    assert float(cams[0, 0].max()) == 0.0 and float(cams[0, 1].max()) == 1.0
    assert float(map_loss(maps, torch.tensor([1]))) == 1.0  # only the union
    assert float(map_loss(maps, torch.tensor([0]))) == 2.0  # the wrong class's map too
    assert float(map_loss(torch.zeros(1, 2, 2, 2, 2), torch.tensor([0]))) == 0.0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Cnn(widths=(7, 9)), "multiples of 8"),
        (lambda: Cnn(widths=(8,)), "at least two"),
        (lambda: Cam(head_weight=-1.0), ">= 0"),
        (lambda: Mlp(dropout=1.0), r"\[0, 1\)"),
        (lambda: Mlp(hidden=(0,)), "positive"),
    ],
)
def test_a_network_that_cannot_be_is_refused_by_its_setting(make, text):
    with pytest.raises(ValueError, match=text):
        make()
