"""Tent, test-time training and ensembles: what moves, what does not, and by-hand versions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.monai import Monai
from federation.models.unet import UNet
from federation.parameters import section
from federation.rounds import Schedule
from federation.task import Task
from personalize.adaptation_baselines import Tent, ensemble, tent
from personalize.adaptation_norms import AtTest, SetNorm, by_test_statistics, calibrate
from personalize.adaptation_rotation import FedTurns, RotationNetwork, rotation_loss
from personalize.adaptation_turns import TestTimeTraining, train_at_test
from personalize.routing_losses import entropy
from privacy.dp.access import Batch, Rows

MASKS = Task(UNet(width=4, levels=2), (1, 16, 16), 3, "segmentation")
CLASSES = Task(Cnn(widths=(8, 8), norm="batch"), (1, 12, 12), 2)
EACH = pytest.mark.parametrize("task", [MASKS, CLASSES], ids=["segmentation", "classification"])


def network(task, seed=0):
    torch.manual_seed(seed)
    found = task.network()
    return undecided(found, found.head, task)


def undecided(module, head, task):
    """The model with the running statistics of our pictures and a head that says now one class, now another."""
    with torch.no_grad():
        for _ in range(40):
            module.train()(pictures(task))
        module.eval()
        head.weight.mul_(4.0)
        found = module(pictures(task)).logits
        head.bias.sub_(found.movedim(1, 0).flatten(1).mean(dim=1))
    assert module(pictures(task)).logits.argmax(dim=1).float().std() > 0
    return module


def pictures(task, n=6, seed=1):
    """Noise on images that differ in brightness."""
    noise = torch.randn(n, *task.inputs, generator=torch.Generator().manual_seed(seed))
    return 0.7 * noise + torch.linspace(-2, 2, n).view(n, *[1] * len(task.inputs))


def logits(module, x):
    with torch.no_grad():
        return module.eval()(x).logits


# Statistics


@pytest.mark.parametrize("batch", [3, 4])
def test_the_statistics_of_a_set_are_the_mean_over_its_images_for_the_first_norm_exactly(batch):
    """Whatever the batches: a last one of two images counts half as much as one of four."""
    module, x = AtTest(nn.Sequential(nn.BatchNorm2d(3))), 2 * torch.randn(6, 3, 5, 4) + 1
    x[4:] += 5
    by_test_statistics(module, "set", "fixed")
    for _ in range(2):  # what was before is forgotten
        calibrate(module, x, batch=batch)
    (norm,) = [part for part in module.modules() if isinstance(part, SetNorm)]
    mean = x.mean(dim=(0, 2, 3))
    variance = (batch * x[:batch].var(dim=(0, 2, 3)) + (6 - batch) * x[batch:].var(dim=(0, 2, 3))) / 6
    assert torch.allclose(norm.norm.running_mean, mean, atol=1e-6)
    assert torch.allclose(norm.norm.running_var, variance, atol=1e-6)
    expected = (x - mean[:, None, None]) / (variance[:, None, None] + norm.norm.eps).sqrt()
    assert torch.allclose(module.eval().network(x), expected, atol=1e-5)


def test_norms_at_test_time_are_where_the_network_is():
    """On a device that computes nothing, so that no GPU is needed to see what was left behind."""
    module = AtTest(MASKS.network().to("meta"))
    by_test_statistics(module.network, "set", "trained")
    places = {value.device.type for value in (*module.parameters(), *module.buffers())}
    assert places == {"meta"}
    assert module.eval()(torch.empty(4, *MASKS.inputs, device="meta")).logits.device.type == "meta"


# Tent


@EACH
def test_tent_moves_scales_and_shifts_of_norms_alone_and_lowers_the_entropy(task):
    model, x = network(task), pictures(task)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    module, found = tent(model, x, Tent(epochs=3, lr=0.005, batch=3, margin=9.0), kind=task.kind)
    assert found.epoch > 0 and found.losses[found.epoch] < found.losses[0]
    changed = {n for n, p in module.named_parameters() if p.requires_grad}
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    assert len(changed) == 2 * len(norms)
    others = [(n, p) for n, p in module.network.named_parameters() if not p.requires_grad]
    assert others and all(torch.equal(p, before[n]) for n, p in others)
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())
    assert float(entropy(logits(module, x)).mean()) == pytest.approx(found.losses[found.epoch], abs=1e-6)


@EACH
def test_tent_for_no_epoch_is_the_model_by_the_test_images_statistics(task):
    model, x = network(task), pictures(task)
    module, found = tent(model, x, Tent(epochs=0, batch=len(x)), kind=task.kind)
    slow = copy.deepcopy(model)
    for part in slow.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None
    with torch.no_grad():
        slow.train()(x)
    assert torch.allclose(logits(module, x), logits(slow, x), atol=1e-5)
    assert not torch.allclose(logits(module, x), logits(model, x), atol=1e-2)
    assert found.epoch == 0 and len(found.losses) == len(found.shares) == 1


@EACH
def test_tent_online_is_its_loop_by_hand(task):
    """Batch statistics, a prediction, one step of Adam on the entropy of that prediction."""
    model, x = network(task), pictures(task, 6)
    _, found = tent(model, x, Tent(mode="online", lr=0.02, batch=3), kind=task.kind)
    slow = copy.deepcopy(model).train()
    params = [p for part in slow.modules() if isinstance(part, nn.BatchNorm2d) for p in part.parameters()]
    rule, expected = torch.optim.Adam(params, lr=0.02), []
    for start in (0, 3):
        p = slow(x[start : start + 3]).logits.softmax(dim=1)
        expected.append(p.detach())
        loss = -(p * p.log()).sum(dim=1).mean()
        rule.zero_grad()
        loss.backward()
        rule.step()
    assert torch.allclose(found.probabilities, torch.cat(expected), atol=1e-5)


def test_tent_needs_norms_and_names_every_wrong_setting():
    task = Task(Mlp(hidden=(6,)), (4,), 2)
    with pytest.raises(ValueError, match="MlpModule has none"):
        tent(task.network(), torch.randn(4, 4), Tent(), kind="classification")
    with pytest.raises(ValueError, match=r"epochs must be in \[0, 1000\], found -1; lr must be in \(0, 10\]"):
        Tent(epochs=-1, lr=-1.0)
    with pytest.raises(ValueError, match="mode: online adapts on its one pass"):
        Tent(epochs=0, mode="online")
    with pytest.raises(ValueError, match=r"batch must be in \[1, 1024\], found 0; margin must be >= 0"):
        TestTimeTraining(batch=0, margin=-1.0)


# Ensemble


@EACH
def test_an_ensemble_is_the_mean_of_logits_of_models_with_their_own_statistics(task):
    models, x = [network(task, seed) for seed in range(3)], pictures(task)
    expected = sum(logits(model, x) for model in models) / 3
    whole = ensemble(models)
    assert torch.allclose(logits(whole, x), expected, atol=1e-6)
    assert torch.allclose(task.probabilities(whole, x), expected.softmax(dim=1), atol=1e-6)
    assert torch.allclose(logits(ensemble(models[:1]), x), logits(models[0], x), atol=1e-6)
    with pytest.raises(ValueError, match="found none"):
        ensemble([])


# Test-time training


@EACH
def test_turns_are_told_for_each_quarter_of_each_image(task):
    torch.manual_seed(0)
    module, x = FedTurns().network(task).eval(), pictures(task, 3)
    told = module(x, True)[1]
    for quarter in range(4):
        alone = module.turns(module.encode_mean(torch.rot90(x, quarter, (-2, -1))))
        assert torch.allclose(told[:, quarter], alone, atol=1e-5)
    expected = sum(functional.cross_entropy(told[:, q], torch.full((3,), q), reduction="none") for q in range(4)) / 4
    assert torch.allclose(rotation_loss(told), expected, atol=1e-6)


def test_the_encoder_is_the_way_down_of_a_network_that_segments_and_all_blocks_of_another():
    assert FedTurns().network(MASKS).turns.in_features == 16
    assert FedTurns().network(MASKS).depth == 2 and len(FedTurns().network(MASKS).base.blocks) == 4
    assert FedTurns().network(CLASSES).depth == len(FedTurns().network(CLASSES).base.blocks) == 1


def test_a_step_of_training_with_turns_is_that_of_both_losses():
    """One site, one full-batch step of SGD: w - lr grad(task + 0.5 turns), batch norm included."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(4, 1, 8, 8, generator=g), torch.randint(0, 3, (4, 8, 8), generator=g)
    rows, task = Rows(x, y, torch.arange(4)), testbed.dense_task()
    method, work = FedTurns(rotation=0.5), Work(optimizer="sgd", lr=0.1, batch=4)
    crew = testbed.make_federation(method, {"a": {"train": rows, "validation": rows}}, task=task, work=work)
    outcome = testbed.train(method, crew, task=task, work=work, schedule=Schedule(rounds=1))
    slow = method.network(task)
    slow.load_state_dict(dict(testbed.initial_parameters(method, task, seed=1)))
    slow.train()
    told = [slow.turns(h) for h in slow.encode_mean(torch.cat([torch.rot90(x, q, (2, 3)) for q in range(4)])).split(4)]
    turns = sum(functional.cross_entropy(t, torch.full((4,), q)) for q, t in enumerate(told)) / 4
    loss = task.model.losses(slow.base(x), y).mean() + 0.5 * turns
    for p, slope in zip(slow.parameters(), torch.autograd.grad(loss, list(slow.parameters())), strict=True):
        p.data -= 0.1 * slope
    found = section(outcome.state.tensors, "model")
    assert all(torch.allclose(found[n], p, atol=1e-5) for n, p in slow.named_parameters())


