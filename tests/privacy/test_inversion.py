"""Inversion: it draws an image where the image is there to be drawn, and nothing where it is not."""

from __future__ import annotations

import copy
import itertools
import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import methods
from consilium.testing import testbed
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.planned import Planned
from federation.task import Task
from privacy.attacks.inversion import (
    Inversion,
    Likeness,
    Pixels,
    compute_likeness,
    invert_features,
    invert_gradient,
    shown_gradient,
    total_variation,
)
from privacy.dp.protection import Protection

SIDE, SHAPE = 12, (1, 12, 12)
PIXELS = Pixels(0.0, 1.0, 0.4)
HARD = Inversion(steps=300, tv=0.0)
LABEL = torch.tensor(1)


def objective(forward, batch):
    return functional.cross_entropy(forward(batch.x), batch.y, reduction="none")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def patients(count=6):
    """Images (count, 1, 12, 12) in [0, 1]: each a bright disc and a darker one, elsewhere in every patient."""
    axis = torch.arange(float(SIDE))
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    places = torch.rand(count, 4, generator=generator(5)) * (SIDE - 5) + 2.5
    discs = [
        0.8 * ((y - a) ** 2 + (x - b) ** 2 < 9).float() + 0.4 * ((y - c) ** 2 + (x - d) ** 2 < 6).float()
        for a, b, c, d in places.tolist()
    ]
    return torch.stack(discs)[:, None].clamp(0, 1)


IMAGES = patients()
IMAGE, FLOOR = IMAGES[0], IMAGES[1:].mean(dim=0)


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3))


def drawn(module, target, how=HARD, seed=0):
    return invert_gradient(module, objective, target, SHAPE, LABEL, how, generator(seed), pixels=PIXELS)


def test_a_linear_networks_gradient_gives_the_image_back():
    module = linear()
    gradient = shown_gradient(module, objective, IMAGE, LABEL)
    # Closed form: dL/dW = (p - e_y) x^T and dL/db = p - e_y.
    exact = (gradient["1.weight"][1] / gradient["1.bias"][1]).reshape(SHAPE)
    assert torch.allclose(exact, IMAGE, atol=1e-5)
    found, floor = compute_likeness(IMAGE, drawn(module, gradient)), compute_likeness(IMAGE, FLOOR)
    assert found.psnr > 25 and found.ssim > 0.9
    assert found.is_above(floor) and floor.psnr < 15


def test_only_the_direction_of_a_gradient_counts():
    module = linear()
    gradient = shown_gradient(module, objective, IMAGE, LABEL)
    longer = {name: 8.0 * g for name, g in gradient.items()}  # a power of two: not a digit changes
    assert torch.equal(drawn(module, gradient), drawn(module, longer))


def test_a_target_that_is_no_gradient_draws_nothing():
    module = linear()
    target = {n: torch.randn(p.shape, generator=generator(1)) for n, p in module.named_parameters()}
    assert not compute_likeness(IMAGE, drawn(module, target)).is_above(compute_likeness(IMAGE, FLOOR))


def test_what_private_access_gives_draws_no_more_than_the_mean_image(thorough):
    module, floor = linear(), compute_likeness(IMAGE, FLOOR)
    for seed in range(3 if thorough else 1):
        noise = random.Random(seed).randbytes
        target = shown_gradient(module, objective, IMAGE, LABEL, Protection(clip=1.0, noise=1.0), source=noise)
        found = compute_likeness(IMAGE, drawn(module, target))
        assert not found.is_above(floor) and found.psnr < floor.psnr


def test_without_noise_and_clipping_private_access_shows_what_the_plain_one_does():
    module = linear()
    plain = shown_gradient(module, objective, IMAGE, LABEL)
    wide = shown_gradient(module, objective, IMAGE, LABEL, Protection(clip=1e4, noise=0.0))
    assert plain.keys() == wide.keys()
    for name, gradient in plain.items():
        assert torch.allclose(gradient, wide[name], atol=1e-6)
    narrow = shown_gradient(module, objective, IMAGE, LABEL, Protection(clip=0.01, noise=0.0, views=7, sampling=0.1))
    length = math.sqrt(sum(float(g.square().sum()) for g in narrow.values()))
    assert length == pytest.approx(0.01, rel=1e-3), "one patient, counted once, whatever the sampling and the views"


def test_the_noise_of_a_shown_gradient_is_that_of_the_protection():
    module = linear()
    protection = Protection(clip=0.5, noise=4.0, sampling=0.1)
    shown = shown_gradient(module, objective, IMAGE, LABEL, protection, source=random.Random(3).randbytes)
    values = torch.cat([g.flatten() for g in shown.values()])
    # 435 numbers of standard deviation 2, and a gradient no longer than 0.5: 4 standard errors of the deviation.
    assert float(values.std()) == pytest.approx(2.0, abs=4 * 2.0 / math.sqrt(2 * len(values)))


def test_features_that_keep_everything_give_the_image_back_and_one_that_keeps_the_mean_does_not():
    torch.manual_seed(1)
    whole = nn.Conv2d(1, 4, 3, padding=1)
    floor, how = compute_likeness(IMAGE, FLOOR), Inversion(steps=300, tv=1e-3)
    for features, there in ((whole, True), (lambda x: x.mean(dim=(1, 2, 3)), False)):
        target = features(IMAGE[None])
        found = compute_likeness(
            IMAGE, invert_features(whole, features, target, SHAPE, how, generator(), pixels=PIXELS)
        )
        assert found.is_above(floor) is there
        assert not there or found.psnr > 25


