"""Whole volumes as examples: the same tissue at the same place as in slices."""

from __future__ import annotations

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.transforms import Compose, CropForeground, NormalizeIntensity

from federation.augmentation import apply_affine, apply_elastic, flip_images
from federation.models.cnn import Cnn
from pipelines.data.cohort import read_cohort
from pipelines.data.images import IMAGES, AnyImages, Features, Hounsfield, Pictures, Slices, Volumes, describe_images
from pipelines.data.prepare import prepare_slices, prepare_volume
from pipelines.data.sources import NiftiSource
from pipelines.data.studies import standardize_values
from pipelines.data.study import Unusable, Volume
from pipelines.loader.first_fields import FIRST
from privacy.settings_error import SettingsError

AFFINE = np.array([[-1.5, 0, 0, 30], [0, -1.5, 0, 25], [0, 0, 3.0, -10], [0, 0, 0, 1]])


@pytest.fixture
def volume() -> Volume:
    return Volume(np.random.default_rng(0).uniform(1, 2, (30, 28, 9)).astype(np.float32), AFFINE)


def boxed(*bounds: tuple[int, int]) -> Volume:
    mask = np.zeros((30, 28, 9), np.uint8)
    mask[tuple(slice(*bound) for bound in bounds)] = 1
    return Volume(mask, AFFINE)


def test_on_the_acquired_slices_a_volume_is_its_slices(volume):
    slices = prepare_slices(volume, lesion=None, gland=None, images=Slices(size=16))
    whole = prepare_volume(volume, lesion=None, gland=None, images=Volumes(size=16, depth=9, depth_mm=3.0))
    assert whole.images.shape == (1, 1, 9, 16, 16)
    assert np.allclose(whole.images[0, 0], slices.images[:, 0], atol=1e-5)


def test_a_volume_is_centred_on_the_gland_in_all_directions(volume):
    gland = boxed((4, 9), (18, 23), (6, 9))
    found = prepare_volume(volume, lesion=gland, gland=gland, images=Volumes(size=15, depth=5, depth_mm=3.0))
    depth, rows, columns = (axis.mean() for axis in np.nonzero(found.gland[0]))
    assert (depth, rows, columns) == pytest.approx((2, 7, 7))
    assert np.array_equal(found.lesion, found.gland)
    assert found.images[0, 0, -1].max() == 0  # beyond the last slice


def test_standardized_values_have_no_unit_and_background_stays_zero():
    values = np.random.default_rng(0).normal(500, 20, (6, 6, 6)).astype(np.float32)
    values[0] = 0
    one, two = standardize_values(values), standardize_values(values * np.float32(3))
    assert np.allclose(one, two, atol=1e-4)
    assert (one[0] == 0).all()
    assert (one[1:].mean(), one[1:].std()) == pytest.approx((0, 1), abs=1e-4)
    with pytest.raises(Unusable, match="no_signal"):
        standardize_values(np.zeros((3, 3, 3), np.float32))


@given(st.tuples(*3 * [st.integers(0, 2)]), st.tuples(*3 * [st.integers(0, 2)]), st.integers(0, 99), st.booleans())
def test_both_ways_to_standardize_are_those_of_monai(before, after, seed, nonzero):
    """Over nonzero voxels, or, as nnU-Net's ZScoreNormalization behind its crop, over all in their bounding box."""
    chance = np.random.default_rng(seed)
    values = (chance.integers(0, 2, (4, 5, 6)) * chance.normal(300, 90, (4, 5, 6))).astype(np.float32)
    values[0, 0, 0] = values[-1, -1, -1] = 100.0
    whole = np.pad(values, [*zip(before, after, strict=True)])
    crop = CropForeground(select_fn=lambda image: image != 0)
    expected = np.asarray(Compose([crop, NormalizeIntensity(nonzero=nonzero)])(whole[None]))[0]
    ours = standardize_values(whole, nonzero=nonzero)
    box = tuple(slice(first, first + side) for first, side in zip(before, values.shape, strict=True))
    assert np.allclose(ours[box], expected, atol=1e-4)
    ours[box] = 0
    assert not ours.any(), "outside of the box it is 0, as what nnU-Net pads with"


def test_air_inside_the_box_is_dark_where_all_voxels_count():
    values = np.random.default_rng(0).normal(500, 20, (6, 6, 6)).astype(np.float32)
    values[2:4, 2:4, 2:4] = 0
    for nonzero in (True, False):
        ours = standardize_values(values, nonzero=nonzero)
        assert bool((ours[values == 0] < ours[values != 0].min()).all()) != nonzero


@pytest.mark.parametrize("kind", [Slices, Volumes])
def test_values_in_a_unit_are_standardized_in_no_way(kind):
    ct = Hounsfield(low=0, high=1, mean=0, sd=1)
    for settings in ({"values": "adc"}, {"values": "standardized", "ct": ct}):
        with pytest.raises(SettingsError, match="nonzero"):
            kind(nonzero=False, **settings)
    assert not kind(nonzero=False, values="standardized").nonzero


CT = Hounsfield(low=0, high=1, mean=0, sd=1)


@pytest.mark.parametrize(
    ("images", "later"),
    [
        (Slices(), []),
        (Volumes(values="standardized"), []),
        (Pictures(), []),
        (Features(numbers=("age",), normalize="declared", ranges={"age": (0.0, 120.0)}), []),
        (Volumes(values="standardized", ct=CT), ["ct"]),
        (Slices(values="standardized", nonzero=False), ["nonzero"]),
    ],
)
def test_fields_that_came_later_are_said_only_where_they_are_used(images: AnyImages, later: list[str]):
    """Else the same files would give another cohort than before, and a signed model other settings than were signed."""
    told, first = describe_images(images), FIRST[type(images).__name__].split()
    assert sorted({*told} - {*first}) == later
    known = IMAGES.dump_python(images, mode="json", exclude_none=True)
    assert told == {name: each for name, each in known.items() if name in (*first, *later)}
    assert IMAGES.validate_python(told) == images


def test_a_cohort_says_of_its_images_what_it_said_before_fields_were_added(tmp_path):
    for patient in ("P1", "P2", "P3"):
        values = np.random.default_rng(int(patient[1])).normal(500, 20, (12, 12, 4)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(values, AFFINE), tmp_path / f"{patient}.nii.gz")
    for nonzero in (True, False):
        images = Volumes(values="standardized", centre="image", size=8, depth=4, nonzero=nonzero)
        shares = {"train": 1.0, "validation": 0.0, "test": 0.0}
        source = NiftiSource(folder=str(tmp_path))
        recipe = read_cohort(source, None, images, fractions=shares, seed=0, key=b"k" * 32).cohort.recipe
        old = {"kind": "volumes", "values": "standardized", "spacing_mm": 1.5, "size": 8, "centre": "image"}
        new = {} if nonzero else {"nonzero": False}
        assert recipe["images"] == {**old, "depth_mm": 3.0, "depth": 4, **new}


def test_a_network_takes_volumes_and_every_slice_is_moved_alike():
    x = torch.rand(3, 1, 8, 16, 16)
    network = Cnn(widths=(8, 16)).build(inputs=(1, 8, 16, 16), classes=2)
    assert network(x).logits.shape == (3, 2)
    same = torch.rand(3, 1, 1, 16, 16).expand(3, 1, 8, 16, 16)
    for augment in (flip_images, apply_affine, apply_elastic):
        moved, _ = augment(same, torch.zeros(3).long(), torch.Generator().manual_seed(0))
        assert torch.equal(moved, moved[:, :, :1].expand_as(moved))
        assert not torch.equal(moved, same)
