"""Fixed features: laws of every extractor, and of the scale that public pictures set."""

from __future__ import annotations

import math
import typing

import numpy as np
import pytest

from federation.features import AnyExtractor
from federation.features.colour import Colour
from federation.features.encoder import Encoder
from federation.features.radiomics import Radiomics
from federation.features.random_convolutions import RandomConvolutions
from federation.features.scattering import Scattering
from federation.features.slices import by_slice
from federation.features.whitening import fitted, fourier, whitened

KINDS = typing.get_args(typing.get_args(AnyExtractor)[0])
EXTRACTORS = [kind() for kind in KINDS if kind is not Encoder]  # of which test_encoder.py has the same laws
SHAPES = [(3, 32, 40), (1, 24, 24), (3, 24, 24), (1, 20, 24, 24)]
FIT = [
    pytest.param(one, shape, id=f"{one.name}-{'x'.join(map(str, shape))}")
    for one in EXTRACTORS
    for shape in SHAPES
    if not one.complaints(shape)
]


def images(shape: tuple[int, ...], n: int = 4, seed: int = 0) -> np.ndarray:
    """Smooth random images in [-1, 1]."""
    from scipy.ndimage import gaussian_filter

    x = np.random.default_rng(seed).standard_normal((n, *shape))
    smooth = gaussian_filter(x, (0, 0, *[2.0] * (len(shape) - 1)))
    return np.clip(smooth / np.abs(smooth).max(), -1, 1)


def test_every_extractor_takes_some_shape_and_says_why_it_takes_no_other():
    for one in EXTRACTORS:
        assert any(not one.complaints(shape) for shape in SHAPES)
        assert one.name in one.complaints((5,))[0] and "(5,)" in one.complaints((5,))[0]
        assert one.complaints((3, 4, 4))


def test_more_responses_than_fit_into_memory_are_refused():
    """A hospital is asked for features by settings that others wrote."""
    assert "take fewer filters" in RandomConvolutions(filters=4096).complaints((1, 400, 400))[0]
    assert RandomConvolutions(filters=4096).complaints((1, 200, 200)) == []


@pytest.mark.parametrize(("one", "shape"), FIT)
def test_a_row_depends_on_its_own_image_alone(one, shape):
    """Bit for bit, in any company: a patient's features must tell nothing of other patients."""
    x = images(shape, n=2 if len(shape) == 4 else 4)
    together, alone = one.extract(x), np.concatenate([one.extract(x[k : k + 1]) for k in range(len(x))])
    assert together.shape == alone.shape and together.dtype == np.float64
    assert np.array_equal(together, alone)
    assert not np.allclose(together[0], together[1])


@pytest.mark.parametrize("width", [2, 3, 4])
def test_company_changes_no_bit_for_narrow_filters_either(width):
    """For filters of up to 3 pixels, torch takes another convolution algorithm from 16 images on."""
    one = RandomConvolutions(filters=3, scales=2, width=width)
    x = images((3, 28, 28), n=17)
    assert np.array_equal(one.extract(x), np.concatenate([one.extract(x[k : k + 1]) for k in range(len(x))]))


@pytest.mark.parametrize("window", [(1.0, 1.0), (-math.inf, 0.0), (0.0, math.inf), (-1e308, 1e308), (math.nan, 1.0)])
def test_a_window_that_scales_nothing_is_refused(window):
    with pytest.raises(ValueError, match="two finite numbers, the lower first"):
        Radiomics(window=window)


