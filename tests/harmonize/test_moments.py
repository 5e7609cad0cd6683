"""A critic that is linear in public features: what is asked of patients, what is trusted, and where it leads."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harmonize.distances import sliced_wasserstein
from harmonize.game import load_module
from harmonize.moments import make_moments, mean_features, shrink_mean
from harmonize.networks import Moments
from harmonize.prior import PRIORS, draw_pictures
from harmonize.synthesis import make_protection
from harmonize.wgan import WganGp, draw_images, pretrain_networks, train
from privacy.dp.access import Rows, open_access
from privacy.dp.modules import find_unfit_parts
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

INPUTS = (1, 16, 16)
GAN = WganGp(
    steps=90, rate=3e-4, batch=16, width=4, prior_steps=150, prior_images=200, prior_components=8, looks=3, ema=0.8
)


@pytest.fixture(scope="module")
def public() -> Tensor:
    return draw_pictures(PRIORS["prostate_adc"], torch.arange(60) % 2, INPUTS, 1)


@pytest.fixture(scope="module")
def begun() -> dict[str, Tensor]:
    return pretrain_networks(GAN, INPUTS, seed=0)


@pytest.fixture(scope="module")
def patients() -> Rows:
    """24 patients of 2 images from a corner of the prior: what one hospital could be."""
    random_theta = torch.rand(48, PRIORS["prostate_adc"].latent, generator=torch.Generator().manual_seed(4))
    y = torch.arange(48) % 2
    x = PRIORS["prostate_adc"].render(0.5 + 0.4 * random_theta, y, torch.arange(48), INPUTS)
    return Rows(x, y, torch.arange(48) // 2)


def by_hand(critic: Moments, x: Tensor, y: Tensor) -> Tensor:
    """The docstring's formula, image by image and component by component."""
    scores = []
    d = critic.deviation.tolist()
    for image, label in zip(x, y.tolist(), strict=True):
        p = [float(((image.flatten() - critic.mean) * one).sum()) for one in critic.components]
        f = [math.sqrt(d[0] / d[j]) * p[j] for j in range(len(d))]
        f += [math.sqrt(d[0] * d[j]) * ((p[j] / d[j]) ** 2 - 1) / math.sqrt(8) for j in range(len(d))]
        f = [one / float(critic.unit) for one in f]
        one, two = (
            sum(a * b for a, b in zip(f, w.weight[0].tolist(), strict=True)) for w in (critic.score, critic.of_class)
        )
        scores.append(one + (label - 0.5) * (two / 2 + critic.share.weight.item()))
    return torch.tensor(scores)


def test_its_score_is_the_formula_and_the_median_public_image_has_norm_1(public):
    critic = make_moments(public, INPUTS, 5)
    assert float(critic.features(public).norm(dim=1).median()) == pytest.approx(1, abs=1e-5)
    for layer in (critic.score, critic.of_class, critic.share):
        torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(3))
    y = torch.arange(6) % 2
    assert torch.allclose(critic(public[:6], y), by_hand(critic, public[:6], y), atol=1e-5)
    assert (
        find_unfit_parts(critic) == [] and sum(p.numel() for p in critic.parameters() if p.requires_grad) == 4 * 5 + 1
    )


def test_fewer_public_images_than_components_leave_the_others_blind(public):
    critic = make_moments(public[:4], INPUTS, 6)
    seen = critic.features(public)
    assert bool(seen.isfinite().all()) and bool((seen[:, 3:6] == 0).all()) and not bool((seen[:, :3] == 0).all())


def test_what_is_asked_is_each_patients_mean_features_and_both_accesses_agree_without_noise(public, patients):
    critic = make_moments(public, INPUTS, 5)
    f, side = critic.features(patients.x), (patients.y.float() - 0.5)[:, None]
    wanted = {"score.weight": f, "of_class.weight": 0.5 * side * f, "share.weight": side}
    quiet = open_private({"train": patients}, Protection(clip=1e2, noise=0.0, sampling=1.0))
    for access in (quiet, open_access({"train": patients}, batch=8, seed=0)):
        found = mean_features(access, critic, 2)
        assert found.deviation == 0
        for name, value in wanted.items():
            assert torch.allclose(found.weights[name].float(), value.mean(dim=0), atol=1e-5)


