"""Known failures of translators on simulated patients, each with the veto that has to catch it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from harmonize.quality import Quality, measure_quality
from harmonize.veto import HARMLESS, WORDS, Limits, describe_vetoes, list_checks, list_unknown_figures, list_vetoes
from pipelines.phantom.patients import draw_anatomy
from pipelines.phantom.scanner import SCANNERS, acquire

PATIENTS, SLICES = 16, 6
SOURCE, TARGET = SCANNERS["L"], replace(SCANNERS["P"], zoom=SCANNERS["L"].zoom)
NO_LIMITS = Limits(**dict.fromkeys(vars(Limits())))


class Site(NamedTuple):
    images: np.ndarray  # (n, 48, 48) in [0, 1], the share of 3500e-6 mm2/s
    lesion: np.ndarray
    gland: np.ndarray


@cache
def site(target: bool, first: int) -> Site:
    found = [
        acquire(draw_anatomy(0, patient, SLICES), TARGET if target else SOURCE, np.random.default_rng(patient))
        for patient in range(first, first + PATIENTS)
    ]
    adc, lesion, gland = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("image", "lesion", "gland")
    )
    return Site((adc / 3500).clip(0, 1), lesion, gland)


def own() -> Site:
    return site(False, 0)


def oracle() -> np.ndarray:
    return site(True, 0).images


def patients() -> np.ndarray:
    return np.repeat(np.arange(PATIENTS), SLICES)


def labels() -> np.ndarray:
    return own().lesion.any(axis=(1, 2)).astype(np.int64)


def monotone() -> np.ndarray:
    """The tone map that gives all images together the histogram of the shared ones."""
    levels = np.linspace(0, 1, 65)
    from_, to = np.quantile(own().images, levels), np.quantile(site(True, 100).images, levels)
    return np.interp(own().images, from_ + 1e-9 * np.arange(65), to)


def stuck() -> np.ndarray:
    return own().images + 5e-4


def levels_erased(per: np.ndarray) -> np.ndarray:
    """Instance norm: mean and deviation of each image, or patient, are those of the shared images."""
    result, shared = own().images.copy(), site(True, 100).images
    for one in np.unique(per):
        x = result[per == one]
        result[per == one] = (x - x.mean()) / x.std() * shared.std() + shared.mean()
    return result


def contrast_destroyed() -> np.ndarray:
    """A tone map under which everything darker than the usual gland looks like it."""
    x = monotone()
    return np.maximum(x, 0.9 * np.median(x[own().gland > 0]))


def hallucinated(share: float, of: np.ndarray) -> np.ndarray:
    """Dark spots as lesions have them, in a share of the images of label 0."""
    generator, x = np.random.default_rng(1), of.copy()
    rows, columns = np.mgrid[:48, :48]
    inner = np.stack([ndimage.binary_erosion(mask, iterations=3) for mask in own().gland])
    free = np.flatnonzero((labels() == 0) & inner.any(axis=(1, 2)))
    for i in generator.permutation(free)[: round(share * len(free))]:
        y0, x0 = generator.choice(np.argwhere(inner[i]))
        x[i] *= 1 - 0.4 / (1 + np.exp(2 * (np.hypot(rows - y0, columns - x0) - generator.uniform(2.5, 4))))
    return x


def erased() -> np.ndarray:
    """Lesions painted over with what the gland looks like."""
    x = oracle().copy()
    for i in np.flatnonzero(labels()):
        weight = (1.5 * ndimage.gaussian_filter(own().lesion[i].astype(float), 1)).clip(0, 1)
        healthy = np.median(x[i][(own().gland[i] > 0) & (own().lesion[i] == 0)])
        x[i] = x[i] * (1 - weight) + healthy * weight
    return x


def shuffled() -> np.ndarray:
    return np.roll(oracle(), SLICES * (PATIENTS // 3), axis=0)


def blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    return ndimage.gaussian_filter(x, (0, sigma, sigma))


TRANSLATIONS = {
    "oracle": oracle,
    "monotone": monotone,
    "stuck at the identity": stuck,
    "instance norm of images": lambda: levels_erased(np.arange(len(own().images))),
    "instance norm of patients": lambda: levels_erased(patients()),
    "tone map without contrast": contrast_destroyed,
    "invented lesions": lambda: hallucinated(0.3, oracle()),
    "invented lesions after a tone map": lambda: hallucinated(0.3, monotone()),
    "erased lesions": erased,
    "another patient": shuffled,
    "blurred": lambda: blurred(monotone(), 2),
}


def tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(2 * x.clip(0, 1) - 1).float()[:, None]


@cache
def judged(name: str, masks: bool = True) -> Quality:
    gland = torch.from_numpy(own().gland)
    return measure_quality(
        tensor(own().images),
        tensor(TRANSLATIONS[name]()),
        torch.from_numpy(labels()),
        torch.from_numpy(patients()),
        torch.from_numpy(own().lesion),
        gland if masks else gland[:, :0, 0],
        tensor(site(True, 100).images),
        seed=0,
    )


@pytest.mark.parametrize("name", ["oracle", "monotone"])
@pytest.mark.parametrize("masks", [True, False])
def test_a_good_translation_is_not_vetoed(name, masks):
    quality = judged(name, masks)
    assert list_vetoes(quality, Limits()) == ()
    assert list_unknown_figures(quality, Limits()) == (("cycle",) if masks else ("cycle", "class_drift"))


def test_a_generator_that_is_stuck_at_the_identity_has_no_effect_and_does_no_harm():
    assert set(list_vetoes(judged("stuck at the identity"), Limits())) == {"no_effect"} == HARMLESS


@pytest.mark.parametrize(
    ("failure", "veto"),
    [
        ("instance norm of images", "gland_order"),
        ("instance norm of patients", "gland_order"),
        ("tone map without contrast", "contrast"),
        ("tone map without contrast", "cnr"),
        ("invented lesions", "prevalence"),
        ("invented lesions after a tone map", "prevalence"),
        ("invented lesions after a tone map", "class_drift"),
        ("erased lesions", "contrast"),
        ("erased lesions", "class_drift"),
        ("another patient", "edges"),
        ("another patient", "gland_order"),
        ("another patient", "lesion_order"),
        ("blurred", "edges"),
        ("blurred", "contrast"),
    ],
)
def test_a_known_failure_is_caught_by_the_veto_that_names_it(failure, veto):
    quality = judged(failure)
    assert veto in list_vetoes(quality, Limits())
    assert veto not in list_vetoes(judged("oracle"), Limits())


@pytest.mark.parametrize("failure", ["invented lesions", "another patient"])
def test_without_gland_masks_gross_failures_are_caught_as_well(failure):
    assert "prevalence" in list_vetoes(judged(failure, masks=False), Limits())


def test_distance_alone_would_take_a_picture_of_somebody_else_for_a_perfect_translation():
    right, wrong = judged("oracle"), judged("another patient")
    assert wrong.sw_after == pytest.approx(right.sw_after)
    assert "no_effect" not in list_vetoes(wrong, Limits())


def test_a_way_back_that_does_not_lead_back_is_vetoed():
    assert list_vetoes(replace(judged("oracle"), cycle_mae=0.2), Limits()) == ("cycle",)


WORSE = {
    "sw_after": 1,
    "cycle_mae": 1,
    "gradient_correlation": -1,
    "cnr_after": -1,
    "lesion_correlation": -1,
    "gland_correlation": -1,
    "drift": -1,
    "hallucinated": 1,
}
figures = st.floats(-2, 2) | st.just(math.nan)
qualities = st.builds(
    Quality,
    **dict.fromkeys(("contrast_ratio", *WORSE), figures),
    sw_before=st.floats(0, 2),
    cnr_before=st.floats(0.01, 2),
    masked=st.sampled_from([0.0, 1.0]),
)
anything = st.builds(Limits, **{name: st.none() | st.floats(0, 1) for name in vars(Limits()) if "contrast" not in name})


@given(quality=qualities, limits=anything, name=st.sampled_from(sorted(WORSE)), by=st.floats(0, 3))
def test_a_worse_figure_never_removes_a_veto(quality, limits, name, by):
    worse = replace(quality, **{name: getattr(quality, name) + WORSE[name] * by})
    assert set(list_vetoes(quality, limits)) <= set(list_vetoes(worse, limits))


@given(quality=qualities, limits=anything, by=st.floats(1, 3))
def test_a_contrast_farther_from_1_on_its_side_never_removes_a_veto(quality, limits, by):
    farther = replace(quality, contrast_ratio=1 + (quality.contrast_ratio - 1) * by)
    assert set(list_vetoes(quality, limits)) <= set(list_vetoes(farther, limits))


@given(quality=qualities, limits=anything, name=st.sampled_from(["contrast_ratio", *sorted(WORSE)]))
def test_a_figure_that_is_not_known_vetoes_nothing_and_is_told(quality, limits, name):
    assume(not math.isnan(getattr(quality, name)))
    without = replace(quality, **{name: math.nan})
    gone = {c.name for c in list_checks(quality, limits)} - {c.name for c in list_checks(without, limits) if c.is_known}
    assert not gone & set(list_vetoes(without, limits))
    asked = {check.name for check in list_checks(without, limits) if check.has_limit}
    assert gone & asked <= set(list_unknown_figures(without, limits))
    assert set(list_unknown_figures(without, limits)).isdisjoint(list_vetoes(without, limits))


@given(quality=qualities)
def test_without_limits_nothing_is_vetoed_and_nothing_is_unknown(quality):
    assert list_vetoes(quality, NO_LIMITS) == list_unknown_figures(quality, NO_LIMITS) == ()


@given(quality=qualities, limits=anything)
def test_every_veto_has_a_sentence_with_the_value_and_what_is_allowed(quality, limits):
    names, told = list_vetoes(quality, limits), describe_vetoes(quality, limits)
    by_name = {check.name: check for check in list_checks(quality, limits)}
    assert len(names) == len(told)
    for name, sentence in zip(names, told, strict=True):
        assert f"{by_name[name].value:.3g}" in sentence and "allowed is" in sentence
        assert sentence.startswith(WORDS[name].split("{", 1)[0])


def test_every_check_has_words_and_all_words_have_a_check():
    assert tuple(check.name for check in list_checks(judged("oracle"), Limits())) == tuple(WORDS)


def test_a_figure_on_its_limit_is_allowed():
    on = Quality(sw_before=1, sw_after=0.5, contrast_ratio=0.8, drift=-0.05, hallucinated=0.1, masked=1)
    assert list_vetoes(on, Limits(gain=0.5)) == ()
    assert list_vetoes(
        replace(on, contrast_ratio=0.79, drift=-0.06, hallucinated=0.11, sw_after=0.51), Limits(gain=0.5)
    ) == (
        "no_effect",
        "contrast",
        "class_drift",
        "prevalence",
    )


def test_images_that_are_the_shared_ones_already_gain_nothing():
    assert list_vetoes(Quality(sw_before=0, sw_after=0), Limits()) == ("no_effect",)


def test_all_problems_of_limits_are_told_at_once():
    with pytest.raises(ValueError, match=r"edges must be finite.*drift must be >= 0.*contrast_low must be less"):
        Limits(edges=math.nan, drift=-0.1, contrast_low=2.0)
