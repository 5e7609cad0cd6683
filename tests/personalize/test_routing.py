"""Test-time routing, the network: one-hot coefficients give that model, and mixtures agree with slow loops."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.task import Task
from personalize.adaptation import adapt
from personalize.routing import CONVOLUTIONS, Router, build_routed, coefficients, set_coefficients
from personalize.routing_losses import Unsupervised
from personalize.routing_outside import Routing, route_experts

FLAT = Task(UNet(width=4, levels=2), (1, 16, 16), 3, "segmentation")
GROUPS = Task(UNet(width=4, levels=2, norm="group", dropout=0.3), (2, 16, 16), 2, "segmentation")
SOLID = Task(UNet(width=4, levels=1), (1, 8, 8, 8), 2, "segmentation")
CLASSES = Task(Cnn(widths=(8, 8), norm="batch"), (1, 12, 12), 3)
TABLE = Task(Mlp(hidden=(6,)), (4,), 3)
ONE_LOGIT = Task(Mlp(hidden=(6,), logits="one"), (4,), 2)
TASKS = {"batch norm": FLAT, "group norm": GROUPS, "volumes": SOLID, "classification": CLASSES}
TASKS |= {"table": TABLE, "one logit": ONE_LOGIT}
EACH = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def models(task, count, seed=0):
    """Different models with different norms and running statistics, in evaluation mode."""
    torch.manual_seed(seed)
    found = []
    for _ in range(count):
        network = task.network().eval()
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.1 * torch.randn_like(p))
            for name, b in network.named_buffers():
                b.add_(torch.rand_like(b)) if name.endswith(("running_mean", "running_var")) else None
        found.append(network)
    return found


def pictures(task, n, seed=1):
    return torch.randn(n, *task.inputs, generator=torch.Generator().manual_seed(seed))


def with_norms_of(network, last):
    """A model with the norms of another, and batch norms that go by each image: an instance norm of torch's own."""
    network = copy.deepcopy(network)
    for name, part in list(network.named_modules()):
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm3d):
            kind = nn.InstanceNorm3d if isinstance(part, nn.BatchNorm3d) else nn.InstanceNorm2d
            own = kind(part.num_features, eps=part.eps, affine=True)
            above, _, short = name.rpartition(".")
            setattr(network.get_submodule(above), short, own)
        if isinstance(part, nn.BatchNorm2d | nn.BatchNorm3d | nn.GroupNorm):
            theirs = last.get_submodule(name)
            network.get_submodule(name).load_state_dict({"weight": theirs.weight, "bias": theirs.bias})
    return network.eval()


def logits(module, x):
    with torch.no_grad():
        return module.eval()(x).logits


@EACH
def test_one_hot_coefficients_give_that_model_with_the_same_norms(task):
    experts = models(task, 4)
    module, x = build_routed(experts), pictures(task, 3)
    for k, expert in enumerate(experts):
        set_coefficients(module, torch.eye(4)[k])
        output, expected = module(x), with_norms_of(expert, experts[-1])(x)
        assert torch.allclose(output.logits, expected.logits, atol=2e-6)
        assert torch.allclose(output.features, expected.features, atol=1e-5)


@EACH
def test_every_convolution_and_linear_layer_is_mixed_the_head_and_the_bottleneck_too(task):
    experts = models(task, 3)
    found = build_routed(experts).layers
    expected = {n for n, part in experts[0].named_modules() if isinstance(part, (*CONVOLUTIONS, nn.Linear))}
    assert set(found) == expected and "head" in found
    for name, layer in found.items():
        weights = torch.stack([expert.get_submodule(name).weight.flatten() for expert in experts])
        assert torch.equal(layer.weights, weights)


@pytest.mark.repeats(6)
@pytest.mark.parametrize("count", [2, 3, 6])
@EACH
def test_coefficients_start_at_one_in_k_plus_1_for_every_image_and_layer(task, count):
    module, x = build_routed(models(task, count)), 5 * pictures(task, 3)
    r = coefficients(module, x)
    assert r.shape == (3, len(module.layers), count)
    assert torch.allclose(r, torch.full_like(r, 1 / count), atol=1e-6)


