"""Test-time routing, the losses: equations 7 to 10 against loops over pixels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from federation.task import Output
from personalize.routing_losses import Unsupervised, consistency, entropy, shape, spread


def windowed(p, radius):
    """Equation 8 pixel by pixel, for one class map (h, w)."""
    found = torch.zeros_like(p)
    across = [min(radius, (side - 1) // 2) for side in p.shape]
    for i in range(p.shape[0]):
        for j in range(p.shape[1]):
            rows = slice(max(0, i - across[0]), i + across[0] + 1)
            cells = p[rows, max(0, j - across[1]) : j + across[1] + 1]
            found[i, j] = cells.max() - cells.min()
    return found


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_shape_consistency_and_entropy_are_the_loops_over_pixels(h, w, radius, seed):
    g = torch.Generator().manual_seed(seed)
    z, other = torch.randn(2, 3, h, w, generator=g), torch.randn(2, 3, h, w, generator=g)
    p, q = z.softmax(1), other.softmax(1)
    for i in range(2):
        around = sum(float(windowed(p[i, c], radius).sum()) for c in range(3)) / (h * w)
        assert float(shape(p, radius)[i]) == pytest.approx(around, abs=1e-5)
        cells = [(a, b) for a in range(h) for b in range(w)]
        apart = sum(float((p[i, :, a, b] - q[i, :, a, b]).square().sum()) for a, b in cells) / len(cells)
        assert float(consistency(p, q)[i]) == pytest.approx(apart, abs=1e-5)
        unsure = -sum(float(v) * math.log(float(v)) for a, b in cells for v in p[i, :, a, b]) / len(cells)
        assert float(entropy(z)[i]) == pytest.approx(unsure, abs=1e-5)


def test_the_spread_in_a_volume_is_that_of_its_windows():
    p = torch.rand(1, 2, 5, 6, 3, generator=torch.Generator().manual_seed(0))
    found = spread(p, 2)
    for i, j, k in [(0, 0, 0), (2, 3, 1), (4, 5, 2), (1, 0, 2)]:
        cells = p[0, 1, max(0, i - 2) : i + 3, max(0, j - 2) : j + 3, max(0, k - 1) : k + 2]
        assert float(found[0, 1, i, j, k]) == pytest.approx(float(cells.max() - cells.min()), abs=1e-6)


class Fixed(nn.Module):
    """Logits that are the input itself."""

    def forward(self, x):
        return Output(x, x)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def test_equation_10_adds_up_what_is_switched_on_and_the_noise_has_the_given_deviation():
    x = torch.randn(2, 3, 6, 6, generator=seeded(1))
    noise = torch.randn(x.shape, generator=seeded())
    p = x.softmax(1)
    parts = {
        "consistency": consistency(p, (x + 0.7 * noise).softmax(1)),
        "shape": 0.2 * shape(p, 2),
        "entropy": 0.2 * entropy(x),
    }
    for terms in [tuple(parts), ("shape",), ("consistency", "entropy")]:
        judged = Unsupervised(beta=0.2, noise=0.7, radius=2, terms=terms)(Fixed(), x, seeded())
        assert torch.allclose(judged.losses, sum(parts[term] for term in terms), atol=1e-6)
        assert torch.equal(judged.logits, x)


def test_the_papers_variant_adds_the_shape_of_all_pixels_up():
    x = torch.randn(2, 3, 6, 5, generator=seeded(1))
    p, noisy = x.softmax(1), (x + 0.5 * torch.randn(x.shape, generator=seeded())).softmax(1)
    around = torch.stack([sum(windowed(p[i, c], 2).sum() for c in range(3)) for i in range(2)])
    expected = consistency(p, noisy) + 0.01 * (around + entropy(x))
    judged = Unsupervised(radius=2, variant="paper")(Fixed(), x, seeded())
    assert torch.allclose(judged.losses, expected, atol=1e-5)
    without = Unsupervised(radius=2, variant="paper", terms=("consistency", "entropy"))(Fixed(), x, seeded())
    assert torch.equal(without.losses, Unsupervised(terms=("consistency", "entropy"))(Fixed(), x, seeded()).losses)


def test_the_official_variant_is_the_released_codes_batch_loss():
    x = torch.randn(3, 2, 6, 6, generator=seeded(1))
    p, q = x.softmax(1), (x + 0.5 * torch.randn(x.shape, generator=seeded())).softmax(1)
    unsure = (-(p * p.log()).sum(dim=0) / math.log(2)).mean()
    around = torch.stack([windowed(p[i, 1], 2) for i in range(3)])
    expected = 10 * unsure + 0.1 * (p - q).square().mean() + (1e-6 * around).norm()
    judged = Unsupervised(radius=2, variant="official")(Fixed(), x, seeded())
    assert float(judged.losses.mean()) == pytest.approx(float(expected), rel=1e-5)


def test_one_label_an_image_has_consistency_and_entropy_and_no_shape():
    x = torch.randn(4, 3, generator=seeded(1))
    noisy = x + 0.5 * torch.randn(x.shape, generator=seeded())
    expected = consistency(x.softmax(1), noisy.softmax(1)) + 0.01 * entropy(x)
    assert torch.allclose(Unsupervised()(Fixed(), x, seeded()).losses, expected, atol=1e-6)
    with pytest.raises(ValueError, match="shape alone"):
        Unsupervised(terms=("shape",))(Fixed(), x, seeded())
