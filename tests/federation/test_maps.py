"""Readings of VAFL's equation 9, and maps laid over their image."""

import itertools
import typing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from federation.models.cam import Cam, First, Index, map_loss
from federation.models.maps import Normalized, compute_stride, dense_maps, normalized_maps, upsample_maps
from federation.task import Output, Task

NORMALIZED, FIRST, INDEX = (typing.get_args(one) for one in (Normalized, First, Index))
READINGS = list(itertools.product(NORMALIZED, FIRST, INDEX))


def some_maps(seed, shape=(3, 2, 2, 3, 4)):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_cams(maps, normalized):
    """Of one image, (2 heads, classes, h, w): lists of numbers by class, in plain Python."""
    means = [[float(value) for value in maps[:, c].mean(dim=0).flatten()] for c in range(maps.shape[1])]
    if normalized == "min_max":
        return [[(v - min(mean)) / max(max(mean) - min(mean), 1e-6) for v in mean] for mean in means]
    cut = [[max(0.0, v) for v in mean] for mean in means]
    joint = max(max(mean) for mean in cut)
    return [[v / max(joint if normalized == "joint" else max(mean), 1e-6) for v in mean] for mean in cut]


@given(st.integers(0, 10**6), st.sampled_from(READINGS))
def test_every_reading_of_equation_9_against_a_loop(seed, reading):
    normalized, first, index = reading
    maps, y = some_maps(seed), torch.tensor([0, 1, 1])
    found = map_loss(maps, y, normalized, first, index)
    for i, label in enumerate(y.tolist()):
        cams = slow_cams(maps[i], normalized)
        pick = max if first == "union" else min
        both = sum(pick(a, b) for a, b in zip(*cams, strict=True)) / 12
        punished = cams[1 - label] if index == "class" else cams[label]
        assert float(found[i]) == pytest.approx(both + sum(punished) / 12, abs=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(READINGS), st.sampled_from([1e-3, 0.7, 40.0]))
def test_a_positive_factor_changes_no_reading(seed, reading, factor):
    maps, y = some_maps(seed), torch.tensor([0, 1, 0])
    assert torch.allclose(map_loss(factor * maps, y, *reading), map_loss(maps, y, *reading))
    assert torch.allclose(normalized_maps(factor * maps, reading[0]), normalized_maps(maps, reading[0]))


@given(st.integers(0, 10**6), st.sampled_from(NORMALIZED))
def test_maps_lie_between_0_and_1_and_min_max_is_never_empty(seed, normalized):
    cams = normalized_maps(some_maps(seed), normalized)
    assert cams.min() >= 0 and cams.max() <= 1
    if normalized == "min_max":
        assert (cams.amax(dim=(2, 3)) == 1).all() and (cams.amin(dim=(2, 3)) == 0).all()


@pytest.mark.parametrize("reading", READINGS)
def test_empty_maps_are_finite_and_cost_nothing_and_have_a_finite_slope(reading):
    maps = torch.zeros(2, 2, 2, 3, 3, requires_grad=True)
    loss = map_loss(maps, torch.tensor([0, 1]), *reading)
    assert (loss == 0).all()
    loss.sum().backward()
    assert bool(maps.grad.isfinite().all())


def test_the_default_is_the_equation_as_it_was_read_before():
    maps, y = some_maps(3).float(), torch.tensor([0, 1, 1])
    cams = torch.relu(maps.mean(dim=1))
    cams = cams / cams.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)
    wrong = (torch.arange(2) != y[:, None]).to(cams.dtype)
    before = cams.amax(dim=1).mean(dim=(1, 2)) + (wrong * cams.mean(dim=(2, 3))).sum(dim=1)
    assert torch.equal(map_loss(maps, y), before)
    output = Output(torch.zeros(3, 2), maps.flatten(1), maps)
    assert torch.equal(Cam().losses(output, y), Cam(map_weight=0.0).losses(output, y) + before)


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_a_stride_changes_the_size_of_maps_and_no_parameter(stride):
    network = Task(Cam(stride=stride), (1, 48, 48), 2).network()
    assert network(torch.zeros(2, 1, 48, 48)).maps.shape == (2, 2, 2, 48 // stride, 48 // stride)
    usual = Task(Cam(), (1, 48, 48), 2).network().state_dict()
    assert {n: t.shape for n, t in network.state_dict().items()} == {n: t.shape for n, t in usual.items()}


@given(st.integers(16, 70), st.integers(16, 70))
def test_a_value_lies_in_the_middle_of_its_square(height, width):
    """Of a map with one 1, the largest value is in that square's middle, whatever the sides are."""
    module, x = Pooling(), torch.zeros(1, 1, height, width)
    maps = module(x).maps
    assert compute_stride(maps, x) == 16
    high, wide = maps.shape[-2:]
    row, column = high // 2, wide // 2
    one = torch.zeros(1, 1, high, wide)
    one[..., row, column] = 1.0
    over = upsample_maps(one, 16, (height, width))
    assert over.shape[-2:] == (height, width)
    peak = over[0, 0, 16 * row + 8, 16 * column + 8]
    assert peak == over.max()
    middle = upsample_maps(torch.arange(float(wide)).expand(1, 1, high, wide), 16, (height, width))[0, 0, 0]
    inside = torch.arange(8, 16 * wide - 8)
    assert torch.allclose(middle[inside], (inside - 7.5) / 16, atol=1e-5)
    assert (middle[:8] == 0).all() and (middle[16 * wide - 8 :] == wide - 1).all()


class Pooling(nn.Module):
    """A network of stride 16 whose maps are means of squares, so that what they should be is known."""

    def forward(self, x):
        mean = nn.functional.avg_pool2d(x, 16)
        maps = mean[:, :1, None].expand(-1, 2, 2, -1, -1)
        return Output(maps.mean(dim=(1, 3, 4)), maps.flatten(1), maps)


@given(st.integers(0, 10**6), st.sampled_from([2, 4, 8]))
def test_dense_maps_are_the_networks_values_of_moved_squares(seed, step):
    x = torch.rand(1, 1, 48, 64, generator=torch.Generator().manual_seed(seed))
    maps, found = dense_maps(Pooling(), x, step)
    assert found == step and maps.shape[-2:] == (48 // step, 64 // step)
    wide = nn.functional.pad(x, (16, 16, 16, 16), mode="replicate")
    for i, j in ((0, 0), (3, 5), (48 // step - 1, 64 // step - 1)):
        top, left = (16 + place * step + step // 2 - 8 for place in (i, j))
        assert float(maps[0, 0, 0, i, j]) == pytest.approx(
            float(wide[0, 0, top : top + 16, left : left + 16].mean()), abs=1e-5
        )


def test_a_step_that_is_not_below_the_stride_asks_once():
    x = torch.rand(2, 1, 48, 48)
    network = Task(Cam(stride=8), (1, 48, 48), 2).network().eval()
    for step in (8, 16):
        maps, stride = dense_maps(network, x, step)
        assert stride == 8 and torch.equal(maps, network(x).maps)
