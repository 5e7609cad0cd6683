"""Routing at an external site: the loss falls, and a network that says one thing everywhere never wins."""

from __future__ import annotations

import copy

import pytest
import torch

from federation.models.cnn import Cnn
from federation.models.unet import UNet
from federation.task import Task
from personalize.adaptation import Range, adapt, online, predicted_shares, range_of
from personalize.adaptation_baselines import Tent, tent
from personalize.adaptation_doubt import agreement
from personalize.routing import build_routed, set_coefficients
from personalize.routing_losses import ImageLosses, Unsupervised
from personalize.routing_outside import Routing, range_of_experts, route_experts


def logits(module, x):
    with torch.no_grad():
        return module.eval()(x).logits


def test_every_wrong_setting_is_named_at_once():
    with pytest.raises(ValueError, match=r"epochs .*lr .*batch .*margin .*beta .*noise .*radius .*terms"):
        Routing(epochs=-1, lr=0.0, batch=0, margin=-1.0, beta=-1.0, noise=0.0, radius=0, terms=())
    with pytest.raises(ValueError, match="terms must be different"):
        Routing(terms=("shape", "shape"))


def phantoms(n, seed, *, gain=1.0, noise=0.2, side=16):
    """Discs on noise, normed by image: (n, 1, side, side) and masks (n, side, side)."""
    g = torch.Generator().manual_seed(seed)
    centre, size = 5 + 6 * torch.rand(n, 2, generator=g), 2.5 + 2 * torch.rand(n, generator=g)
    at = torch.arange(side).float()
    far = (at[None, :, None] - centre[:, 0, None, None]) ** 2 + (at[None, None, :] - centre[:, 1, None, None]) ** 2
    y = (far < size[:, None, None] ** 2).long()
    x = gain * y + 0.3 * at / side + noise * torch.randn(n, side, side, generator=g)
    x = (x - x.mean(dim=(1, 2), keepdim=True)) / x.std(dim=(1, 2), keepdim=True)
    return x[:, None], y


DISCS = Task(UNet(width=4, levels=2), (1, 16, 16), 2, "segmentation")


@pytest.fixture(scope="module")
def federation():
    """Two sites' models and their mean, which is the third."""
    torch.manual_seed(0)
    start, found = DISCS.network(), []
    for seed, gain in ((1, 1.0), (2, 0.7)):
        network, (x, y) = copy.deepcopy(start).train(), phantoms(48, seed, gain=gain)
        rule = torch.optim.Adam(network.parameters(), lr=0.01)
        for step in range(45):
            index = torch.arange(16) + 16 * (step % 3)
            loss = DISCS.model.losses(network(x[index]), y[index]).mean()
            rule.zero_grad()
            loss.backward()
            rule.step()
        found.append(network.eval())
    last = copy.deepcopy(found[0])
    with torch.no_grad():
        for p, q in zip(last.parameters(), found[1].parameters(), strict=True):
            p.copy_((p + q) / 2)
    return [*found, last]


SHIFTED, MASKS = phantoms(12, 9, gain=0.5, noise=0.35)


def test_adaptation_to_shifted_phantoms_lowers_the_loss_and_the_last_state_is_the_networks(federation):
    module, found = route_experts(
        federation, SHIFTED, Routing(epochs=3, lr=0.02, batch=4, radius=4), kind="segmentation"
    )
    assert found.epoch > 0 and found.losses[found.epoch] < found.losses[0]
    again = build_routed(federation)
    again.load_state_dict(dict(found.state), strict=False)
    assert torch.equal(logits(again, SHIFTED), logits(module, SHIFTED))
    assert tuple(predicted_shares(module, SHIFTED).tolist()) == found.shares[found.epoch]
    range_ = range_of_experts(build_routed(federation), SHIFTED, 0.5, kind="segmentation")
    assert range_.holds(torch.tensor(found.shares[found.epoch]))
    assert "lowest loss" in found.why and len(found.losses) == len(found.shares) == 4


