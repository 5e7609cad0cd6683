"""Channel moments matched norm by norm: at home nothing changes, elsewhere what moved every channel is undone."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.calibration import adapt_batch_norms
from federation.matching import (
    ChannelMoments,
    count_free,
    free_moments,
    has_matchable_norms,
    match_channels,
    measure_channels,
    order_norms,
    restore_moments,
    weigh_rows,
)
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.models.unet import UNet
from federation.randomness import use_seed
from federation.task import Model, Task

IMAGES = (1, 16, 16)
GROUP = Cnn(widths=(8, 16), norm="group")
NETWORKS: list[Model] = [
    GROUP,
    Cnn(widths=(8, 8), norm="batch"),
    Cam(widths=(8, 8, 8, 16), norm="group"),
    ResNet18(width=8, small=True, norm="group"),
    UNet(),
]


class Disturbed(nn.GroupNorm):
    """A group norm whose standard outputs a scanner has stretched and moved, each channel by numbers of its own."""

    def forward(self, x: Tensor) -> Tensor:
        g, h = torch.linspace(0.5, 1.5, self.num_channels), torch.linspace(-1, 1, self.num_channels)
        u = functional.group_norm(x, self.num_groups, eps=self.eps) * g[:, None, None] + h[:, None, None]
        return u * self.weight[:, None, None] + self.bias[:, None, None]


def build(model: Model, inputs: tuple[int, ...] = IMAGES) -> nn.Module:
    """A network whose norms have scales and shifts like trained ones."""
    with use_seed(1):
        module = Task(model, inputs, 2, kind=getattr(model, "kind", "classification")).network().eval()
        for name, p in module.named_parameters():
            if p.dim() == 1:
                p.data += 0.3 * torch.randn(p.shape) + ("N.weight" in name) * 0.2
    return module


def images(n: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images, and whose they are: patients have 1, 2, 3, ... of them."""
    x = torch.rand(n, *IMAGES, generator=torch.Generator().manual_seed(seed)).square()
    return x, torch.arange(n).double().mul(2).add(0.25).sqrt().add(0.5).floor().long()


def moments(module: nn.Module, x: Tensor, patient: Tensor, depth: int | None = None) -> ChannelMoments:
    return measure_channels(module, x, weigh_rows(patient), order_norms(module, IMAGES, depth))


def matched(
    module: nn.Module, wanted: ChannelMoments, x: Tensor, patient: Tensor, depth: int | None = None
) -> nn.Module:
    return match_channels(module, wanted, x, patient, order_norms(module, IMAGES, depth))


def logits(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = module(x).logits
    return output


def disturbed(module: nn.Module) -> nn.Module:
    """The same network at a hospital where every norm's standard outputs are disturbed."""
    there = copy.deepcopy(module)
    for part in there.modules():
        if isinstance(part, nn.GroupNorm):
            part.__class__ = Disturbed
    return there


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: f"{model.name}-{getattr(model, 'norm', '')}")
def test_on_its_own_images_a_network_stays_what_it_is(model):
    module, (x, patient) = build(model), images()
    again = matched(module, moments(module, x, patient), x, patient)
    assert torch.allclose(logits(module, x), logits(again, x), atol=1e-5)


@pytest.mark.parametrize("model", [GROUP, Cam(widths=(8, 8, 8, 16), norm="group")], ids=lambda model: model.name)
def test_what_moved_and_stretched_every_channel_of_every_norm_is_undone(model):
    module, (x, patient) = build(model), images()
    there = disturbed(module)
    assert not torch.allclose(logits(module, x), logits(there, x), atol=1e-2), "the disturbance is one"
    assert torch.allclose(
        logits(module, x), logits(matched(there, moments(module, x, patient), x, patient), x), atol=1e-4
    )


def test_of_batch_norm_it_is_adabn():
    module, (x, patient) = build(Cnn(widths=(8, 8), norm="batch")), (images()[0], torch.arange(24))
    at_home = adapt_batch_norms(module, x)  # its running statistics are those of x
    there = 3 * images(seed=5)[0] - 1
    wanted = moments(at_home, x, patient)
    # Running variances divide by one place less.
    assert torch.allclose(wanted.mean, torch.zeros(16).double(), atol=1e-3)
    assert torch.allclose(wanted.square, torch.ones(16).double(), atol=1e-2)
    found, adabn = (
        logits(matched(at_home, wanted, there, patient), there),
        logits(adapt_batch_norms(at_home, there), there),
    )
    assert torch.allclose(found, adabn, atol=1e-2)
    assert not torch.allclose(logits(at_home, there), adabn, atol=0.3)


