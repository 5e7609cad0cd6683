"""Sizes of masks: laws, and against slower ways to the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evaluation.histograms import draw_patient_weights
from evaluation.masks import score_masks
from evaluation.volumes import (
    EXPECTED,
    LEAST,
    PREDICTED,
    TRUE,
    Sizes,
    SizeWords,
    compare_sizes,
    draw_sizes,
    group_sizes,
)

ML = SizeWords("volume", "ml", 1000.0)


def sizes_of(values, copies=20):
    values = np.asarray(values, float)
    draws = draw_patient_weights(np.arange(len(values)), copies, 0, "a")
    return Sizes.of_sample(values, draws, [f"p{row}" for row in range(len(values))])


VALUES = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 30), st.just(3)), elements=st.floats(0, 1e4).map(lambda v: round(v, 2))
)


@given(
    hnp.arrays(np.int64, (5, 3, 4), elements=st.integers(0, 2)),
    hnp.arrays(np.int64, (5, 3, 4), elements=st.integers(0, 2)),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
)
def test_sizes_are_counted_pixel_by_pixel(truth, predicted, patients):
    expected = np.arange(10.0).reshape(5, 2)
    values = score_masks(truth, predicted, patients, spacing_mm=(0.5, 2.0), classes=3, expected=expected)
    for row, patient in enumerate(sorted(set(patients))):
        own = [image for image, who in enumerate(patients) if who == patient]
        for c in (1, 2):
            for kind, masks in ((TRUE, truth), (PREDICTED, predicted)):
                slow = sum(1.0 for image in own for pixel in masks[image].ravel() if pixel == c)
                assert values.sizes[row, c - 1, kind] == pytest.approx(slow)
            assert values.sizes[row, c - 1, EXPECTED] == pytest.approx(sum(expected[image, c - 1] for image in own))
    bare = score_masks(truth, predicted, patients, spacing_mm=(0.5, 2.0), classes=3)
    assert np.isnan(bare.sizes[..., EXPECTED]).all() and np.array_equal(bare.sizes[..., :2], values.sizes[..., :2])


@given(VALUES)
def test_bias_and_ratio_are_those_of_the_sums_one_by_one(values):
    row = compare_sizes("m", "s", sizes_of(values))
    shown = [one for one in values.tolist() if one[TRUE] > 0 or one[PREDICTED] > 0]
    if not shown:
        assert row is None
        return
    given_, predicted, expected = (math.fsum(one[kind] for one in shown) for kind in (TRUE, PREDICTED, EXPECTED))
    assert row.patients == len(shown) and row.bias.value == pytest.approx((predicted - given_) / len(shown), abs=1e-9)
    for estimate, total in ((row.share, predicted), (row.expected, expected)):
        assert estimate.value == pytest.approx(total / given_) if given_ else math.isnan(estimate.value)


@given(VALUES, st.integers(1, 4))
def test_patients_without_the_structure_in_either_mask_have_no_part(values, number):
    with_them = Sizes.of_sample(
        np.vstack([values, np.zeros((number, 3))]),
        np.ones((2, len(values) + number), int),
        [""] * (len(values) + number),
    )
    alone = Sizes.of_sample(values, np.ones((2, len(values)), int), [""] * len(values))
    assert repr(compare_sizes("m", "s", with_them)) == repr(compare_sizes("m", "s", alone))
    assert repr(group_sizes(with_them)) == repr(group_sizes(alone))


@given(hnp.arrays(np.float64, st.integers(3, 30), elements=st.floats(1, 100)), st.sampled_from([0.5, 1.0, 2.0]))
def test_masks_that_are_all_as_many_times_too_large_have_that_ratio_without_doubt(true, times):
    row = compare_sizes("m", "s", sizes_of(np.stack([true, times * true, times * true], axis=-1)))
    for estimate in (row.share, row.expected):
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((times, times, times))
    assert (row.bias.value > 0) - (row.bias.value < 0) == (times > 1) - (times < 1)


@given(VALUES)
def test_groups_hold_every_patient_once_in_the_order_of_what_was_predicted(values):
    sizes = sizes_of(values)
    shown, groups = sizes.with_structure().values, group_sizes(sizes)
    if len(shown) < 2 * LEAST:
        assert groups == []
        return
    assert sum(group.patients for group in groups) == len(shown) and min(g.patients for g in groups) >= LEAST
    predicted = [group.predicted for group in groups]
    assert predicted == sorted(predicted)
    total = sum(group.patients * group.true.value for group in groups)
    assert total == pytest.approx(shown[:, TRUE].sum())


def test_calibrated_sizes_lie_on_the_diagonal_and_twice_as_large_ones_below_it():
    true = np.linspace(10, 50, 40)
    for times in (1.0, 2.0):
        for group in group_sizes(sizes_of(np.stack([true, times * true, true], axis=-1))):
            assert group.true.value == pytest.approx(group.predicted / times)


def test_unknown_probabilities_have_no_ratio_and_no_groups():
    values = np.c_[np.full((12, 2), 5.0), np.full(12, np.nan)]
    assert compare_sizes("m", "s", sizes_of(values)).expected is None
    assert group_sizes(sizes_of(values), EXPECTED) == [] != group_sizes(sizes_of(values))


def test_the_picture_says_its_numbers_and_is_drawn_of_one_patient_and_of_none_with_the_structure():
    true = np.linspace(10, 50, 12)
    many = sizes_of(np.stack([true, true, true], axis=-1))
    picture = draw_sizes(
        {"m": ("m", many), "few": ("f", sizes_of([[3, 4, 5]])), "none": ("n", sizes_of([[0, 0, 0]]))}, ML
    )
    assert picture.title == "Volume, given against predicted" and "predicted (ml)" in picture.html
    first = group_sizes(many)[0]
    assert f"m: {first.predicted:.4g} predicted, {first.true.value:.4g} given of {first.patients}" in picture.html
    assert "few: 1 patients, too few for groups" in picture.html and "none: 0 patients" in picture.html