def test_the_same_seed_gives_the_same_bits_and_another_does_not(federation):
    settings_ = Routing(epochs=1, lr=0.01, batch=6, radius=4)
    one, two, three = (
        route_experts(federation, SHIFTED, settings_, kind="segmentation", seed=seed)[1] for seed in (4, 4, 5)
    )
    assert one.losses == two.losses and all(torch.equal(one.state[n], two.state[n]) for n in one.state)
    assert one.losses != three.losses


@pytest.mark.parametrize("settings_", [{"layerwise": False}, {"variant": "official", "affine": "trained"}])
def test_options_adapt_too(federation, settings_):
    chosen = Routing(epochs=2, lr=0.02, batch=6, radius=4, **settings_)
    _, found = route_experts(federation, SHIFTED, chosen, kind="segmentation")
    assert min(found.losses[1:]) < found.losses[0]


def test_no_epoch_is_the_mean_of_all_kernels_by_each_images_own_statistics(federation):
    module, found = route_experts(federation, SHIFTED, Routing(epochs=0, radius=4), kind="segmentation")
    slow = copy.deepcopy(federation[-1])
    mixed = torch.nn.Conv2d | torch.nn.ConvTranspose2d
    layers = {name for name, part in slow.named_modules() if isinstance(part, mixed)}
    with torch.no_grad():
        for name, p in slow.named_parameters():
            if name.rpartition(".")[0] in layers:
                p.copy_(torch.stack([dict(expert.named_parameters())[name] for expert in federation]).mean(dim=0))
        expected = torch.cat([slow.train()(x[None]).logits for x in SHIFTED])  # a batch of one: its own statistics
    assert torch.allclose(logits(module, SHIFTED), expected, atol=1e-4)
    assert found.epoch == 0 and len(found.losses) == 1


def nothing(module, x, generator):
    """A loss that wants background everywhere, and is lowest there."""
    output = module(x).logits
    return ImageLosses(output.softmax(dim=1)[:, 1].flatten(1).mean(dim=1), output)


def test_a_loss_that_wants_a_constant_map_does_not_get_it(federation):
    free = build_routed(federation, affine="trained")
    found = adapt(free, SHIFTED, nothing, epochs=6, lr=0.1, batch=6)
    assert found.shares[found.epoch][1] < 0.01
    guarded = build_routed(federation, affine="trained")
    allowed = range_of_experts(guarded, SHIFTED, 0.25, kind="segmentation")
    kept = adapt(guarded, SHIFTED, nothing, epochs=6, lr=0.1, batch=6, allowed=allowed)
    assert kept.losses == found.losses and kept.epoch < found.epoch
    assert allowed.foreground[0] <= float(predicted_shares(guarded, SHIFTED)[1]) <= allowed.foreground[1]


def test_where_no_state_counts_the_network_is_not_adapted_and_says_so(federation):
    module = build_routed(federation)
    before = logits(module, SHIFTED)
    never = Range(torch.tensor([0.0, 0.6]), torch.tensor([0.4, 1.0]), (0.6, 1.0))
    found = adapt(module, SHIFTED, Unsupervised(radius=4), epochs=1, lr=0.01, batch=6, allowed=never)
    assert found.epoch is None and "not adapted" in found.why
    assert torch.equal(logits(module, SHIFTED), before)


def test_a_loss_that_is_no_number_is_never_the_lowest(federation):
    def broken(module, x, generator):
        judged = nothing(module, x, generator)
        return ImageLosses(judged.losses * float("nan"), judged.logits)

    found = adapt(build_routed(federation), SHIFTED, broken, epochs=1, batch=6)
    assert found.epoch is None and "finite" in found.why


def test_the_range_of_witnesses_leaves_out_those_who_say_one_thing_and_refuses_where_all_do():
    shares = [torch.tensor(s).double() for s in ([0.9, 0.1], [0.8, 0.2], [1.0, 0.0])]
    found = range_of(shares, 0.5, segmentation=True)
    assert found.foreground == pytest.approx((0.1 / 1.5, 0.3))
    held = {0.05: False, 0.07: True, 0.1: True, 0.2: True, 0.29: True, 0.31: False, 0.0: False, 1.0: False}
    assert {f: found.holds(torch.tensor([1 - f, f]).double()) for f in held} == held
    nobody = range_of(shares[2:], 9.0, segmentation=True)
    assert not nobody.holds(shares[0]) and "every model" in nobody.why
    labels = range_of(
        [torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.4, 0.4, 0.2]).double()], 0.0, segmentation=False
    )
    assert labels.holds(torch.tensor([0.45, 0.35, 0.2]).double())
    assert not labels.holds(torch.tensor([0.45, 0.30, 0.25]).double())