@EACH
def test_a_mixture_is_the_slow_loop_over_images_and_layers(task):
    """For each image a network of its own is made, whose kernels are the sums, layer by layer."""
    experts = models(task, 3)
    module, x = build_routed(experts), pictures(task, 3)
    torch.manual_seed(5)
    for part in module.modules():
        if isinstance(part, Router):
            nn.init.normal_(part.choose.weight, std=0.5)
    found, r = logits(module, x), coefficients(module, x)
    assert (r[0] - r[1]).abs().max() > 0.01 and (r[:, 0] - r[:, 1]).abs().max() > 0.01
    for i in range(3):
        own = with_norms_of(experts[-1], experts[-1])
        with torch.no_grad():
            for index, name in enumerate(module.layers):
                for kind in ("weight", "bias"):
                    tensors = [getattr(expert.get_submodule(name), kind) for expert in experts]
                    if tensors[0] is not None:
                        mixed = sum(c * t for c, t in zip(r[i, index], tensors, strict=True))
                        getattr(own.get_submodule(name), kind).copy_(mixed)
        assert torch.allclose(found[i], logits(own, x[i : i + 1])[0], atol=2e-5)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2), torch.randn(3, 4, 7, 9)),
        (nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), torch.randn(3, 4, 7, 9)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), torch.randn(3, 4, 5, 4)),
        (nn.Conv3d(2, 4, (1, 3, 3), padding=(0, 1, 1)), torch.randn(3, 2, 3, 5, 5)),
        (nn.ConvTranspose3d(4, 2, 2, stride=2), torch.randn(3, 4, 2, 3, 3)),
        (nn.Linear(5, 3), torch.randn(3, 5)),
    ],
    ids=["grouped", "same", "transposed", "flat 3-D", "transposed 3-D", "linear"],
)
def test_equal_experts_give_the_sum_of_coefficients_times_a_layer(layer, x):
    """One layer is linear in its kernel and bias: sum_k r_k layer(x), whatever the layer's settings are."""
    network = nn.Sequential(layer)
    module = build_routed([network, network, network])
    r = torch.tensor([0.3, 0.9, 0.25])
    set_coefficients(module, r)
    assert torch.allclose(module(x), r.sum() * network(x), atol=1e-5)


@EACH
def test_equal_experts_whose_coefficients_sum_to_1_are_that_model(task):
    (expert,) = models(task, 1)
    module, x = build_routed([expert] * 3), pictures(task, 2)
    assert torch.allclose(logits(module, x), logits(with_norms_of(expert, expert), x), atol=1e-5)


@EACH
def test_a_prediction_does_not_depend_on_who_else_is_in_the_batch(task):
    module, x = build_routed(models(task, 3)), pictures(task, 5)
    adapt(module, x, Unsupervised(radius=2), epochs=1, batch=2)
    whole = logits(module, x)
    alone = torch.cat([logits(module, x[i : i + 1]) for i in range(5)])
    assert torch.allclose(whole, alone, atol=1e-5)


@pytest.mark.parametrize("task", [FLAT, CLASSES], ids=["segmentation", "classification"])
def test_by_the_statistics_of_a_set_a_prediction_depends_on_the_set_alone(task):
    module, x = build_routed(models(task, 3), statistics="set"), pictures(task, 6)
    found = adapt(module, x, Unsupervised(radius=2), epochs=1, batch=3)
    whole = logits(module, x)
    alone = torch.cat([logits(module, x[i : i + 1]) for i in range(6)])
    assert torch.allclose(whole, alone, atol=1e-5)
    again = build_routed(models(task, 3), statistics="set")
    again.load_state_dict(dict(found.state), strict=False)
    assert torch.equal(logits(again, x), whole)


def test_gradients_reach_every_row_of_every_router_the_fifth_sites_and_the_bottlenecks_too():
    experts, x = models(FLAT, 6), pictures(FLAT, 6)
    module = build_routed(experts)
    before = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
    assert set(before) == {n for n, _ in module.named_parameters() if ".router." in n}
    assert len(before) == 4 * len(module.layers)
    adapt(module, x, Unsupervised(radius=2), epochs=2, batch=3)
    for name, p in module.named_parameters():
        if name in before and ".choose." in name:
            moved = (p.detach() - before[name]).abs().reshape(len(p), -1).amax(dim=1)
            assert (moved > 1e-7).all(), name
        elif name in before:
            assert not torch.equal(p.detach(), before[name]), name


