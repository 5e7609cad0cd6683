"""The drawn generator: the prior as it is at the start, derivatives that are true, and lesions that stay."""

from __future__ import annotations

import copy

import pytest
import torch

from harmonize.drawn_generator import DrawnGenerator
from harmonize.networks import Inputs
from harmonize.prior import PRIORS, PriorName
from harmonize.wgan import WganGp, draw_images, train
from privacy.dp.access import Rows, open_access

SIZES: tuple[tuple[int, int], ...] = ((16, 16), (48, 48), (31, 40))
NO_DERIVATIVE = {"nodules", "masked", "hairs"}
"""Thresholds: pictures change in steps with them."""


def inputs_of(name: str, size: tuple[int, int]) -> Inputs:
    return (PRIORS[name].channels, *size)


def drawn_batch(name: PriorName, size: tuple[int, int], count: int = 32) -> tuple[DrawnGenerator, torch.Tensor]:
    generator = DrawnGenerator(name, inputs_of(name, size))
    return generator, torch.randn(count, generator.latent, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", PRIORS)
def test_before_training_it_draws_the_prior_and_each_row_alone(name):
    generator, z = drawn_batch(name, (16, 16), 6)
    y = torch.arange(6) % 2
    with torch.no_grad():
        pictures = generator(z, y)
        alone = torch.cat([generator(z[i : i + 1], y[i : i + 1]) for i in range(6)])
    seeds = z[:, -1].contiguous().view(torch.int32).long() + 2**31
    theta = torch.special.ndtr(z[:, :-1])
    assert torch.equal(pictures, PRIORS[name].render(theta, y, seeds, inputs_of(name, (16, 16))))
    assert torch.equal(pictures, alone) and len(seeds.unique()) == 6
    assert torch.equal(copy.deepcopy(generator)(z, y), pictures)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PRIORS)
def test_every_number_has_a_finite_derivative(name, size):
    generator, z = drawn_batch(name, size, 64)
    weights = torch.randn(inputs_of(name, size), generator=torch.Generator().manual_seed(1))
    (generator(z, torch.arange(64) % 2) * weights).sum().backward()
    flat = set()
    for number in (generator.mean, generator.log_spread):
        assert number.grad is not None and bool(number.grad.isfinite().all())
        flat |= {key for key, slope in zip(PRIORS[name].ranges, number.grad, strict=True) if slope == 0}
    assert flat <= NO_DERIVATIVE


@pytest.mark.parametrize("key", ["peripheral", "lesion", "noise", "gain", "tone", "urine", "stroma"])
def test_a_derivative_is_that_of_differences(key):
    generator, z = drawn_batch("prostate_adc", (16, 16))
    y, column = torch.arange(32) % 2, list(PRIORS["prostate_adc"].ranges).index(key)
    weights = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(1)).double()

    def score(shift: float) -> torch.Tensor:
        moved = copy.deepcopy(generator)
        with torch.no_grad():
            moved.mean[column] += shift
        with torch.no_grad():
            total: torch.Tensor = (moved(z, y).double() * weights).sum()
        return total

    generator.zero_grad()
    (generator(z, y).double() * weights).sum().backward()
    assert generator.mean.grad is not None
    differences = float(score(0.01) - score(-0.01)) / 0.02
    assert float(generator.mean.grad[column]) == pytest.approx(differences, rel=0.05, abs=0.05)


def test_trained_on_bright_pictures_it_draws_bright_ones_and_lesions_stay():
    settings = WganGp(
        name="wgan_gp", epsilon=None, learns="head", generator="drawn", rate=0.1, steps=60, critic_steps=1, batch=16,
        prior_images=200, prior_steps=8, prior_components=8, looks=2, width=2,
    )  # fmt: skip
    prior, inputs, y = PRIORS["prostate_adc"], (1, 16, 16), torch.arange(60) % 2
    theta = torch.rand(60, prior.latent, generator=torch.Generator().manual_seed(5))
    for key, value in (("gain", 0.95), ("window", 0.95), ("peripheral", 0.9), ("transition", 0.9)):
        theta[:, list(prior.ranges).index(key)] = value
    patients = Rows(prior.render(theta, y, torch.arange(60), inputs), y, torch.arange(60))
    params = train(settings, open_access({"train": patients}, batch=16, seed=0), inputs, seed=0)
    made = draw_images(settings, inputs, params, torch.arange(400) % 2, seed=1)
    start = DrawnGenerator("prostate_adc", inputs)(
        torch.randn(400, start_latent(), generator=rng()), torch.arange(400) % 2
    )
    bright = float(patients.x.mean())
    assert abs(float(made.mean()) - bright) < 0.5 * abs(float(start.mean()) - bright)
    of_class = [float(made[c::2].mean()) for c in (0, 1)]
    assert of_class[1] < of_class[0], "class 1 has a lesion, which is dark"


def start_latent() -> int:
    return PRIORS["prostate_adc"].latent + 1


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("settings", [{"prior": None}, {"variant": "paper"}])
def test_it_needs_a_prior(settings):
    with pytest.raises(ValueError, match="drawn needs the pictures of a prior"):
        WganGp(generator="drawn", **settings)
