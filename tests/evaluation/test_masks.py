"""Dice and HD95 of patients: laws, and against slower ways to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from monai.metrics import compute_dice, compute_hausdorff_distance

from evaluation.masks import GRID, dice, hd95, score_masks

MASKS = st.sampled_from([(5, 6), (3, 4, 5)]).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.bool_, shape, elements=st.booleans())] * 2)
)


def surface(mask):
    """Pixels of a mask with a neighbour along an axis outside the mask or outside the image, one by one."""
    found = []
    for place in np.argwhere(mask):
        for axis in range(mask.ndim):
            for step in (-1, 1):
                other = place.copy()
                other[axis] += step
                inside = 0 <= other[axis] < mask.shape[axis]
                if not inside or not mask[tuple(other)]:
                    found.append(tuple(place))
    return sorted(set(found))


def slow_hd95(a, b, spacing):
    """All pairs of surface points."""
    one, other = (np.array(surface(m), float) * spacing for m in (a, b))
    far = np.sqrt(((one[:, None] - other[None]) ** 2).sum(-1))
    return max(np.percentile(far.min(axis=1), 95), np.percentile(far.min(axis=0), 95))


@settings(max_examples=60, deadline=None)
@given(MASKS, st.lists(st.sampled_from([0.5, 1.0, 1.7, 3.0]), min_size=3, max_size=3))
def test_hd95_is_that_of_all_pairs_of_surface_points(pair, spacing):
    a, b = pair
    found = hd95(a, b, spacing[: a.ndim])
    if a.any() and b.any():
        assert found == pytest.approx(slow_hd95(a, b, spacing[: a.ndim]), abs=1e-9)
        assert found == hd95(b, a, spacing[: a.ndim])
    else:
        assert math.isnan(found)


@settings(max_examples=30, deadline=None)
@given(MASKS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_both_are_what_monai_gives(pair):
    a, b = pair
    if not (a.any() and b.any()):
        return
    spacing = [1.5, 0.7, 2.0][: a.ndim]
    t, p = (torch.from_numpy(m)[None, None].float() for m in (a, b))
    assert dice(a, b) == pytest.approx(float(compute_dice(p, t)))
    theirs = compute_hausdorff_distance(p, t, include_background=True, percentile=95, spacing=spacing)
    assert hd95(a, b, spacing) == pytest.approx(float(theirs), rel=1e-5)


@given(hnp.arrays(np.bool_, (6, 6), elements=st.booleans()))
def test_equal_masks_have_dice_1_and_distance_0_and_disjoint_ones_dice_0(mask):
    if mask.any():
        assert dice(mask, mask) == 1 and hd95(mask, mask, (1, 1)) == 0
        assert dice(mask, ~mask) == 0
        assert dice(mask, np.zeros_like(mask)) == 0


def test_where_both_are_empty_there_is_nothing_to_judge():
    empty = np.zeros((4, 4), bool)
    assert math.isnan(dice(empty, empty)) and math.isnan(hd95(empty, empty, (1, 1)))


def square(low, high, side=12):
    mask = np.zeros((side, side), np.int64)
    mask[low:high, low:high] = 1
    return mask


def test_a_patients_dice_is_of_all_images_as_one_volume_and_hd95_a_mean_over_images():
    truth = np.stack([square(2, 8), square(2, 4), square(0, 0)])
    found = np.stack([square(3, 8), square(2, 6), square(0, 0)])
    own = score_masks(truth, found, [7, 7, 7], spacing_mm=(2.0, 2.0), classes=2)
    assert own.scores[0, 0, 0] == pytest.approx(2 * (25 + 4) / (36 + 4 + 25 + 16), abs=1 / GRID)
    far = [hd95(t > 0, f > 0, (2.0, 2.0)) for t, f in zip(truth[:2], found[:2], strict=True)]
    assert own.scores[0, 0, 1] == pytest.approx(np.mean(far), abs=1 / GRID)


def test_each_class_is_by_itself():
    truth, found = np.zeros((2, 1, 6, 6), np.int64)
    truth[0, :3], truth[0, 3:] = 1, 2
    found[0, :3] = 2
    own = score_masks(truth, found, [3], spacing_mm=(1, 1), classes=4)
    assert own.scores[0, :2, 0].tolist() == [0, 0] and np.isnan(own.scores[0, 2]).all()
    assert own.present.tolist() == [[True, True, False]]
    assert np.isnan(own.scores[0, 0, 1]) and own.scores[0, 1, 1] > 0


def test_all_faults_are_named_at_once():
    mask = np.full((2, 4, 4), 3)
    with pytest.raises(ValueError, match=r"truth goes from 3 to 3") as caught:
        score_masks(mask, mask * 0.5, [0.5, 1], spacing_mm=(1, 0), classes=2)
    for said in ("predicted is float64", "patients are (2,) of float64", "spacing is [1, 0]"):
        assert said in str(caught.value)
    with pytest.raises(ValueError, match=r"needed is \(n, \*spatial\) of both"):
        score_masks(mask, mask[:1], [0, 1], spacing_mm=(1, 1), classes=4)
