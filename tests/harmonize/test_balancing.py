"""Balancing: how many synthetic images, how far from real ones, and generators that copy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmonize.balancing import FEWEST, add_mirrored, compute_distance, find_lack, near_copies
from harmonize.elastic import make_deformed_copies
from harmonize.prior import PRIORS, draw_pictures
from harmonize.public_features import compute_features, make_view

INPUTS = (1, 32, 32)
PRIOR = PRIORS["prostate_adc"]


def pictures(count: int, seed: int, label: int | None = None) -> torch.Tensor:
    y = torch.arange(count) % 2 if label is None else torch.full((count,), label)
    return draw_pictures(PRIOR, y, INPUTS, seed)


def public():
    view = make_view(PRIOR, INPUTS, 400, 10, 1.0, seed=0)
    return lambda images: compute_features(view, images)


@given(st.integers(0, 5000), st.integers(0, 5000), st.floats(0, 1))
def test_what_lacks_makes_the_classes_equal_and_a_balanced_hospital_lacks_nothing(zero, one, at):
    found = find_lack((zero, one), at)
    if found is None:
        assert min(zero, one) >= at * max(zero, one)
    else:
        held = [zero, one]
        held[found.label] += found.number
        assert held[0] == held[1] and found.number > 0
    turned = find_lack((one, zero), at)
    assert turned == (None if found is None else found._replace(label=1 - found.label))


def test_the_clients_of_the_case_study_are_augmented_and_left_as_the_slides_say():
    second = [(664, 2656), (494, 2964), (1350, 1753), (4094, 1108)]
    assert [find_lack(held, 0.75) is None for held in second] == [False, False, True, False]
    assert find_lack((4094, 1108), 0.75) == (1, 2986), "here the images without cancer are the fewer"


def test_more_than_two_classes_are_refused():
    with pytest.raises(ValueError, match="two classes can be balanced here, found 3"):
        find_lack((1, 2, 3), 0.75)


def test_a_generator_that_copies_is_seen_and_one_that_knows_no_patient_is_not():
    train, held, fresh = pictures(90, 1), pictures(40, 2), pictures(60, 3)
    assert near_copies(fresh, train, held) < 0.05
    again = train[torch.arange(60) % 90]
    noise = torch.randn(again.shape, generator=torch.Generator().manual_seed(0))
    for name, copied in {
        "as they are": again,
        "with noise": (again + 0.05 * noise).clamp(-1, 1),
        "brighter": (again * 0.97 + 0.03).clamp(-1, 1),
        "mirrored": again.flip(3),
        "turned": again.rot90(1, (2, 3)),
    }.items():
        assert near_copies(copied, train, held) > 0.9, name
    half = torch.cat([again[:30], fresh[:30]])
    assert 0.4 < near_copies(half, train, held) < 0.6, "the share of them that copy is what is told"


def test_an_image_that_is_not_square_is_compared_with_its_mirror_images():
    wide = pictures(2, 1)[:, :, :, :24]
    assert add_mirrored(wide).shape == (8, 1, 32, 24) and add_mirrored(pictures(2, 1)).shape == (16, 1, 32, 32)
    assert len({one.numpy().tobytes() for one in add_mirrored(pictures(1, 1))}) == 8


def test_blurred_images_resemble_everybody_and_copy_nobody():
    train, held = pictures(90, 1), pictures(40, 2)
    mean = train.mean(dim=0, keepdim=True).expand(30, -1, -1, -1)
    assert near_copies(mean, train, held) == 0


def test_the_smallest_bends_of_training_images_are_near_copies_too():
    train, held = pictures(40, 1), pictures(40, 2)
    bent = make_deformed_copies(train, 2, seed=0)
    assert near_copies(bent, train, held) >= 0.5, "each image comes as it is, and bent"


def test_nothing_is_told_of_too_few_held_back_images():
    few = pictures(FEWEST - 1, 2)
    assert math.isnan(near_copies(pictures(20, 1), pictures(20, 3), few))
    assert compute_distance(public(), pictures(20, 1), few, pictures(20, 3), seed=0) is None


def test_the_distance_of_equal_sets_is_nothing_and_of_another_class_more_than_of_the_same():
    view = public()
    held, train = pictures(60, 2, label=1), pictures(60, 3, label=1)
    same = compute_distance(view, held, held, train, seed=0)
    assert same is not None and same.images == 60 and same.made < 1e-9
    near, far = (compute_distance(view, made, held, train, seed=0) for made in (pictures(60, 4, label=1), -train))
    assert near is not None and far is not None and far.made > 3 * near.made
    assert near.real == far.real, "the distance of real images does not hang on the synthetic ones"
