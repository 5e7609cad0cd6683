"""Membership attacks: what they find where images were copied, and that they find nothing where nothing leaks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.attacks.membership import attack, model_membership, pool_membership

EXACT = ("auc", "low", "high", "tpr_at_1", "tpr_at_10")


def cohort(patients, slices, seed, *, first=0, side=8):
    """Images of patients who look alike: (n, side, side), and whose they are."""
    generator = np.random.default_rng(seed)
    face = generator.normal(size=(patients, 1, side, side))
    images = (face + 0.5 * generator.normal(size=(patients, slices, side, side))).reshape(-1, side, side)
    return images, np.repeat(np.arange(first, first + patients), slices)


MEMBERS, OTHERS = cohort(60, 5, 1), cohort(50, 5, 2, first=1000)
FRESH, _ = cohort(60, 5, 3)
COPIED = MEMBERS[0] + 0.1 * np.random.default_rng(4).normal(size=MEMBERS[0].shape)


def against(pool, members=MEMBERS, others=OTHERS, **settings):
    return pool_membership(pool, *members, *others, **settings)


def figures(found):
    return [getattr(found, name) for name in EXACT]


def slow_auc(members, others):
    return np.mean([(a > b) + 0.5 * (a == b) for a in members for b in others])


def slow_rate(members, others, allowed):
    rates = [np.mean(members >= cut) for cut in [*members, *others, math.inf] if np.mean(others >= cut) <= allowed]
    return max(rates)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(-4, 4), min_size=5, max_size=30),
    st.lists(st.integers(-4, 4), min_size=5, max_size=30),
)
def test_the_figures_are_their_definitions_and_ties_count_half(members, others):
    a, b = np.array(members, float), np.array(others, float)
    found = attack(a, b, control=(a, b))
    assert found.auc == pytest.approx(slow_auc(a, b), abs=1e-12)
    assert found.control_auc == found.auc
    assert found.tpr_at_1 == pytest.approx(slow_rate(a, b, 0.01))
    assert found.tpr_at_10 == pytest.approx(slow_rate(a, b, 0.10))
    assert 0 <= found.low <= found.auc + 0.02 and found.auc - 0.02 <= found.high <= 1
    assert attack(b, a, control=(a, b)).auc == pytest.approx(1 - found.auc, abs=1e-12)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    # Scores one standard deviation apart: AUC = Phi(1 / sqrt(2)) = 0.760.
    truth, runs, covered = 0.7602, 30, 0
    for seed in range(runs):
        generator = np.random.default_rng(seed)
        a, b = generator.normal(1, 1, 60), generator.normal(0, 1, 40)
        found = attack(a, b, control=(a, b), seed=seed)
        covered += found.low <= truth <= found.high
    assert covered >= 25  # 95 % of 30, and 4 standard deviations below


def test_a_pool_of_copies_is_found_and_a_pool_that_never_saw_the_members_is_not():
    copied, fresh = against(COPIED), against(FRESH)
    assert copied.auc > 0.9 and copied.low > 0.9 and copied.tpr_at_10 > 0.9
    assert fresh.low < 0.5 < fresh.high
    assert min(copied.control_auc, fresh.control_auc) > 0.9
    assert (fresh.members, fresh.others, fresh.reason) == (60, 50, None)


def test_the_score_of_a_patient_is_the_mean_distance_of_their_images_to_the_nearest_of_the_pool():
    def uneven(images, whose):
        kept = np.random.default_rng(9).random(len(whose)) < 0.6
        return images[kept], whose[kept]

    def slow_scores(images, whose):
        nearest = np.array([min(np.linalg.norm(image - made) for made in FRESH) for image in images])
        return np.array([-nearest[whose == patient].mean() for patient in np.unique(whose)])

    members, others = uneven(*MEMBERS), uneven(*OTHERS)
    a, b = slow_scores(*members), slow_scores(*others)
    found = against(FRESH, members, others)
    assert found.auc == pytest.approx(slow_auc(a, b), abs=1e-12)
    assert found.tpr_at_10 == pytest.approx(slow_rate(a, b, 0.10))


def test_principal_components_find_copies_too():
    assert against(COPIED, components=20).auc > 0.9
    found = against(FRESH, components=20)
    assert found.low < 0.5 < found.high
    assert found.control_auc > 0.9


def test_a_pool_too_small_to_copy_everybody_has_a_weaker_control():
    assert against(FRESH[:6]).control_auc < against(FRESH[:60]).control_auc < against(FRESH).control_auc


def test_members_and_others_change_places():
    there, back = against(FRESH), against(FRESH, OTHERS, MEMBERS)
    assert back.auc == pytest.approx(1 - there.auc, abs=1e-12)
    assert back.low == pytest.approx(1 - there.high, abs=0.03)
    assert against(COPIED, OTHERS, MEMBERS).auc < 0.1


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 59), st.integers(0, 1000))
def test_patients_are_the_unit_and_neither_repeated_images_nor_their_order_change_anything(patient, seed):
    images, whose = MEMBERS
    twice = np.concatenate([np.arange(len(whose)), *[np.flatnonzero(whose == patient)] * 3])
    order = np.random.default_rng(seed).permutation(twice)
    again = (images[order], whose[order])
    assert against(FRESH, again, components=9) == against(FRESH, components=9)
    losses = np.random.default_rng(5).normal(size=len(whose))
    others = np.random.default_rng(6).normal(size=len(OTHERS[1]))
    pictures = {"other_images": OTHERS[0]}
    once = model_membership(losses, whose, others, OTHERS[1], member_images=images, **pictures)
    more = model_membership(losses[order], again[1], others, OTHERS[1], member_images=again[0], **pictures)
    assert figures(more) == pytest.approx(figures(once), abs=1e-9)
    assert more.control_auc == once.control_auc


def by_losses(member_losses, other_losses, **settings):
    return model_membership(
        member_losses, MEMBERS[1], other_losses, OTHERS[1], member_images=MEMBERS[0], other_images=OTHERS[0], **settings
    )


def test_losses_that_are_lower_for_members_are_found_and_equal_ones_are_not():
    generator = np.random.default_rng(6)
    members, others = generator.exponential(size=300), generator.exponential(size=250)
    equal, lower = by_losses(members, others), by_losses(members * 0.2, others)
    assert equal.low < 0.5 < equal.high
    assert lower.auc > 0.9 and lower.low > 0.8
    assert by_losses(members, others * 0.2).auc < 0.1
    assert min(equal.control_auc, lower.control_auc) > 0.9


def test_a_patient_has_the_mean_of_their_losses():
    losses = np.repeat(np.arange(60.0), 5) + np.tile([-2, -1, 0, 1, 2], 60)
    found = by_losses(losses, np.full(250, 29.5))
    assert found.auc == 0.5
    assert found.tpr_at_1 == 0.5


def test_a_patient_with_many_images_has_a_mean_and_not_a_sum():
    # Six patients with more images each than the one before, all with the same losses as everybody else.
    whose = np.repeat(np.arange(6), np.arange(1, 7))
    images, _ = cohort(21, 1, 8)
    found = model_membership(np.ones(21), whose, np.ones(250), OTHERS[1], member_images=images, other_images=OTHERS[0])
    assert (found.auc, found.low, found.high) == (0.5, 0.5, 0.5)


def test_the_scale_of_the_pixels_does_not_matter():
    there, here = (
        against(FRESH * s, (MEMBERS[0] * s, MEMBERS[1]), (OTHERS[0] * s, OTHERS[1]), control_noise=2.0)
        for s in (1024.0, 1.0)
    )
    assert here.control_auc < 1, "a control that finds everybody would hide a noise of the wrong scale"
    assert there == here


def test_noise_over_the_copies_hides_them():
    assert against(FRESH, control_noise=100.0).control_auc < 0.75 < against(FRESH, control_noise=0.0).control_auc


def test_fewer_than_five_patients_on_a_side_give_no_figure_but_a_reason():
    few = cohort(4, 5, 7)
    found = against(FRESH, few)
    assert all(math.isnan(value) for value in [*figures(found), found.control_auc])
    assert (found.members, found.others) == (4, 50)
    assert found.reason == "4 members and 50 other patients: an attack needs 5 patients on either side"
    assert model_membership(
        np.zeros(20), few[1], np.zeros(250), OTHERS[1], member_images=few[0], other_images=OTHERS[0]
    ).reason
    assert attack([1.0], [0.0] * 9, control=([1.0], [0.0])).reason


def test_the_same_seed_gives_the_same_figures():
    assert against(FRESH, seed=3) == against(FRESH, seed=3)
    assert against(FRESH, seed=3).low != against(FRESH, seed=4).low


def test_every_wrong_argument_is_named_at_once():
    with pytest.raises(
        ValueError,
        match=r"member_patients have shape \(3,\)(?s:.*)control_noise is -1(?s:.*)members \(56,\)",
    ):
        pool_membership(FRESH, MEMBERS[0][:, 1:], np.zeros(3), *OTHERS, control_noise=-1)
    with pytest.raises(ValueError, match=r"60 patients are on both(?s:.*)empty(?s:.*)components is 0"):
        pool_membership(np.zeros((0, 8, 8)), *MEMBERS, *MEMBERS, components=0)
    with pytest.raises(ValueError, match=r"1 values that are not finite(?s:.*)other_losses have shape \(2,\)"):
        by_losses(np.array([math.nan] + [0.0] * 299), np.zeros(2))
    with pytest.raises(ValueError, match=r"others has 2 dimensions(?s:.*)control\[1\]"):
        attack([1.0], [[1.0]], control=([0.0], [math.inf]))
