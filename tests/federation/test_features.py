"""Fixed features: laws of every extractor, and of the scale that public pictures set."""

from __future__ import annotations

import math
import typing
from dataclasses import replace

import numpy as np
import pytest
import torch

from federation.features import AnyExtractor, detector, load_extractor
from federation.features.colour import Colour
from federation.features.detector import (
    Detecting,
    Detector,
    build_blank_detector,
    load_detector,
    train_detector_network,
)
from federation.features.encoder import Encoder
from federation.features.joined import Joined, JoinedExtractor
from federation.features.lite0 import Lite0, Lite0Extractor, Lite0Network
from federation.features.onnx_encoder import OnnxEncoder
from federation.features.radiomics import Radiomics
from federation.features.random_convolutions import RandomConvolutions
from federation.features.scattering import Scattering
from federation.features.slices import features_by_slice
from federation.features.whitening import fit_whitening, fourier_features, whiten_features
from federation.randomness import use_seed
from privacy.message import Message, from_bytes, to_bytes

KINDS = typing.get_args(typing.get_args(AnyExtractor)[0])
DETECTOR = Detector(on="prostate_adc", size=32, width=4)
TAUGHT = replace(DETECTOR, steps=120, batch=8, width=8, lr=1e-2, window=(-1.0, 1.0))


def untrained(channels: int) -> Detecting:
    with use_seed(0):
        return Detecting(DETECTOR, channels, DETECTOR.network(channels).eval())


JOINED = Joined(of=(Radiomics(), Scattering()))
with use_seed(0):
    UNTRAINED_LITE0 = Lite0Extractor(Lite0(size=32), Lite0Network().eval())
EXTRACTORS = [kind() for kind in KINDS if kind not in (Detector, Encoder, OnnxEncoder, Lite0, Joined)]
EXTRACTORS += [
    untrained(1),
    untrained(3),
    UNTRAINED_LITE0,
    load_extractor(JOINED),
]  # others: test_encoder.py, test_onnx_encoder.py
SHAPES = [(3, 32, 40), (1, 24, 24), (3, 24, 24), (1, 4, 24, 24)]


def complaints(one, shape: tuple[int, ...]) -> list[str]:
    """Of a detector: its settings', and whether its network takes the channels."""
    if not isinstance(one, Detecting):
        settings = JOINED if isinstance(one, JoinedExtractor) else getattr(one, "settings", one)
        return settings.complaints(shape)
    return one.settings.complaints(shape) or ["channels"] * (shape[0] != one.channels and len(shape) + one.channels > 4)


FIT = [
    pytest.param(one, shape, id=f"{one.name}-{'x'.join(map(str, shape))}")
    for one in EXTRACTORS
    for shape in SHAPES
    if not complaints(one, shape)
]


def images(shape: tuple[int, ...], n: int = 4, seed: int = 0) -> np.ndarray:
    """Smooth random images in [-1, 1]."""
    from scipy.ndimage import gaussian_filter

    x = np.random.default_rng(seed).standard_normal((n, *shape))
    smooth = gaussian_filter(x, (0, 0, *[2.0] * (len(shape) - 1)))
    return np.clip(smooth / np.abs(smooth).max(), -1, 1)


def test_every_extractor_takes_some_shape_and_says_why_it_takes_no_other():
    for one in [JOINED, *(getattr(one, "settings", one) for one in EXTRACTORS if not isinstance(one, JoinedExtractor))]:
        assert any(not one.complaints(shape) for shape in SHAPES)
        assert "(5,)" in one.complaints((5,))[0]
        assert all(part.name in one.complaints((5,))[place] for place, part in enumerate(getattr(one, "of", [one])))
        assert one.complaints((3, 4, 4))


def test_more_responses_than_fit_into_memory_are_refused():
    """A hospital is asked for features by settings that others wrote."""
    assert "take fewer filters" in RandomConvolutions(filters=4096).complaints((1, 400, 400))[0]
    assert RandomConvolutions(filters=4096).complaints((1, 200, 200)) == []


@pytest.mark.repeats(10)
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


@pytest.mark.repeats(10)
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
    assert np.array_equal(features_by_slice(lambda x: x.ravel(), plane), plane.ravel())


@pytest.mark.parametrize("softness", [0.0, 1.0, 100.0])
def test_public_pictures_have_a_mean_square_of_one(softness):
    public = np.random.default_rng(0).standard_normal((200, 12)) @ np.diag(np.arange(1, 13)) + 5
    found = whiten_features(public, fit_whitening(public, components=6, softness=softness))
    assert (found**2).mean() == pytest.approx(1.0)
    if softness == 0.0:  # all directions alike, and none of another
        assert np.allclose(found.T @ found / len(found), np.eye(6), atol=0.02)


def test_a_whitened_row_depends_on_its_own_features_alone():
    x = np.random.default_rng(0).standard_normal((200, 90))
    by = fit_whitening(x, components=40, softness=1.0)
    assert all(np.array_equal(whiten_features(x[k : k + 1], by)[0], whiten_features(x, by)[k]) for k in range(20))


