"""A translator that no patient shaped: learnt from drawn pictures alone, the same everywhere, and harmless."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor

from federation.randomization import disturb_images
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.randomized import Randomized

SMALL = Randomized(steps=150, width=8)
INPUTS = (1, 32, 32)


@pytest.fixture(scope="module")
def params():
    return SMALL.learn_parameters(INPUTS)


def pictures(n: int, seed: int = 9) -> Tensor:
    return draw_pictures(PRIORS["prostate_adc"], torch.arange(n) % 2, INPUTS, seed)


def into(params, x: Tensor) -> Tensor:
    return SMALL.translate(params, x, torch.arange(len(x)))


def test_no_patient_is_asked_and_none_changes_a_bit():
    """What learns has no argument for patients; with any, or other shared images, the parameters are the same bytes."""
    assert list(inspect.signature(Randomized.learn_parameters).parameters) == ["self", "inputs", "progress", "device"]
    quick, nobody = (
        Randomized(steps=3, width=4),
        SiteImages(torch.zeros(0, *INPUTS), torch.zeros(0).long(), torch.zeros(0).long()),
    )
    somebody = SiteImages(pictures(4), torch.arange(4) % 2, torch.arange(4))
    alone = quick.learn_parameters(INPUTS)
    for own, shared, seed in ((nobody, pictures(2), 1), (somebody, -pictures(3), 2)):
        found = quick.fit(own, shared, seed=seed)
        assert found.keys() == alone.keys() and all(torch.equal(found[name], alone[name]) for name in alone)
    other = Randomized(steps=3, width=4, seed=1).learn_parameters(INPUTS)
    assert not all(torch.equal(other[name], alone[name]) for name in alone)


def test_it_brings_disturbed_pictures_back_and_leaves_others_nearly_as_they_are(params):
    x = pictures(100)
    seen = disturb_images(x, 1.0, -1.0, 1.0, torch.Generator().manual_seed(0))
    before, after = ((one - x).abs().mean() for one in (seen, into(params, seen)))
    assert after < before
    kept = into(params, x)
    assert (kept - x).abs().mean() < 0.1, "a canonical picture stays within a twentieth of the range"
    assert torch.corrcoef(torch.stack([x.flatten(), kept.flatten()]))[0, 1] > 0.97


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_it_is_finite_and_in_range_on_constant_and_extreme_pictures(params, value: float):
    x = torch.full((2, *INPUTS), value)
    x[1, :, ::2] = -value
    found = into(params, x)
    assert bool(found.isfinite().all()) and float(found.abs().max()) <= 1.0


def test_the_caller_draws_the_numbers_that_it_would_have_drawn(params):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    into(params, pictures(1))
    Randomized(steps=1, width=4).learn_parameters(INPUTS)
    assert torch.equal(torch.rand(3), expected)


def test_wrong_settings_are_told_at_once():
    with pytest.raises(ValueError, match=r"(?s)steps.*batch.*lr.*strength.*width"):
        Randomized(steps=0, batch=0, lr=0.0, strength=-1.0, width=1)
    with pytest.raises(ValueError, match="prior skin_lesion draws no images of 1 channels; those that do are prostate"):
        Randomized(prior="skin_lesion").learn_parameters(INPUTS)
    with pytest.raises(ValueError, match="prior of any kind draws no images of 2 channels; those that do are none"):
        Randomized().prior_of(2)
