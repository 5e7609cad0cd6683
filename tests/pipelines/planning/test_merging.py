"""Figures of one hospital, and of all: no order matters, nothing leaves the range of what was told."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_studies import measured, noised, told

from pipelines.data.measures import POINTS, measure_volume, summarize_studies
from pipelines.data.study import Unusable, Volume
from pipelines.planning.fingerprint import UNSURE, merge_fingerprints
from pipelines.requests.fingerprint import Measured
from privacy.release.meaning import DECLARED

NUMBERS = st.floats(0.3, 6.0)
STUDIES = st.lists(
    st.tuples(st.tuples(NUMBERS, NUMBERS, NUMBERS), st.tuples(*[st.integers(2, 300)] * 3)), min_size=1, max_size=8
)


@given(STUDIES, st.randoms())
def test_the_order_of_studies_changes_no_figure(studies, chance) -> None:
    each = measured(studies)
    mixed = [*each]
    chance.shuffle(mixed)
    before, after = summarize_studies(each, ["gland"]), summarize_studies(mixed, ["gland"])
    for name in ("spacing", "voxels", "extent", "volumes", "modalities", "studies"):
        assert getattr(before, name) == getattr(after, name)
    assert after.intensity == pytest.approx(before.intensity)


@given(st.lists(STUDIES, min_size=1, max_size=5), st.randoms())
def test_the_order_of_hospitals_changes_nothing(hospitals, chance) -> None:
    each = {f"h{number}": told(studies, 10 * number) for number, studies in enumerate(hospitals)}
    names = [*each]
    chance.shuffle(names)
    assert merge_fingerprints({name: each[name] for name in names}) == merge_fingerprints(each)


@given(STUDIES)
def test_hospitals_that_say_the_same_are_as_one(studies) -> None:
    one = merge_fingerprints({"a": told(studies)})
    both = merge_fingerprints({"a": told(studies), "b": told(studies)})
    assert replace(both, sites=one.sites, studies=one.studies, intensity=one.intensity) == one
    assert both.studies == 2 * one.studies and both.intensity == pytest.approx(one.intensity)


@given(st.lists(STUDIES, min_size=1, max_size=5))
def test_a_merged_median_is_one_that_was_told_and_half_the_studies_are_at_hospitals_no_higher(hospitals) -> None:
    each = {f"h{number}": told(studies) for number, studies in enumerate(hospitals)}
    common = merge_fingerprints(each)
    for axis in range(3):
        medians = {name: reply.spacing["p50"][axis] for name, reply in each.items()}
        assert common.spacing[axis] in medians.values()
        weight = sum(each[name].studies for name, median in medians.items() if median <= common.spacing[axis])
        assert 2 * weight >= sum(reply.studies for reply in each.values())
        assert common.cover[axis] == max(reply.extent["p95"][axis] for reply in each.values())


@given(st.lists(STUDIES, min_size=1, max_size=3))
def test_common_mean_and_deviation_are_those_of_all_studies_together(hospitals) -> None:
    each = {f"h{number}": told(studies, 10 * number) for number, studies in enumerate(hospitals)}
    together = [study for number, studies in enumerate(hospitals) for study in measured(studies, 10 * number)]
    slow = summarize_studies(together, ["gland"]).intensity
    common = merge_fingerprints(each).intensity
    assert common["mean"] == pytest.approx(slow["mean"], rel=1e-4)
    assert common["sd"] == pytest.approx(slow["sd"], rel=1e-3, abs=1e-3)


def test_hospitals_with_too_much_noise_do_not_count_unless_all_are_like_that() -> None:
    sure, unsure = noised(100, 10.0), noised(20, 10.0, spacing=9.0)
    assert 10.0 / 20 > UNSURE > 10.0 / 100
    common = merge_fingerprints({"a": sure, "b": unsure})
    assert (common.sites, common.unsure_sites, common.spacing[0]) == (("a",), ("b",), 3.0)
    alone = merge_fingerprints({"b": unsure})
    assert (alone.sites, alone.unsure_sites, alone.spacing[0]) == (("b",), (), 9.0)


@pytest.mark.parametrize("patients", [-30.0, 0.0, 0.4])
def test_a_noised_number_below_one_weighs_as_one(patients) -> None:
    assert merge_fingerprints({"a": noised(patients, 10.0)}).studies == 1.0


def test_volumes_and_pictures_are_not_merged() -> None:
    flat = replace(noised(100, 1.0), spacing={"p25": [1.0, 1.0], "p50": [1.0, 1.0]}, extent={"p50": [512.0, 512.0]})
    with pytest.raises(ValueError, match=r"as many axes, found \[2, 3\]"):
        merge_fingerprints({"a": flat, "b": noised(100, 1.0)})
    with pytest.raises(ValueError, match="no hospital answered"):
        merge_fingerprints({})


@given(st.permutations([0, 1, 2]), st.tuples(*[st.booleans()] * 3), st.integers(0, 99))
def test_a_study_measures_the_same_however_its_axes_are_stored(order, flips, seed) -> None:
    """The house's reading order: depth, rows, columns, whatever the file's axes are."""
    chance = np.random.default_rng(seed)
    values, spacing = chance.normal(size=(4, 5, 3)).astype(np.float32), np.array([0.7, 0.8, 3.0])
    mask = (chance.random((4, 5, 3)) < 0.4).astype(np.uint8)
    axes = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])  # columns to the left, rows to the back, slices up
    turned_values, turned_mask, affine = values, mask, axes.copy()
    for axis, flip in enumerate(flips):
        if flip:
            turned_values, turned_mask = (np.flip(each, axis) for each in (turned_values, turned_mask))
            affine[:3, 3] += affine[:3, axis] * (values.shape[axis] - 1)
            affine[:3, axis] *= -1
    affine = affine[:, [*order, 3]]
    turned_values, turned_mask = (np.transpose(each, order) for each in (turned_values, turned_mask))
    study = measure_volume("p", "s", Volume(turned_values, affine), Volume(turned_mask, affine), "mr")
    assert study.voxels == (3, 5, 4) and study.spacing == pytest.approx((3.0, 0.8, 0.7)) and study.modality == "MR"
    assert study.box_share == 1.0
    assert study.volumes[0] == pytest.approx(mask.sum() * 0.7 * 0.8 * 3.0)
    inside = values[mask > 0].astype(np.float64)
    if inside.size:
        assert study.moments == pytest.approx((inside.mean(), inside.var()), rel=1e-5, abs=1e-7)
        assert (study.foreground[0], study.foreground[-1]) == pytest.approx(
            tuple(np.quantile(inside, [0.5 / POINTS, 1 - 0.5 / POINTS])), rel=1e-5, abs=1e-6
        )


NAMED = {
    "studies": "how many studies",
    "rejected_by_reason": "how many have none, by reason",
    "modalities": "by modality",
    "spacing": "percentiles of the spacings",
    "voxels": "shapes",
    "extent": "extents of studies",
    "intensity": "values inside their masks",
    "volumes": "volumes of what masks show",
    "box_share": "share of a study that is not empty",
}


def test_a_statement_names_every_figure_that_leaves_without_noise() -> None:
    """Who declares the fingerprint public reads there what that is."""
    text = DECLARED["fingerprint"]
    assert NAMED.keys() == {field.name for field in fields(Measured)}
    assert [name for name, words in NAMED.items() if not all(word in text for word in words.split(", "))] == []


def test_the_box_is_that_of_what_is_not_0() -> None:
    values = np.zeros((6, 8, 4), np.float32)
    values[1:4, 2, 1:3] = values[2, 2:6, 1] = 1.0
    image = Volume(values, np.diag([-1.0, -1.0, 3.0, 1.0]))
    assert measure_volume("p", "s", image, image).box_share == pytest.approx(3 * 4 * 2 / values.size)
    empty = Volume(np.zeros((6, 8, 4), np.float32), image.affine)
    assert measure_volume("p", "s", empty, image).box_share == 0


def test_one_slice_and_values_that_are_no_numbers_are_set_aside() -> None:
    affine = np.diag([-1.0, -1.0, 3.0, 1.0])
    flat = Volume(np.ones((4, 4, 1), np.float32), affine)
    with pytest.raises(Unusable) as told_slice:
        measure_volume("p", "s", flat, flat)
    broken = Volume(np.full((4, 4, 4), np.nan, np.float32), affine)
    with pytest.raises(Unusable) as told_values:
        measure_volume("p", "s", broken, Volume(np.ones((4, 4, 4), np.uint8), affine))
    assert (told_slice.value.reason, told_values.value.reason) == ("single_slice", "not_finite")


def test_a_header_can_say_anything_and_only_known_modalities_leave() -> None:
    affine = np.diag([-1.0, -1.0, 3.0, 1.0])
    image = Volume(np.ones((4, 4, 4), np.float32), affine)
    assert measure_volume("p", "s", image, image, "Okonkwo^Wilhelmina").modality == "unknown"
