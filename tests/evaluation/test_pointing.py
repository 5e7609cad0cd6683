"""Maps against masks: the pointing game, overlap, and what an empty map counts for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evaluation.pointing import average_precision, hit_share, is_blank, threshold_dice

SHAPE = (5, 6)
MAPS = arrays(np.float64, SHAPE, elements=st.integers(0, 4).map(lambda value: value / 4))  # ties are common
MASKS = arrays(np.bool_, SHAPE).filter(lambda mask: bool(mask.any()))


def slow_hit(cam, mask, reach):
    """Pixel by pixel, in plain Python."""
    values = [float(value) for value in cam.ravel()]
    top, inside = max(values), [divmod(int(place), SHAPE[1]) for place in np.flatnonzero(mask)]
    if min(values) == top:
        return 0.0
    peaks = [divmod(place, SHAPE[1]) for place, value in enumerate(values) if value == top]
    near = [any(math.dist(peak, one) <= reach for one in inside) for peak in peaks]
    return sum(near) / len(near)


def slow_average_precision(cam, mask):
    """Precision at each value of the map, weighted by the recall that it adds."""
    total, recall = 0.0, 0.0
    for value in sorted(set(cam.ravel().tolist()), reverse=True):
        found = cam >= value
        right = float((found & mask).sum())
        total += (right / mask.sum() - recall) * right / found.sum()
        recall = right / mask.sum()
    return total


@given(MAPS, MASKS, st.sampled_from([0.0, 1.0, 1.5, 3.0]))
def test_the_pointing_game_is_what_a_loop_over_pixels_says(cam, mask, reach):
    assert hit_share(cam, mask, reach) == pytest.approx(slow_hit(cam, mask, reach))


@given(MAPS, MASKS)
def test_average_precision_and_overlap_are_what_loops_say(cam, mask):
    assert average_precision(cam, mask) == pytest.approx(slow_average_precision(cam, mask))
    found = cam >= 0.5
    assert threshold_dice(cam, mask, 0.5) == pytest.approx(2 * (found & mask).sum() / (found.sum() + mask.sum()))


@given(MAPS, MASKS, st.sampled_from([0.5, 3.0]))
def test_a_positive_factor_changes_neither_peak_nor_order(cam, mask, factor):
    assert hit_share(factor * cam, mask) == hit_share(cam, mask)
    assert average_precision(factor * cam, mask) == pytest.approx(average_precision(cam, mask))


@given(MASKS, st.sampled_from([0.0, 0.3]))
def test_a_map_that_is_the_same_everywhere_points_nowhere(mask, value):
    cam = np.full(SHAPE, value)
    assert hit_share(cam, mask, 99) == 0 and average_precision(cam, mask) == pytest.approx(mask.mean())
    assert is_blank(cam) == (value == 0)


def test_the_mask_itself_is_the_best_map():
    mask = np.zeros(SHAPE, bool)
    mask[1:3, 2:4] = True
    perfect = mask.astype(float)
    assert hit_share(perfect, mask) == average_precision(perfect, mask) == threshold_dice(perfect, mask, 0.5) == 1
    assert hit_share(1 - perfect, mask) == threshold_dice(1 - perfect, mask, 0.5) == 0
    assert not is_blank(perfect)


@pytest.mark.parametrize("measure", [hit_share, average_precision, lambda cam, mask: threshold_dice(cam, mask, 0.5)])
def test_what_cannot_be_measured_is_refused(measure):
    with pytest.raises(ValueError, match="empty"):
        measure(np.eye(3), np.zeros((3, 3), bool))
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(3, 4\)"):
        measure(np.eye(3), np.ones((3, 4), bool))