def test_a_second_slow_way_comes_to_the_same():
    """Written out for a network of two norms: loops over images, channels and groups in numpy."""
    module, (x, patient) = build(GROUP), images(9)
    wanted = ChannelMoments(torch.linspace(-0.4, 0.4, 24).double(), torch.linspace(0.5, 2.0, 24).double())
    found = matched(module, wanted, x, patient)
    layers = [module.stem[0], module.blocks[0][0]]
    share = np.array([1 / (len(set(patient.tolist())) * patient.tolist().count(p)) for p in patient.tolist()])
    h, begin = x.numpy().astype(np.float64), 0
    for layer, made in zip(layers, (found.stem[0], found.blocks[0][0]), strict=True):
        conv = (
            functional.conv2d(torch.from_numpy(h), layer.conv.weight.double(), layer.conv.bias.double(), padding=1)
            .detach()
            .numpy()
        )
        norm, u = layer.adn.N, np.empty_like(conv)
        per = norm.num_channels // norm.num_groups
        for n in range(len(conv)):
            for g in range(norm.num_groups):
                group = conv[n, g * per : (g + 1) * per]
                u[n, g * per : (g + 1) * per] = (group - group.mean()) / math.sqrt(group.var() + norm.eps)
        for c in range(norm.num_channels):
            m = sum(share[n] * u[n, c].mean() for n in range(len(u)))
            q = sum(share[n] * (u[n, c] ** 2).mean() for n in range(len(u)))
            a, b = float(wanted.mean[begin + c]), float(wanted.square[begin + c])
            r = math.sqrt((b - a * a) / (q - m * m))
            w, shift = float(norm.weight[c]), float(norm.bias[c])
            assert float(made.adn.N.weight[c]) == pytest.approx(r * w, abs=1e-4)
            assert float(made.adn.N.bias[c]) == pytest.approx(shift + w * (a - r * m), abs=1e-4)
            u[:, c] = r * w * u[:, c] + shift + w * (a - r * m)
        h = functional.max_pool2d(torch.from_numpy(np.maximum(u, 0)), 2).numpy()
        begin += norm.num_channels


def test_after_matching_a_network_has_the_wanted_moments():
    module, (x, patient) = build(GROUP), images()
    wanted = moments(module, *images(40, 3))
    found = matched(module, wanted, 2 * x - 0.3, patient)
    standard = copy.deepcopy(found)  # u as the matched network has it: its outputs by the scale and shift of the first
    for path in order_norms(module, IMAGES):
        scale, shift = (getattr(module.get_submodule(path), name).double() for name in ("weight", "bias"))
        got: list[Tensor] = []
        hook = standard.get_submodule(path).register_forward_hook(lambda part, args, out, got=got: got.append(out))
        logits(standard, 2 * x - 0.3)
        hook.remove()
        u = ((got[0].double() - shift[:, None, None]) / scale[:, None, None]).flatten(2)
        begin = 0 if path.startswith("stem") else 8
        mean = weigh_rows(patient) @ u.mean(dim=2)
        assert torch.allclose(mean, wanted.mean[begin : begin + len(mean)], atol=1e-4)
        square = weigh_rows(patient) @ u.square().mean(dim=2)
        assert torch.allclose(square, wanted.square[begin : begin + len(mean)], atol=1e-4)


def test_patients_weigh_the_same_however_many_images_they_have():
    module, (x, _) = build(GROUP), images(2)
    once = moments(module, x, torch.tensor([0, 1]))
    often = moments(module, torch.cat([x, x[:1], x[:1]]), torch.tensor([0, 1, 0, 0]))
    assert all(torch.allclose(a, b) for a, b in zip(once[:2], often[:2], strict=True))
    assert float(weigh_rows(torch.tensor([3, 3, 7, 3])).sum()) == pytest.approx(1.0)


def test_the_first_norms_alone_leave_the_others_as_they_are():
    module, (x, patient) = build(GROUP), images()
    found = matched(module, moments(module, *images(9, 4), depth=1), 3 * x, patient, depth=1)
    changed = {name for name, p in found.named_parameters() if not torch.equal(p, module.get_parameter(name))}
    assert changed == {"stem.0.adn.N.weight", "stem.0.adn.N.bias"}