def test_the_noise_is_known_from_how_much_answers_differ(public, patients):
    critic, noised = make_moments(public, INPUTS, 30), Protection(clip=0.5, noise=3.0, sampling=1.0)
    access = open_private({"train": patients}, noised, source=random.Random(0).randbytes)
    assert mean_features(access, critic, 4).deviation == pytest.approx(0.5 * 3 / 24 / 2, rel=0.15)


@given(st.integers(10, 60), st.floats(1e-3, 1e6), st.integers(0, 99))
def test_pure_noise_of_any_size_moves_nothing(size, deviation, seed):
    start = torch.full((size,), 0.1, dtype=torch.float64)
    noise = deviation * torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(shrink_mean(start + noise, start, deviation * 1.2, 1.0), start)
    assert torch.equal(shrink_mean(start + noise, start, 0.0, 1.0), start + noise), "without noise all is trusted"


@settings(max_examples=30)
@given(st.floats(0.01, 5.0), st.floats(0.0, 1e3))
def test_what_stands_out_is_followed_part_of_the_way_and_within_the_bound(deviation, far):
    start, answer = torch.zeros(20, dtype=torch.float64), torch.full((20,), far, dtype=torch.float64)
    found = shrink_mean(answer, start, deviation, 1.0)
    assert float(found.norm()) <= min(1.0, float(answer.norm())) + 1e-9
    assert bool((found * answer >= 0).all())


def test_an_answer_that_shrinks_to_nothing_is_nothing():
    answer, start = (torch.tensor([one], dtype=torch.float64) for one in (-0.125, 1.0))
    assert torch.equal(shrink_mean(answer, start, 0.375, 1.0), torch.zeros(1, dtype=torch.float64))


def test_a_private_head_needs_two_answers_to_know_their_noise():
    with pytest.raises(ValueError, match="looks must be above 1"):
        replace(GAN, looks=1)
    assert replace(GAN, looks=1, learns="whole").looks == 1
    assert replace(GAN, name="wgan_gp", epsilon=None, learns="head", looks=1).head, "without noise one is enough"


def test_with_a_guarantee_it_comes_nearer_to_patients_than_its_start(begun, patients):
    noised = make_protection(replace(GAN, epsilon=100.0), patients=24)
    access = open_private({"train": patients}, noised, source=random.Random(1).randbytes)
    before, after = (
        sliced_wasserstein(draw_images(GAN, INPUTS, one, patients.y, seed=2), patients.x, seed=0)
        for one in (begun, train(replace(GAN, epsilon=100.0), access, INPUTS, start=begun, seed=0))
    )
    assert after < 0.85 * before


def test_a_game_that_goes_astray_ends_at_its_start(begun, patients):
    """A rate that ruins the generator: what was nearest to the answers stays, by features that no test touched."""
    access = open_access({"train": patients}, batch=8, seed=0)
    ended = train(replace(GAN, learns="head", rate=1.0, steps=24), access, INPUTS, start=begun, seed=0)
    critic = load_module(Moments(INPUTS, 8), begun, "moments")
    goal = critic.features(patients.x).mean(dim=0)
    y = torch.arange(400) % 2
    before, after = (
        float((critic.features(draw_images(GAN, INPUTS, one, y, seed=3)).mean(dim=0) - goal).norm())
        for one in (begun, ended)
    )
    assert after <= 1.05 * before


def test_with_infinite_noise_the_generator_is_its_start(begun, patients):
    noised = replace(make_protection(GAN, patients=24), noise=1e4)
    for seed in range(5):
        access = open_private({"train": patients}, noised, source=random.Random(seed).randbytes)
        ended = train(GAN, access, INPUTS, start=begun, seed=0)
        assert all(torch.equal(ended[name], value) for name, value in begun.items())