def test_each_class_has_its_range_where_their_sum_alone_would_pass():
    shares = [torch.tensor([0.8, 0.15, 0.05]).double(), torch.tensor([0.7, 0.2, 0.1]).double()]
    found = range_of(shares, 0.1, segmentation=True)
    assert found.holds(torch.tensor([0.75, 0.17, 0.08]).double())
    assert not found.holds(torch.tensor([0.75, 0.25, 0.0]).double())


def test_online_predicts_every_batch_before_its_step(federation):
    """A loop of algorithm 1: what is predicted for a batch comes from the state that batches before it made."""
    loss, module = Unsupervised(radius=4), build_routed(federation, seed=3)
    found = online(module, SHIFTED, loss, lr=0.01, batch=5, seed=3)
    slow, g = build_routed(federation, seed=3), torch.Generator().manual_seed(3)
    rule = torch.optim.Adam([p for p in slow.parameters() if p.requires_grad], lr=0.01)
    expected = []
    for start in (0, 5, 10):
        x = SHIFTED[start : start + 5]
        expected.append(logits(slow, x).softmax(1))
        value = loss(slow.train(), x, g).losses.mean()
        rule.zero_grad()
        value.backward()
        rule.step()
    assert torch.allclose(found.probabilities, torch.cat(expected), atol=1e-6)
    assert torch.allclose(logits(module, SHIFTED), logits(slow, SHIFTED), atol=1e-5)
    _, same = route_experts(
        federation, SHIFTED, Routing(mode="online", lr=0.01, batch=5, radius=4), kind="segmentation", seed=3
    )
    assert torch.equal(same.probabilities, found.probabilities)


def test_images_with_labels_are_routed_within_the_models_shares_of_classes():
    torch.manual_seed(0)
    task = Task(Cnn(widths=(8, 8), norm="batch"), (1, 12, 12), 3)
    x, experts = torch.randn(8, 1, 12, 12), [task.network().eval() for _ in range(3)]
    module, found = route_experts(experts, x, Routing(epochs=2, lr=0.01, batch=4), kind="classification")
    allowed = range_of_experts(build_routed(experts), x, 0.5, kind="classification")
    assert allowed.foreground is None
    assert found.epoch is None or allowed.holds(torch.tensor(found.shares[found.epoch]).double())
    assert task.probabilities(module, x).shape == (8, 3)


def test_nothing_to_train_or_no_images_is_refused():
    module = build_routed([DISCS.network() for _ in range(2)])
    with pytest.raises(ValueError, match="parameters and images, found 52 and 0"):
        adapt(module, SHIFTED[:0], Unsupervised())


@pytest.mark.parametrize("way", [Routing(epochs=2, radius=4), Tent(epochs=2, tried_below=None)])
def test_where_no_state_counts_the_shared_model_serves_as_it_came(federation, monkeypatch, way):
    """Not what it becomes by the test images' statistics, which the guard refused too."""
    never = Range(torch.tensor([0.0, 0.6]), torch.tensor([0.4, 1.0]), (0.6, 1.0), why="nothing counts here")
    monkeypatch.setattr("personalize.routing_outside.range_of", lambda *_, **__: never)
    monkeypatch.setattr("personalize.adaptation_baselines.range_of", lambda *_, **__: never)
    expected = logits(federation[-1], SHIFTED)
    if isinstance(way, Routing):
        module, found = route_experts(federation, SHIFTED, way, kind="segmentation")
    else:
        module, found = tent(federation[-1], SHIFTED, way, kind="segmentation")
    assert torch.equal(logits(module, SHIFTED), expected)
    assert found.epoch is None and not found.state and len(found.losses) == 3
    assert found.why == "nothing counts here: not adapted, the shared model serves as it came"