def test_only_scales_and_shifts_change_and_the_module_itself_does_not():
    module, (x, patient) = build(ResNet18(width=16, small=True, norm="group")), images()
    before = copy.deepcopy(module.state_dict())
    wanted = moments(module, 2 * x**2, patient)
    found = [matched(module, wanted, x, patient) for _ in range(2)]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(*(one.state_dict().values() for one in found), strict=True))
    norms = {f"{path}.{name}" for path in order_norms(module, IMAGES) for name in ("weight", "bias")}
    assert {name for name, value in found[0].state_dict().items() if not torch.equal(before[name], value)} == norms


def test_norms_are_in_the_order_of_a_pass_which_no_image_decides():
    module = build(ResNet18(width=8, small=True, norm="group"))
    order = order_norms(module, IMAGES)
    assert next(iter(order)).startswith("stem")
    assert list(order_norms(module, IMAGES, 3)) == list(order)[:3]
    assert all(channels == module.get_submodule(path).num_channels for path, channels in order.items())


def test_too_much_noise_leaves_a_network_as_it_is():
    module, (x, patient) = build(GROUP), images()
    wanted = moments(module, *images(9, 4))
    kept = matched(module, wanted._replace(deviation=0.51), x, patient)
    assert all(torch.equal(a, b) for a, b in zip(kept.state_dict().values(), module.state_dict().values(), strict=True))
    moved = matched(module, wanted._replace(deviation=0.49), x, patient)
    assert not torch.allclose(logits(moved, x), logits(module, x), atol=1e-3)


@pytest.mark.parametrize("model", [model for model in NETWORKS if model.name != "cam"], ids=lambda model: model.name)
def test_free_numbers_hold_all_of_the_moments_and_keep_their_length(model):
    """But where a group's channels are equal everywhere, as those of one place may be: their square is 0, and not 1."""
    module, (x, patient) = build(model), images()
    found, norms = moments(module, 30 * x, patient), order_norms(module, IMAGES)
    free = free_moments(module, found, norms)
    assert len(free) == count_free(module, norms) <= 2 * sum(norms.values())
    again = restore_moments(module, free, norms, 0.1)
    # A group's variance is a little less than 1, by the norm's eps, which counts where all channels are faint.
    assert all(torch.allclose(a, b, atol=0.05) for a, b in zip(found[:2], again[:2], strict=True))
    assert again.deviation == 0.1
    length = torch.cat([again.mean, again.square - 1]).norm()
    assert float(free.norm()) == pytest.approx(float(length), rel=1e-9)


def test_norms_of_one_channel_a_group_have_nothing_to_match():
    module = build(Cnn(widths=(8, 8), norm="group"))
    assert count_free(module, order_norms(module, IMAGES)) == 0
    assert len(restore_moments(module, torch.zeros(0).double(), order_norms(module, IMAGES)).mean) == 16


def test_noise_that_makes_a_variance_negative_leaves_numbers_that_are_finite():
    module, (x, patient) = build(GROUP), images()
    wanted = ChannelMoments(torch.full((24,), 2.0).double(), torch.full((24,), -1.0).double(), 0.4)
    assert bool(logits(matched(module, wanted, x, patient), x).isfinite().all())


def test_a_network_without_norms_and_moments_of_another_are_refused():
    module, (x, patient) = build(GROUP), images()
    right = moments(module, x, patient)
    assert has_matchable_norms(module) and not has_matchable_norms(Task(Mlp(), IMAGES, 2).network())
    with pytest.raises(ValueError, match=r"needs norms with a scale and a shift .* found 0 such norms and 24 images"):
        matched(Task(Mlp(), IMAGES, 2).network(), right, x, patient)
    with pytest.raises(ValueError, match="found 2 such norms and 0 images"):
        matched(module, right, x[:0], patient[:0])
    with pytest.raises(ValueError, match=r"of 24 channels, found .8, 8.: they are of another network"):
        matched(module, moments(module, x, patient, depth=1), x, patient)
    with pytest.raises(ValueError, match="must be finite"):
        matched(module, right._replace(mean=right.mean * math.nan), x, patient)
    with pytest.raises(ValueError, match="deviation of noise must be a finite number >= 0, found -1"):
        matched(module, right._replace(deviation=-1.0), x, patient)


def test_norms_that_an_author_fixed_are_no_places_to_match():
    module = build(GROUP)
    norm = module.stem[0].adn.N
    fixed = norm.weight.detach()
    del norm.weight
    norm.weight = fixed
    assert list(order_norms(module, IMAGES)) == ["blocks.0.0.adn.N"]