def test_models_stay_as_they_are_and_norms_too_unless_they_are_trained():
    experts, x = models(FLAT, 3), pictures(FLAT, 4)
    before = [{n: v.clone() for n, v in e.state_dict().items()} for e in experts]
    for affine in ("fixed", "trained"):
        module = build_routed(experts, affine=affine)
        norms = {n: p.detach().clone() for n, p in module.named_parameters() if ".router." not in n}
        adapt(module, x, Unsupervised(radius=2), epochs=2, batch=2)
        moved = {n for n, p in module.named_parameters() if n in norms and not torch.equal(p.detach(), norms[n])}
        assert moved == (set() if affine == "fixed" else set(norms)) and norms
    for expert, old in zip(experts, before, strict=True):
        assert all(torch.equal(value, old[n]) for n, value in expert.state_dict().items())
        assert all(p.requires_grad for p in expert.parameters())


def test_one_vector_for_all_layers_is_all_that_moves_in_the_global_combination():
    module, x = build_routed(models(FLAT, 4), layerwise=False), pictures(FLAT, 4)
    (vector,) = [p for p in module.parameters() if p.requires_grad]
    assert vector.shape == (4,)
    adapt(module, x, Unsupervised(radius=2), epochs=2, batch=2)
    r = coefficients(module, x)
    assert torch.allclose(r, vector.detach().sigmoid().expand_as(r)) and not torch.allclose(r, torch.tensor(0.25))


def test_dropout_of_the_models_stays_off_and_thetas_is_on_only_while_it_adapts():
    module, x = build_routed(models(GROUPS, 3), dropout=0.5), pictures(GROUPS, 2)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, Router):
                part.choose.weight.fill_(0.1)
    module.train()
    assert not torch.equal(module(x).logits, module(x).logits)
    assert torch.equal(logits(module, x), logits(module, x))
    set_coefficients(module, torch.ones(3))
    module.train()
    assert torch.equal(module(x).logits, module(x).logits)


@pytest.mark.parametrize("mode", ["all", "online"])
def test_thetas_dropout_follows_the_seed_and_leaves_torchs_own_generator_as_it_was(mode):
    """Two hospitals that ask the same get the same, whatever their processes did before."""
    experts, x, found = models(FLAT, 3), pictures(FLAT, 6), []
    official = Routing(variant="official", mode=mode, epochs=1, lr=0.05, batch=3, radius=2)
    for seed, before in ((5, 11), (5, 12), (6, 12)):
        torch.manual_seed(before)
        state = torch.get_rng_state()
        module, adapted = route_experts(experts, x, official, kind="segmentation", seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        found.append((adapted.losses, adapted.state["network.head.router.choose.weight"], logits(module, x)))
    one, two, other = found
    assert one[0] == two[0] and torch.equal(one[1], two[1]) and torch.equal(one[2], two[2])
    assert one[0] != other[0]


def test_coefficients_can_be_given_by_layer_and_taken_back():
    module, x = build_routed(models(FLAT, 3)), pictures(FLAT, 2)
    given = torch.rand(len(module.layers), 3)
    set_coefficients(module, given)
    assert torch.equal(coefficients(module, x), given.expand(2, -1, -1))
    set_coefficients(module, None)
    assert torch.allclose(coefficients(module, x), torch.tensor(1 / 3))
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        set_coefficients(module, torch.ones(2))


def test_a_resnet_is_routed_with_the_statistics_of_a_set_and_refuses_those_of_one_pixel():
    task = Task(ResNet18(), (1, 32, 32), 2)
    experts = [task.network().eval() for _ in range(2)]
    x = pictures(task, 3)
    with pytest.raises(ValueError, match=r"one image has no variance .*statistics: set"):
        build_routed(experts)(x)
    module = build_routed(experts, statistics="set")
    set_coefficients(module, torch.tensor([0.0, 1.0]))
    expected = copy.deepcopy(experts[1]).train()
    assert torch.allclose(module.train()(x).logits, expected(x).logits, atol=1e-4)


def test_what_cannot_be_mixed_is_refused_by_name():
    (one,) = models(FLAT, 1)
    with pytest.raises(ValueError, match="at least two, found 1"):
        build_routed([one])
    with pytest.raises(ValueError, match=r"model 1 of 2 is not the last one's kind: .*head"):
        build_routed([one, Task(UNet(width=4, levels=2), (1, 16, 16), 4, "segmentation").network()])
    odd = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.PReLU())
    with pytest.raises(ValueError, match=r"1 \(PReLU\), 0 \(padding reflect\)"):
        build_routed([odd, odd])
    with pytest.raises(ValueError, match="nothing to mix"):
        build_routed([nn.Sequential(nn.GroupNorm(1, 2))] * 2)
    assert set(build_routed(models(Task(Mlp(hidden=(6,)), (4,), 2), 2)).layers) >= {"head"}
