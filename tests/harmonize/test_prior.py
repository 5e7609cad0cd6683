"""Public procedural pictures."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harmonize.drawing import draw_normal, ellipse_opacity, paint_planes, pixel_grid, smooth_field, smooth_images
from harmonize.prior import PRIORS, draw_pictures
from harmonize.prior_prostate import FIELD_OF_VIEW_MM, LARGEST_ADC
from harmonize.prior_prostate_t2w import standardize_pictures

NAMES = sorted(PRIORS)


def _rows(prior, n, seed=0):
    random = torch.Generator().manual_seed(seed)
    theta = torch.rand(n, prior.latent, generator=random)
    return theta, torch.arange(n) % 2, torch.randint(2**62, (n,), generator=random)


def _inputs(prior, height=24, width=24):
    return (prior.channels, height, width)


def _with(prior, theta, **values):
    """Theta with some columns set to numbers in their own units."""
    theta = theta.clone()
    for i, (name, (low, high)) in enumerate(prior.ranges.items()):
        if name in values:
            theta[:, i] = (values[name] - low) / (high - low)
    return theta


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_the_rows_beside_it(name):
    prior = PRIORS[name]
    theta, y, seeds = _rows(prior, 70)  # more than a chunk
    inputs = _inputs(prior)
    whole = prior.render(theta, y, seeds, inputs)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    assert torch.equal(prior.render(theta[order], y[order], seeds[order], inputs), whole[order])
    one = prior.render(theta[5:6], y[5:6], seeds[5:6], inputs)
    assert torch.allclose(one, whole[5:6], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_marks_say_what_a_class_changed_and_lie_in_the_organ(name):
    """The same numbers and noise drawn as class 1 and as class 0 differ where the finding is marked."""
    prior = PRIORS[name]
    theta, _, seeds = _rows(prior, 40)
    inputs, one, none = _inputs(prior), torch.ones(40, dtype=torch.long), torch.zeros(40, dtype=torch.long)
    images, marks = prior.marked(theta, one, seeds, inputs)
    others, unmarked = prior.marked(theta, none, seeds, inputs)
    assert torch.equal(images, prior.render(theta, one, seeds, inputs))
    assert marks.shape == (40, 2, *inputs[1:]) and bool(((marks >= 0) & (marks <= 1)).all())
    finding, organ = marks.unbind(1)
    assert bool((finding <= organ).all()) and not unmarked[:, 0].any()
    changed = (images - others).abs().mean(dim=1)
    inside = finding > 0.5
    assert inside.any() and changed[inside].mean() > 5 * changed[organ < 0.01].mean()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(
    corner=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=64, max_size=64),
    y=st.integers(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
    height=st.integers(8, 40),
    width=st.integers(8, 40),
)
def test_every_theta_gives_a_picture_in_range(name, corner, y, seed, height, width):
    prior = PRIORS[name]
    theta = torch.tensor([corner[: prior.latent]])
    x = prior.render(theta, torch.tensor([y]), torch.tensor([seed]), (prior.channels, height, width))
    assert x.shape == (1, prior.channels, height, width) and x.dtype == torch.float32
    assert bool(x.isfinite().all()) and float(x.min()) >= -1 and float(x.max()) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_theta_and_the_seed_show(name):
    prior = PRIORS[name]
    theta, y, seeds = _rows(prior, 24, seed=3)
    before = prior.render(theta, y, seeds, _inputs(prior))
    for i, column in enumerate(prior.ranges):
        moved = theta.clone()
        moved[:, i] = (moved[:, i] + 0.5) % 1.0
        assert not torch.equal(prior.render(moved, y, seeds, _inputs(prior)), before), column
    assert not torch.equal(prior.render(theta, y, seeds + 1, _inputs(prior)), before)


@pytest.mark.parametrize("name", NAMES)
def test_drawn_is_pure_and_the_seed_decides(name):
    prior, y = PRIORS[name], torch.tensor([0, 1, 1])
    once, again, other = (draw_pictures(prior, y, _inputs(prior), seed) for seed in (4, 4, 5))
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert len(draw_pictures(prior, y[:0], _inputs(prior), 0)) == 0


def test_cancer_is_a_darker_spot_inside_the_gland():
    prior = PRIORS["prostate_adc"]
    theta, _, seeds = _rows(prior, 200)
    theta = _with(prior, theta, zoom=1.0, gland_x=0.0, gland_y=-4.0, gland_a=22.0, gland_b=16.0)
    ones = torch.ones(200, dtype=torch.long)
    lesion, none = (prior.render(theta, y, seeds, (1, 48, 48)) for y in (ones, 0 * ones))
    x, v = (part * FIELD_OF_VIEW_MM / 2 for part in pixel_grid(48, 48))
    gland = ((x / 22) ** 2 + ((v + 4) / 16) ** 2 < 0.8)[0]
    outside = ((x / 32) ** 2 + ((v + 4) / 26) ** 2 > 1)[0]
    change = (none - lesion)[:, 0]
    dark = change[:, gland].amax(dim=1) * LARGEST_ADC / 2  # 1e-3 mm2/s
    assert float(dark.mean()) > 0.3
    assert float(change[:, gland].mean()) > 20 * float(change[:, outside].abs().mean())
    assert float((change[:, gland].mean(dim=1) > 0).float().mean()) > 0.9


def test_tissues_have_the_diffusion_that_theta_asks_for():
    prior = PRIORS["prostate_adc"]
    theta, _, seeds = _rows(prior, 40)
    wanted = torch.linspace(1.3, 2.0, 40)
    plain = {"gain": 1.0, "shade": 0.0, "vignette": 0.0, "tone": 1.0, "window": 4.0, "masked": -0.1, "noise": 0.0}
    flat = {"texture": 0.0, "smoothing_mm": 0.2, "zoom": 1.0, "stroma_size": 0.05, "bend": 0.2, "benign": -1.0}
    where = {"gland_x": 0.0, "gland_y": 0.0, "gland_a": 28.0, "gland_b": 20.0, "nodules": 0.0, "lobes": 0.0}
    small = {"transition_size": 0.35, "transition_y": 0.1}
    theta = _with(prior, theta, peripheral=wanted, **plain, **flat, **where, **small)
    adc = (prior.render(theta, torch.zeros(40, dtype=torch.long), seeds, (1, 48, 48)) + 1) * LARGEST_ADC / 2
    assert torch.allclose(adc[:, 0, 24, 24 + 13], wanted, atol=1e-3)  # 20 mm beside the middle


def test_cancer_is_darker_on_t2_weighted_pictures_too():
    """By less than on ADC maps, as in patients, but in nearly all."""
    prior = PRIORS["prostate_t2w"]
    theta, _, seeds = _rows(prior, 200)
    ones = torch.ones(200, dtype=torch.long)
    lesion, marks = prior.marked(theta, ones, seeds, (1, 48, 48))
    change = (prior.render(theta, 0 * ones, seeds, (1, 48, 48)) - lesion)[:, 0]
    inside = [
        float(one[where > 0.8].mean()) for one, where in zip(change, marks[:, 0], strict=True) if (where > 0.8).any()
    ]
    assert len(inside) > 150 and sum(value > 0 for value in inside) > 0.85 * len(inside)
    assert 4 * sum(inside) / len(inside) > 0.2  # standard deviations


def test_t2_weighted_pictures_are_standardized_so_that_no_gain_shows():
    prior = PRIORS["prostate_t2w"]
    theta, y, seeds = _rows(prior, 60)
    x = 4 * prior.render(theta, y, seeds, (1, 48, 48))
    whole = x.abs().amax(dim=(1, 2, 3)) < 4  # nothing was cut
    assert bool(whole.any())
    assert torch.allclose(x[whole].mean(dim=(1, 2, 3)), torch.zeros(int(whole.sum())), atol=1e-4)
    assert torch.allclose(x[whole].std(dim=(1, 2, 3), correction=0), torch.ones(int(whole.sum())), atol=1e-3)
    signal = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(standardize_pictures(7 * signal), standardize_pictures(signal), atol=1e-5)


def test_malignant_skin_lesions_are_darker_and_have_more_colours():
    prior = PRIORS["skin_lesion"]
    theta, _, seeds = _rows(prior, 200)
    theta = _with(prior, theta, lesion_x=0.0, lesion_y=0.0, lesion_size=0.7, hairs=-4.0, corners=2.6)
    ones = torch.ones(200, dtype=torch.long)
    bad, good = (prior.render(theta, y, seeds, (3, 32, 32))[:, :, 12:20, 12:20] for y in (ones, 0 * ones))
    assert float((good - bad).mean()) > 0.05
    assert float((bad.std(dim=(2, 3)) - good.std(dim=(2, 3))).mean()) > 0.01


def test_a_picture_is_the_same_at_any_size():
    prior = PRIORS["prostate_adc"]
    theta, y, seeds = _rows(prior, 8)
    theta = _with(prior, theta, noise=0.0, masked=-0.3, smoothing_mm=2.0)
    small, large = (prior.render(theta, y, seeds, (1, side, side)) for side in (32, 64))
    pooled = torch.nn.functional.avg_pool2d(large, 2)
    assert float((pooled - small).abs().mean()) < 0.03


def test_what_does_not_fit_is_told_at_once():
    prior = PRIORS["prostate_adc"]
    with pytest.raises(ValueError, match=r"theta has shape .*2, 1 and 2 rows.*y holds \[3\].*inputs are \(3, 48, 48\)"):
        prior.render(torch.zeros(2, 5), torch.tensor([3]), torch.zeros(2, dtype=torch.long), (3, 48, 48))
    with pytest.raises(ValueError, match=r"leaves \[0, 1\]"):
        prior.render(
            torch.full((1, prior.latent), 1.1), torch.zeros(1), torch.zeros(1, dtype=torch.long), _inputs(prior)
        )


def test_fresh_numbers_are_standard_normal_and_their_rows_independent():
    one, two = draw_normal(torch.arange(400), (5, 3), (40,))
    assert one.shape == (400, 5, 3) and two.shape == (400, 40)
    assert abs(float(two.mean())) < 0.03 and abs(float(two.std()) - 1) < 0.03
    assert torch.equal(draw_normal(torch.tensor([7]), (5, 3), (40,))[1][0], two[7])
    assert abs(float(torch.corrcoef(two[:2])[0, 1])) < 0.5


@settings(max_examples=20)
@given(st.floats(0.02, 0.4), st.floats(0.02, 0.4), st.integers(0, 100))
def test_smoothing_equals_a_sum_over_pixels_and_keeps_constants(sigma_x, sigma_y, seed):
    x = torch.rand(1, 2, 9, 12, generator=torch.Generator().manual_seed(seed))
    asked = smooth_images(x, torch.full((1, 1, 1), sigma_x), torch.full((1, 1, 1), sigma_y))
    across, down = (torch.arange(12) * 2 / 12, torch.arange(9) * 2 / 9)
    for i, j in ((0, 0), (4, 7), (8, 11)):
        w = torch.exp(-0.5 * ((down - down[i]) / sigma_y) ** 2)[:, None] * torch.exp(
            -0.5 * ((across - across[j]) / sigma_x) ** 2
        )
        assert torch.allclose(asked[0, :, i, j], (x[0] * w).sum(dim=(1, 2)) / w.sum(), atol=1e-5)
    assert torch.allclose(smooth_images(torch.ones_like(x), *[torch.full((1, 1, 1), 0.1)] * 2), torch.ones_like(x))


def test_a_blob_has_the_area_of_its_ellipse_and_paint_covers():
    x, y = pixel_grid(64, 96)
    inside = ellipse_opacity(x, y, 0.1, -0.2, 0.5, 0.3, soft=0.02)
    assert float(inside.mean()) * 4 == pytest.approx(torch.pi * 0.5 * 0.3, rel=0.01)
    (plane,) = paint_planes((torch.full((1, 64, 96), 2.0),), inside, (5.0,))
    assert torch.allclose(plane, 2.0 + 3.0 * inside)
    assert smooth_field(torch.ones(1, 2, 4, 4), 9, 7).sub(1).abs().max() < 1e-5