def test_the_same_generator_draws_the_same_and_leaves_the_network_as_it_was():
    torch.manual_seed(2)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(400, 3))
    module[1].running_mean += 0.3
    before = copy.deepcopy(module.state_dict())
    how = Inversion(steps=20)
    gradient = shown_gradient(module, objective, IMAGE, LABEL)
    again = shown_gradient(module, objective, IMAGE, LABEL)
    assert all(torch.equal(gradient[name], again[name]) for name in gradient), "evaluation mode: nothing is dropped"
    one, two, other = (drawn(module, gradient, how, seed) for seed in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert one.shape == SHAPE and not one.requires_grad and one.min() >= 0 and one.max() <= 1
    assert all(p.grad is None for p in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_masks_may_stand_for_the_label():
    torch.manual_seed(4)
    module, mask = nn.Conv2d(1, 2, 3, padding=1), (IMAGE[0] > 0.5).long()

    def dense(forward, batch):
        return functional.cross_entropy(forward(batch.x), batch.y, reduction="none").flatten(1).mean(dim=1)

    gradient = shown_gradient(module, dense, IMAGE, mask)
    found = invert_gradient(module, dense, gradient, SHAPE, mask, Inversion(steps=5), generator(), pixels=PIXELS)
    assert found.shape == SHAPE and bool(found.isfinite().all())


def test_a_network_that_gives_no_number_shows_nothing_and_fails_nobody():
    module = linear()
    nn.init.constant_(module[1].bias, math.nan)
    gradient = shown_gradient(module, objective, IMAGE, LABEL)
    assert bool(drawn(module, gradient, Inversion(steps=3)).isfinite().all())


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 2), st.integers(0, 99))
def test_total_variation_is_its_definition(height, width, channels, seed):
    x = torch.randn(1, channels, height, width, generator=generator(seed), dtype=torch.float64)
    down, across = [], []
    for c, i, j in itertools.product(range(channels), range(height), range(width)):
        down += [abs(float(x[0, c, i + 1, j] - x[0, c, i, j]))] if i + 1 < height else []
        across += [abs(float(x[0, c, i, j + 1] - x[0, c, i, j]))] if j + 1 < width else []
    expected = sum(sum(part) / len(part) for part in (down, across) if part)
    assert float(total_variation(x)) == pytest.approx(expected, abs=1e-12)


def test_likeness_by_hand():
    noisy = IMAGE + 0.1 * torch.randn(SHAPE, generator=generator(9))
    span, square = float(IMAGE.max() - IMAGE.min()), float((IMAGE.double() - noisy.double()).square().mean())
    found = compute_likeness(IMAGE, noisy)
    assert found.psnr == pytest.approx(10 * math.log10(span**2 / square), abs=1e-6)
    assert compute_likeness(5 * IMAGE, 5 * noisy) == pytest.approx(found), "the unit of the pixels does not count"
    assert compute_likeness(IMAGE, IMAGE).ssim == pytest.approx(1.0) and found.ssim < 1
    assert all(math.isnan(figure) for figure in compute_likeness(torch.ones(SHAPE), noisy))
    assert math.isnan(compute_likeness(torch.rand(1, 2, 2), torch.rand(1, 2, 2)).ssim), "no window fits"
    assert Likeness(20, 0.5).is_above(Likeness(19, 0.4)) and not Likeness(20, 0.5).is_above(Likeness(19, 0.6))
    assert not Likeness(20, 0.5).is_above(Likeness(math.nan, math.nan))


def test_settings_beyond_their_bounds_are_all_told():
    with pytest.raises(ValueError, match=r"images must be in .*17; steps must be .*2001; lr .*tv must"):
        Inversion(images=17, steps=2001, lr=0.0, tv=-1.0)
    with pytest.raises(ValueError, match="tv must be"):
        Inversion(tv=math.nan)


def tasks():
    """A network of each kind, with the methods that accept it."""
    made = {
        "a table": testbed.make_task(),
        "labels of images": Task(Cnn(widths=(8, 8), norm="group"), (1, 16, 16), 2),
        "maps": Task(Cam(widths=(8, 8, 8, 8), norm="group"), (1, 32, 32), 2),
        "masks": testbed.mask_task(norm="group"),
        "a planned network": planned_task(),
    }
    return [
        pytest.param(task, one, id=f"{one.name}-{name}") for name, task in made.items() for one in methods.fit(task)
    ]


def planned_task():
    plan = Planned(
        patch=(8, 8), kernels=((3, 3),) * 3, strides=((1, 1), (2, 2), (2, 2)), filters=(8, 8, 8), norm="group"
    )
    return replace(testbed.mask_task(), model=plan)


@pytest.mark.parametrize(("task", "algorithm"), tasks())
def test_every_methods_network_shows_a_gradient_and_features_that_can_be_attacked(task, algorithm):
    """By the loss that it is trained by, also where a method builds another network than the model alone."""
    x = torch.rand(task.inputs, generator=generator())
    y = torch.zeros(task.spatial, dtype=torch.long)
    module = algorithm.network(task)
    effort = Inversion(images=1, steps=2)
    gradient = shown_gradient(module, task.objective_of_method, x, y)
    assert gradient and all(bool(part.isfinite().all()) for part in gradient.values())
    of_gradient = invert_gradient(
        module, task.objective_of_method, gradient, x.shape, y, effort, generator(), pixels=PIXELS
    )
    target = module.eval()(x[None]).features
    of_features = invert_features(
        module, lambda image: module(image).features, target, x.shape, effort, generator(), pixels=PIXELS
    )
    assert of_gradient.shape == of_features.shape == x.shape