@pytest.mark.parametrize(("one", "shape"), FIT)
@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 1e4, "step", "point"])
def test_features_are_finite_whatever_the_image(one, shape, value):
    x = np.zeros((1, *shape)) if isinstance(value, str) else np.full((1, *shape), value)
    if value == "step":
        x[..., : shape[-1] // 2] = 1.0
    if value == "point":
        x[(0, slice(None), *[side // 2 for side in shape[1:]])] = 1.0
    assert np.isfinite(one.extract(x)).all()


def test_colour_sees_a_dark_spot_where_it_is():
    """Area share and the colour inside against outside; a spot elsewhere or paler has others."""
    y, x = np.mgrid[:64, :64]
    spot = np.hypot(y - 32, x - 32) < 16
    skin = np.where(spot[None], -0.6, 0.6) * np.ones((3, 1, 1))
    lightness = 27  # nine means, nine spreads, nine skews, then inside minus outside, the first of lightness
    dark = Colour().extract(skin[None])[0]
    pale = Colour().extract(np.where(spot[None], 0.3, 0.6)[None] * np.ones((1, 3, 1, 1)))[0]
    assert dark[lightness] < pale[lightness] < 0


def test_radiomics_keep_the_unit():
    """A quantity halved is another value, not the same image with another window."""
    x = 1.0 + 0.3 * images((1, 24, 24))
    assert not np.allclose(Radiomics().extract(x), Radiomics().extract(x / 2))
    double = Radiomics(window=(0.0, 1.5)).extract(x / 2)
    assert np.allclose(Radiomics(window=(0.0, 3.0)).extract(x), double)


def test_scattering_knows_the_scale_of_stripes_and_not_their_direction():
    y, x = np.mgrid[:64, :64]
    fine, coarse = (np.sin(2 * np.pi * x / period)[None] for period in (2.7, 12.0))  # of scales 0 and 2
    turned = np.sin(2 * np.pi * y / 2.7)[None]
    found = Scattering(scales=3).extract(np.stack([fine, coarse, turned]))
    energies = found[:, 2:11:3]  # after two numbers of the second low pass: three of each scale
    assert energies.argmax(axis=1).tolist() == [0, 2, 0]
    assert np.allclose(found[0], found[2], atol=0.05)
    assert not np.allclose(found[0], found[1], atol=0.5)


def test_a_volume_of_equal_slices_has_the_slice_s_features_and_no_spread():
    plane = images((1, 24, 24), n=1)[0]
    volume = np.repeat(plane[:, None], 3, axis=1)
    one = Scattering().extract(plane[None])[0]
    mean, largest, spread = np.split(Scattering().extract(volume[None])[0], 3)
    assert np.allclose(mean, one) and np.array_equal(largest, one) and np.allclose(spread, 0)
    assert np.array_equal(by_slice(lambda x: x.ravel(), plane), plane.ravel())


@pytest.mark.parametrize("softness", [0.0, 1.0, 100.0])
def test_public_pictures_have_a_mean_square_of_one(softness):
    public = np.random.default_rng(0).standard_normal((200, 12)) @ np.diag(np.arange(1, 13)) + 5
    found = whitened(public, fitted(public, components=6, softness=softness))
    assert (found**2).mean() == pytest.approx(1.0)
    if softness == 0.0:  # all directions alike, and none of another
        assert np.allclose(found.T @ found / len(found), np.eye(6), atol=0.02)


def test_a_whitened_row_depends_on_its_own_features_alone():
    x = np.random.default_rng(0).standard_normal((200, 90))
    by = fitted(x, components=40, softness=1.0)
    assert all(np.array_equal(whitened(x[k : k + 1], by)[0], whitened(x, by)[k]) for k in range(20))


def test_a_feature_that_is_constant_in_public_pictures_says_nothing():
    public = np.random.default_rng(0).standard_normal((50, 4))
    public[:, 2] = 3.0
    by = fitted(public, components=3, softness=1.0)
    other = public.copy()
    other[:, 2] = 1e6
    assert np.array_equal(whitened(public, by), whitened(other, by))


def test_no_feature_of_a_patient_is_huge():
    public = np.random.default_rng(0).standard_normal((50, 4))
    by = fitted(public, components=4, softness=0.0)
    assert np.isfinite(whitened(np.full((1, 4), 1e300), by)).all()
    assert np.array_equal(whitened(np.full((1, 4), 1e300), by), whitened(np.full((1, 4), 1e3), by))


def test_more_components_than_there_are_features_are_refused():
    with pytest.raises(
        ValueError, match=r"components must be at most .* found 9 of 50 public pictures with 4 features"
    ):
        fitted(np.random.default_rng(0).standard_normal((50, 4)), components=9, softness=1.0)


def test_random_fourier_features_are_a_gaussian_kernel():
    """Their inner products approach exp(-|x - y|^2 / (2 s^2)), s = bandwidth x sqrt(k), by 1 / sqrt(width)."""
    x = np.random.default_rng(0).standard_normal((30, 5))
    found = fourier(x, 40_000, 1.5)
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    assert np.abs(found @ found.T / 40_000 - np.exp(-distances / (2 * 1.5**2 * 5))).max() < 0.03
    assert np.array_equal(fourier(x[3:4], 50, 1.5)[0], fourier(x, 50, 1.5)[3])
