"""Where a score is sensitive to its image."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from torch import nn

from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.sensitivity import SMOOTH, compute_sensitivity
from federation.task import Output, Task


class Linear(nn.Module):
    """Logits that are weighted sums of pixels, so that their gradient is known."""

    def __init__(self, weights, factor=1.0):
        super().__init__()
        self.weights, self.factor = weights, factor

    def forward(self, x):
        logits = self.factor * torch.einsum("bchw,kchw->bk", x, self.weights)
        return Output(logits, logits)


def weights(seed, classes=2, side=24):
    return torch.randn(classes, 2, side, side, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 10**6))
def test_of_a_linear_score_it_is_the_size_of_the_weights_smoothed(seed):
    w = weights(seed)
    found = compute_sensitivity(Linear(w).eval(), torch.rand(2, 2, 24, 24))
    size = gaussian_filter((w[1] - w[0]).abs().sum(dim=0).double().numpy(), 24 * SMOOTH)
    assert np.allclose(found, size / size.max(), atol=1e-5)


@given(st.integers(0, 10**6), st.sampled_from([1e-3, 0.5, 30.0]))
def test_a_positive_factor_on_the_score_changes_nothing(seed, factor):
    w, x = weights(seed), torch.rand(1, 2, 24, 24)
    assert torch.allclose(
        compute_sensitivity(Linear(w, factor).eval(), x), compute_sensitivity(Linear(w).eval(), x), atol=1e-5
    )


def test_more_classes_are_taken_together_against_the_first():
    """With logits of which all but the first are equal, it is the map of two classes."""
    w, x = weights(0), torch.rand(1, 2, 24, 24)
    three = torch.stack([w[0], w[1], w[1]])
    assert torch.allclose(
        compute_sensitivity(Linear(three).eval(), x), compute_sensitivity(Linear(w).eval(), x), atol=1e-5
    )


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_of_several_findings_it_is_that_of_the_one_that_is_meant(seed, finding):
    w = weights(seed, classes=4)
    found = compute_sensitivity(Linear(w).eval(), torch.rand(1, 2, 24, 24), finding)
    size = gaussian_filter(w[finding].abs().sum(dim=0).double().numpy(), 24 * SMOOTH)
    assert np.allclose(found, size / size.max(), atol=1e-5)


@pytest.mark.parametrize("model", [Cam(), Cnn()])
def test_an_image_alone_has_the_map_that_it_has_among_others(model):
    network = Task(model, (1, 32, 40), 2).network().eval()
    x = torch.rand(3, 1, 32, 40)
    found = compute_sensitivity(network, x)
    assert found.shape == (3, 32, 40) and found.min() >= 0 and torch.equal(found.amax(dim=(1, 2)), torch.ones(3))
    assert torch.allclose(found[1:2], compute_sensitivity(network, x[1:2]), atol=1e-4)
    assert all(parameter.grad is None for parameter in network.parameters())


def test_where_no_pixel_matters_the_map_is_empty():
    assert not compute_sensitivity(Linear(torch.zeros(2, 2, 24, 24)).eval(), torch.rand(1, 2, 24, 24)).any()


def test_a_network_in_training_is_refused():
    with pytest.raises(ValueError, match=r"call eval\(\)"):
        compute_sensitivity(Linear(weights(0)).train(), torch.rand(1, 2, 24, 24))