def test_a_feature_that_is_constant_in_public_pictures_says_nothing():
    public = np.random.default_rng(0).standard_normal((50, 4))
    public[:, 2] = 3.0
    by = fit_whitening(public, components=3, softness=1.0)
    other = public.copy()
    other[:, 2] = 1e6
    assert np.array_equal(whiten_features(public, by), whiten_features(other, by))


def test_no_feature_of_a_patient_is_huge():
    public = np.random.default_rng(0).standard_normal((50, 4))
    by = fit_whitening(public, components=4, softness=0.0)
    assert np.isfinite(whiten_features(np.full((1, 4), 1e300), by)).all()
    assert np.array_equal(whiten_features(np.full((1, 4), 1e300), by), whiten_features(np.full((1, 4), 1e3), by))


def test_more_components_than_there_are_features_are_refused():
    with pytest.raises(
        ValueError, match=r"components must be at most .* found 9 of 50 public pictures with 4 features"
    ):
        fit_whitening(np.random.default_rng(0).standard_normal((50, 4)), components=9, softness=1.0)


def test_random_fourier_features_are_a_gaussian_kernel():
    """Their inner products approach exp(-|x - y|^2 / (2 s^2)), s = bandwidth x sqrt(k), by 1 / sqrt(width)."""
    x = np.random.default_rng(0).standard_normal((30, 5))
    found = fourier_features(x, 40_000, 1.5)
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    assert np.abs(found @ found.T / 40_000 - np.exp(-distances / (2 * 1.5**2 * 5))).max() < 0.03
    assert np.array_equal(fourier_features(x[3:4], 50, 1.5)[0], fourier_features(x, 50, 1.5)[3])


def spots(n: int, side: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures (n, 1, side, side) of a bright disc, of which every second has a dark spot; and where both are."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    pictures, marks = [], []
    for k in range(n):
        cy, cx = random.uniform(12, 20, 2)
        disc = np.hypot(y - cy, x - cx) < 10
        spot = np.hypot(y - cy - random.uniform(-5, 5), x - cx - random.uniform(-5, 5)) < 3 + random.uniform()
        spot &= k % 2 == 1
        pictures.append(np.where(spot, -0.4, np.where(disc, 0.4, -0.8)) + 0.05 * random.standard_normal((side, side)))
        marks.append([spot, disc])
    return torch.tensor(np.array(pictures))[:, None].float(), torch.tensor(np.array(marks)).float()


@pytest.fixture(scope="module")
def taught() -> bytes:
    x, marks = spots(64)
    return train_detector_network(TAUGHT, x, marks, lambda done, total: None)


def test_a_detector_marks_what_it_learnt_and_its_features_tell_who_has_it(taught):
    one = load_detector(TAUGHT, taught)
    x, marks = spots(40)
    sure = np.stack([one.marked(image)[1][:, 0] for image in x.numpy().astype(float)])
    for k, least in ((0, 0.5), (1, 0.9)):
        both = ((sure[:, k] > 0.5) & (marks[:, k].numpy() > 0.5)).sum()
        assert 2 * both / ((sure[:, k] > 0.5).sum() + marks[:, k].numpy().sum()) > least
    largest = one.extract(x.numpy().astype(float))[:, 0]
    assert largest[1::2].min() > largest[0::2].max()


def test_a_detector_learns_the_same_from_the_same_pictures():
    (x, marks), few = spots(16), replace(TAUGHT, steps=6)
    once = train_detector_network(few, x, marks, lambda done, total: None)
    torch.manual_seed(5)  # the caller's random numbers are not used, nor changed
    before = torch.random.get_rng_state()
    again = train_detector_network(few, x, marks, lambda done, total: None)
    assert again == once and torch.equal(torch.random.get_rng_state(), before)


def test_weights_that_are_no_such_detector_s_are_refused(taught):
    message = from_bytes(taught)
    with pytest.raises(ValueError, match="a detector of width 12 has other tensors"):
        load_detector(Detector(on="prostate_adc"), taught)
    for broken in (
        Message(message.tensors, {}),
        Message({**message.tensors, "x": torch.zeros(1)}, message.facts),
        Message({name: part.double() for name, part in message.tensors.items()}, message.facts),
        Message({name: part * math.nan for name, part in message.tensors.items()}, message.facts),
    ):
        with pytest.raises(ValueError, match="detector"):
            load_detector(TAUGHT, to_bytes(broken))


def test_quantiles_under_a_mark_are_those_of_repeated_values():
    """A second way: each value as often as its weight says."""
    random = np.random.default_rng(0)
    values, often = random.permutation(40).reshape(1, 5, 8) / 40, random.integers(1, 9, (1, 5, 8))
    repeated = np.repeat(values.ravel(), often.ravel())
    expected = [repeated.mean(), *np.quantile(repeated, detector.QUANTILES, method="inverted_cdf")]
    assert np.allclose(detector._quantile_features(values, often - detector.LEAST), expected)


def test_a_detector_without_a_network_has_as_many_features() -> None:
    """Settings are checked with it, before there is a network."""
    for shape in ((1, 24, 24), (3, 32, 40), (3, 20, 24, 24)):
        image = np.zeros((1, *shape))
        assert build_blank_detector(DETECTOR, shape[0]).extract(image).shape == untrained(shape[0]).extract(image).shape