def test_one_image_without_a_number_does_not_spoil_those_after_it(federation):
    spoiled = SHIFTED.clone()
    spoiled[2] = float("nan")
    _, found = route_experts(federation, spoiled, Routing(mode="online", batch=1, radius=4), kind="segmentation")
    assert found.probabilities is not None
    assert found.probabilities.flatten(1).isfinite().all(dim=1).tolist() == [i != 2 for i in range(len(spoiled))]


def test_what_is_not_tried_leaves_the_network_before_adaptation_whatever_else_is_asked(federation):
    before, told = route_experts(federation, SHIFTED, Routing(epochs=0, radius=4), kind="segmentation")
    for changes in ({"lr": 0.02}, {"beta": 5.0, "variant": "paper"}, {"epochs": 1}):
        said = Routing(**{"epochs": 3, "radius": 4, "tried_below": 0.0, **changes})
        module, found = route_experts(federation, SHIFTED, said, kind="segmentation", seed=7)
        assert torch.equal(logits(module, SHIFTED), logits(before, SHIFTED))
        assert (found.epoch, len(found.losses), found.shares) == (0, 1, told.shares)
        assert "adapting was not tried" in found.why


def test_where_it_is_tried_the_rule_changes_no_bit(federation):
    said = {"epochs": 2, "lr": 0.02, "radius": 4}
    always, rule = (Routing(**said, tried_below=limit) for limit in (None, 1.0))
    one, two = (route_experts(federation, SHIFTED, how, kind="segmentation", seed=3)[1] for how in (always, rule))
    assert one.losses == two.losses and all(torch.equal(one.state[name], two.state[name]) for name in one.state)


def test_equal_models_leave_nothing_to_choose_so_adapting_is_never_tried(federation):
    same = [federation[0]] * 3
    _, found = route_experts(same, SHIFTED, Routing(epochs=2, radius=4, tried_below=1.0), kind="segmentation")
    assert found.epoch == 0 and "agree on these images by 1.000" in found.why


def test_the_rule_asks_each_model_alone_by_the_images_statistics(federation):
    module, masks = build_routed(federation), []
    for r in torch.eye(3):
        set_coefficients(module, r)
        masks.append(logits(module, SHIFTED).argmax(dim=1))
    told = agreement(masks, masks=True)
    for limit, tried in ((told - 1e-6, False), (told + 1e-6, True)):
        _, found = route_experts(
            federation, SHIFTED, Routing(epochs=1, radius=4, tried_below=limit), kind="segmentation"
        )
        assert (len(found.losses) == 2) is tried


def test_tent_asks_its_model_by_both_statistics(federation):
    before, _ = tent(federation[-1], SHIFTED, Tent(epochs=0), kind="segmentation")
    module, found = tent(federation[-1], SHIFTED, Tent(epochs=2, tried_below=0.0), kind="segmentation")
    assert torch.equal(logits(module, SHIFTED), logits(before, SHIFTED)) and "not tried" in found.why
    _, found = tent(federation[-1], SHIFTED, Tent(epochs=2, tried_below=1.0), kind="segmentation")
    assert len(found.losses) == 3


@pytest.mark.parametrize("way", [Routing(epochs=2, radius=4, tried_below=0.0), Tent(epochs=2, tried_below=0.0)])
def test_what_is_not_tried_serves_only_if_its_predictions_count(federation, monkeypatch, way):
    never = Range(torch.tensor([0.0, 0.6]), torch.tensor([0.4, 1.0]), (0.6, 1.0), why="nothing counts here")
    monkeypatch.setattr("personalize.routing_outside.range_of", lambda *_, **__: never)
    monkeypatch.setattr("personalize.adaptation_baselines.range_of", lambda *_, **__: never)
    ask = (federation, route_experts) if isinstance(way, Routing) else (federation[-1], tent)
    module, found = ask[1](ask[0], SHIFTED, way, kind="segmentation")
    assert torch.equal(logits(module, SHIFTED), logits(federation[-1], SHIFTED))
    assert found.epoch is None and not found.state and "out of range" in found.why
