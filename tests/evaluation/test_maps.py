"""Images as points: every set has its points, its name and a look of its own."""

import re

import numpy as np
import pytest
import torch

from evaluation.maps import point_map, shared_map
from harmonize.complexity import Score
from pipelines.coordinator.report.harmonization import POINTS, draw_points


def points(number, seed=0):
    return np.random.default_rng(seed).normal(size=(number, 2))


def test_every_set_is_drawn_and_named():
    picture = shared_map({"shared": points(7), "public": points(5, 1)}, title="Shared <images>")
    first, second, *key = re.findall(r'<path d="([^"]*z?)" (?:fill="#|transform)', picture.html)
    assert first.count("M") == 7 and second.count("M") == 5 and len(key) == 2  # and one of each in the key
    assert "shared" in picture.html and "public" in picture.html and "7 shared, 5 public" in picture.html
    assert "No hospital's own images are among them" in picture.caption


def test_real_and_synthetic_images_are_told_apart_by_shape_too():
    html = point_map(points(3), points(3, 1), title="t").html
    round_ones, square_ones = re.findall(r'<path d="([^"]*)" fill="#', html)
    assert round_ones.count("a3 3") == 0 < round_ones.count("a") and "a" not in square_ones


@pytest.mark.parametrize("wrong", [np.zeros((3, 3)), np.zeros(4)])
def test_points_of_another_shape_are_refused(wrong):
    with pytest.raises(ValueError, match=r"points must be \(n, 2\)"):
        shared_map({"a": wrong}, title="t")


@pytest.mark.parametrize("positive", [0, 3, 8])
def test_a_map_of_shared_images_has_at_most_so_many_of_each_kind_and_leaves_out_what_is_not_there(positive):
    images = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    (picture,) = draw_points(images, torch.arange(8) < positive, torch.rand(6, 1, 8, 8), Score())
    assert ("shared, positive" in picture.html) == (positive > 0)
    assert ("shared, negative" in picture.html) == (positive < 8)
    assert "6 public" in picture.html and POINTS >= 100


def test_equal_images_lie_in_one_place():
    (picture,) = draw_points(torch.zeros(5, 1, 8, 8), torch.arange(5) < 2, torch.zeros(5, 1, 8, 8), Score())
    assert "shared, positive" in picture.html