def test_turns_train_under_a_map_over_patients():
    """The objective of private training: a gradient for each image, equal to a loop over images."""
    task = testbed.dense_task(norm="group")
    module = FedTurns().network(task)
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(3, 1, 8, 8, generator=g), torch.randint(0, 3, (3, 8, 8), generator=g)
    params = dict(module.named_parameters())

    def loss(values, one, mask):
        output, told = torch.func.functional_call(module, values, (one[None], True))
        return (task.objective(lambda _: output, Batch(one[None], mask[None])) + rotation_loss(told)).sum()

    mapped = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for i in range(3):
        alone = torch.func.grad(loss)(params, x[i], y[i])
        assert all(torch.allclose(mapped[n][i], alone[n], atol=1e-5) for n in params)


@EACH
def test_at_test_time_the_encoder_alone_moves_and_turns_are_told_better(task):
    torch.manual_seed(0)
    model, x = FedTurns().network(task).eval(), pictures(task)
    undecided(model, model.base.head, task)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = TestTimeTraining(epochs=3, lr=0.005, batch=3, margin=99.0)
    module, found = train_at_test(model, x, settings, kind=task.kind)
    assert found.epoch > 0 and found.losses[found.epoch] < found.losses[0]
    moved = {n for n, value in module.network.state_dict().items() if not torch.equal(value, before[n])}
    encoder = ("base.stem.", *(f"base.blocks.{k}." for k in range(model.depth)))
    assert moved and all(name.startswith(encoder) for name in moved)
    assert not any("running" in name or "tracked" in name for name in moved)
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())
    assert task.probabilities(module, x).shape[:2] == (len(x), task.classes)


def test_turns_need_square_images_and_blocks():
    wide = Task(UNet(width=4, levels=2), (1, 16, 8), 2, "segmentation")
    for task in (wide, Task(Mlp(hidden=(6,)), (4,), 2)):
        module = FedTurns().network(task)
        (text,) = FedTurns().complaints(module, Work(), False)
        assert not isinstance(module, RotationNetwork) and "square images" in text
    assert FedTurns().complaints(FedTurns().network(MASKS), Work(), True) == []
    with pytest.raises(ValueError, match="rotation must be > 0"):
        FedTurns(rotation=0.0)


def test_turns_refuse_a_stem_of_two_parts_in_words():
    efficient = Monai(network="EfficientNetBN", arguments={"model_name": "efficientnet-b0"})
    module = FedTurns().network(Task(efficient, (3, 32, 32), 2))
    assert "splits a stem and blocks, found OwnModule" in FedTurns().complaints(module, Work(), False)[0]


def test_without_the_head_it_is_another_methods_network():
    names = {n for n, _ in FedTurns().network(MASKS).named_parameters()}
    plain = {f"base.{n}" for n, _ in FedAvg().network(MASKS).named_parameters()}
    assert names - plain == {"turns.weight", "turns.bias"} and plain < names
