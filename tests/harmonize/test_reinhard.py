"""Reinhard's transfer: what each picture gets, and what it keeps."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.reinhard import Reinhard


def pictures(channels: int, n: int = 6, seed: int = 0) -> Tensor:
    prior = next(one for one in PRIORS.values() if one.channels == channels)
    return draw_pictures(prior, torch.arange(n) % 2, (channels, 32, 32), seed).clamp(-0.98, 0.98)


def moved(images: Tensor, shared: Tensor, region: Literal["foreground", "all"] = "foreground") -> Tensor:
    how = Reinhard(region=region)
    nobody = SiteImages(images[:0], torch.zeros(0).long(), torch.zeros(0).long())
    return how.translate(how.fit(nobody, shared), images, torch.arange(len(images)))


def test_by_hand_mean_and_deviation_become_the_references():
    """Equation 1, one channel: reference pictures of means 0 and .2 and deviations .1 and .3."""
    shared = torch.stack([0.1 * sign(), 0.2 + 0.3 * sign()])[:, None]
    found = moved((-0.5 + 0.05 * sign())[None, None], shared)
    assert torch.allclose(found, (0.1 + 0.2 * sign())[None, None], atol=1e-6)


def sign() -> Tensor:
    return torch.where((torch.arange(64) % 2 == 0).view(8, 8), 1.0, -1.0)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_gain_and_an_offset_of_a_camera_are_gone_whoever_else_is_there(channels: int):
    x, shared = 0.3 * pictures(channels), 0.4 * pictures(channels, seed=1)
    once = moved(x, shared)
    if channels == 1:
        assert torch.allclose(moved(0.6 * x + 0.1, shared), once, atol=1e-4)
    assert torch.equal(moved(x[2:3], shared)[0], once[2])
    assert torch.allclose(moved(once, shared), once, atol=0.02), "twice is once"
    red = x.clone()
    red[:, 0] += 0.1
    assert (moved(red, shared) - once).abs().mean() < 0.5 * (red - x).abs().mean()


@pytest.mark.parametrize("channels", [1, 3])
def test_background_and_blank_pictures_stay_and_everything_is_finite(channels: int):
    x, shared = pictures(channels), 0.5 * pictures(channels, seed=1)
    x[0], x[1], x[2, :, :8] = -1.0, 1.0, -1.0
    found = moved(x, shared)
    assert bool(found.isfinite().all()) and float(found.abs().max()) <= 1
    assert torch.equal(found[0], x[0]) and torch.equal(found[2, :, :8], x[2, :, :8])
    assert not torch.equal(moved(x, shared, "all")[0], x[0])
    with pytest.raises(ValueError, match="the shared images are blank"):
        moved(x, torch.full_like(shared, -1.0))
