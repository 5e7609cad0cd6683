"""The networks: sizes, classes, single examples, and fitness for private access."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harmonize.networks import Classifier, Critic, Generator, halve_sizes, initialise_module, one_hot
from privacy.dp.modules import find_unfit_parts

SIDES = st.sampled_from([16, 32, 40, 48, 72, 104])


@settings(max_examples=12)
@given(SIDES, SIDES, st.sampled_from([1, 3]), st.integers(1, 12))
def test_every_allowed_size_goes_in_and_comes_out(height, width, channels, wide):
    inputs = (channels, height, width)
    generator, critic, classifier = Generator(5, inputs, wide), Critic(inputs, wide), Classifier(inputs, wide)
    y = torch.tensor([0, 1, 1])
    images = generator(torch.randn(3, 5), y)
    assert images.shape == (3, *inputs) and float(images.detach().abs().max()) <= 1
    assert critic(images, y).shape == (3,) and classifier(images).shape == (3,)


@given(st.integers(2, 32), st.integers(2, 32))
def test_images_are_halved_until_the_shorter_side_is_small(a, b):
    sizes = halve_sizes((1, 8 * a, 8 * b))
    assert len(sizes) >= 4 and min(sizes[-1]) < 8
    assert all(((h + 1) // 2, (w + 1) // 2) == after for (h, w), after in itertools.pairwise(sizes))
    assert len(sizes) == 4 or min(sizes[-2]) >= 8


@pytest.mark.parametrize("make", [Critic, Classifier])
def test_networks_that_see_patients_are_fit_for_private_access_and_small(make):
    module = make((1, 48, 48))
    assert find_unfit_parts(module) == [] and not list(module.buffers())
    assert 20_000 < sum(p.numel() for p in module.parameters()) < 110_000


def test_an_image_does_not_depend_on_the_batch_it_is_in():
    generator, critic, classifier = (
        module.double() for module in (Generator(6, (1, 24, 32)), Critic((1, 24, 32)), Classifier((1, 24, 32)))
    )
    z, y = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])
    x = generator(z, y)
    for i in range(5):
        own = slice(i, i + 1)
        assert torch.allclose(generator(z[own], y[own]), x[own], atol=1e-12)
        assert torch.allclose(critic(x[own], y[own]), critic(x, y)[own], atol=1e-12)
        assert torch.allclose(classifier(x[own]), classifier(x)[own], atol=1e-12)


def test_classes_make_a_difference_to_what_is_drawn_and_to_its_score():
    generator, critic = Generator(6, (1, 16, 16)), Critic((1, 16, 16))
    z, no, yes = torch.randn(4, 6), torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)
    assert not torch.equal(generator(z, no), generator(z, yes))
    x = generator(z, no)
    features = critic(x, yes) - critic(x, no)
    assert float(features.detach().abs().min()) > 0
    with torch.no_grad():
        critic.of_class.weight[1] = critic.of_class.weight[0]
    assert torch.allclose(critic(x, yes), critic(x, no)), "classes differ by the projection only"


def test_one_hot_is_torchs_own():
    y = torch.tensor([1, 0, 1])
    assert torch.equal(one_hot(y, torch.zeros(1)), torch.nn.functional.one_hot(y, 2).float())


def test_a_seed_decides_the_start_and_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    one, two, other = (initialise_module(lambda: Critic((1, 16, 16)), seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(2), wanted)
    assert torch.equal(one.score.weight, two.score.weight) and not torch.equal(one.score.weight, other.score.weight)


@pytest.mark.parametrize("inputs", [(1, 20, 16), (1, 16), (0, 16, 16), (1, 264, 16)])
def test_sizes_that_no_network_takes_are_refused_with_all_that_is_wrong(inputs):
    with pytest.raises(ValueError, match=r"multiples of 8 from 8 to 256, found .*width must be >= 1, found 0"):
        Classifier(inputs, 0)
