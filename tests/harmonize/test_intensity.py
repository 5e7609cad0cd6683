from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harmonize.intensity import LANDMARKS, HistogramMatch, Identity, Nyul, Percentile, ZScore
from harmonize.own import SiteImages, central_region, region_mask
from harmonize.reinhard import Reinhard
from harmonize.translation import Translator

CURVES = [
    ZScore(),
    ZScore(over="image"),
    ZScore(region="centre"),
    ZScore(region="all"),
    Percentile(),
    Percentile(low=5, high=90, region="centre"),
    Nyul(),
    Nyul(region="centre"),
    HistogramMatch(),
    HistogramMatch(region="all"),
    Reinhard(),
    Reinhard(region="all"),
]
ALL = [Identity(), *CURVES]
SEEDS = st.integers(0, 2**31 - 1)


def drawn(seed: int, n: int, *, mean: float, deviation: float, channels: int = 2) -> Tensor:
    x = torch.randn(n, channels, 16, 16, generator=torch.Generator().manual_seed(seed)) * deviation + mean
    x = x.clamp(-0.99, 0.99)
    x[:, :, :3] = -1.0
    return x


def shared() -> Tensor:
    return drawn(99, 8, mean=0.2, deviation=0.15)


def fitted(translator: Translator, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    patient = torch.tensor([4, 9, 4, 2, 9, 2, 2])
    x = drawn(seed, 7, mean=-0.3, deviation=0.25)
    params = translator.fit(SiteImages(x, patient % 2, patient), shared(), seed=0)
    return x, patient, translator.translate(params, x, patient)


@pytest.mark.parametrize("translator", ALL, ids=str)
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_other_patients_change_nothing_about_a_patient(translator: Translator, seed: int) -> None:
    x, patient, all_together = fitted(translator, seed)
    other = drawn(seed + 1, 7, mean=0.5, deviation=0.1)
    params = translator.fit(SiteImages(other, patient % 2, patient), shared(), seed=1)
    for one in (2, 4, 9):
        rows = patient == one
        assert torch.equal(translator.translate(params, x[rows], patient[rows]), all_together[rows])
    assert not translator.learns


@pytest.mark.parametrize("translator", CURVES, ids=str)
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS)
def test_brighter_stays_brighter_within_an_image(translator: Translator, seed: int) -> None:
    x, _, new = fitted(translator, seed)
    for before, after in zip(x.flatten(0, 1), new.flatten(0, 1), strict=True):
        assert after.flatten()[before.flatten().argsort()].diff().min() >= -1e-6


@pytest.mark.parametrize("translator", [t for t in CURVES if t.region != "all"], ids=str)
def test_background_stays_background_and_values_stay_inside(translator: Translator) -> None:
    x, _, new = fitted(translator, 3)
    assert (new[x == -1.0] == -1.0).all()
    assert new.min() >= -1 and new.max() <= 1 and not torch.equal(new, x)


@pytest.mark.parametrize("translator", [ZScore(), Percentile(), Nyul(), HistogramMatch()], ids=str)
def test_what_a_scanner_scales_and_shifts_comes_out_the_same(translator: Translator) -> None:
    x, patient, new = fitted(translator, 7)
    changed = torch.where(x == -1.0, x, 0.4 * x + 0.3)
    params = translator.fit(SiteImages(x, patient % 2, patient), shared(), seed=0)
    assert torch.allclose(translator.translate(params, changed, patient), new, atol=2e-3)


def test_z_score_gives_each_patient_the_shared_images_mean_and_deviation() -> None:
    x, patient, new = fitted(ZScore(), 1)
    goal = shared()
    for one in (2, 4, 9):
        for channel in range(2):
            values = new[patient == one][:, channel][x[patient == one][:, channel] > -1]
            wanted = goal[:, channel][goal[:, channel] > -1]
            assert float(values.mean()) == pytest.approx(float(wanted.mean()), abs=1e-4)
            assert float(values.std()) == pytest.approx(float(wanted.std()), abs=1e-3)


def test_z_score_over_images_is_the_one_over_patients_of_one_image_each() -> None:
    x, patient, new = fitted(ZScore(over="image"), 1)
    params = ZScore().fit(SiteImages(x, patient % 2, patient), shared())
    assert torch.equal(ZScore().translate(params, x, torch.arange(7)), new)


def test_percentiles_become_those_of_the_shared_images() -> None:
    x, patient, new = fitted(Percentile(low=5, high=90), 1)
    goal = shared()[:, 0]
    mine = new[patient == 4][:, 0]
    wanted = np.percentile(goal[goal > -1].numpy(), [5, 90])
    assert np.percentile(mine[x[patient == 4][:, 0] > -1].numpy(), [5, 90]) == pytest.approx(wanted, abs=1e-4)


def test_nyul_maps_the_shared_images_onto_themselves_and_a_patients_landmarks_onto_theirs() -> None:
    goal, nyul = shared(), Nyul()
    params = nyul.fit(SiteImages(goal, torch.zeros(8), torch.zeros(8)), goal)
    assert torch.allclose(nyul.translate(params, goal, torch.zeros(8)), goal, atol=1e-5)
    x, patient, new = fitted(nyul, 1)
    values = new[patient == 9][:, 1][x[patient == 9][:, 1] > -1].numpy()
    wanted = np.percentile(goal[:, 1][goal[:, 1] > -1].numpy(), LANDMARKS)
    # TorchIO bends its curve at all landmarks but the quartiles.
    bent = [i for i, p in enumerate(LANDMARKS) if p not in (25, 75)]
    assert np.percentile(values, LANDMARKS)[bent] == pytest.approx(wanted[bent], abs=2e-3)


def test_nyul_is_a_curve_through_the_landmarks() -> None:
    x, patient, new = fitted(Nyul(), 5)
    rows = patient == 2
    goal = shared()[:, 0]
    old = x[rows][:, 0][x[rows][:, 0] > -1].numpy()
    points = [p for p in LANDMARKS if p not in (25, 75)]
    at, to = np.percentile(old, points), np.percentile(goal[goal > -1].numpy(), points)
    inside = (old >= at[0]) & (old <= at[-1])
    found = new[rows][:, 0][x[rows][:, 0] > -1].numpy()
    assert found[inside] == pytest.approx(np.interp(old[inside], at, to), abs=1e-4)


def test_histogram_matching_takes_the_value_of_the_same_rank() -> None:
    x, patient, new = fitted(HistogramMatch(), 5)
    rows = patient == 2
    old, found = x[rows][:, 0], new[rows][:, 0]
    values, goal = old[old > -1], shared()[:, 0]
    rank = (values.argsort().argsort() + 1) / len(values)
    wanted = np.quantile(goal[goal > -1].numpy(), rank.numpy())
    assert np.abs(found[old > -1].numpy() - wanted).mean() < 2e-3


@pytest.mark.parametrize("translator", CURVES, ids=str)
def test_a_blank_patient_gives_finite_numbers(translator: Translator) -> None:
    patient = torch.zeros(2, dtype=torch.int64)
    params = translator.fit(SiteImages(shared(), torch.zeros(8), torch.zeros(8)), shared(), seed=0)
    for value in (-1.0, 0.3):
        assert translator.translate(params, torch.full((2, 2, 16, 16), value), patient).isfinite().all()


def test_blank_shared_images_are_refused() -> None:
    blank = torch.full((2, 1, 16, 16), -1.0)
    with pytest.raises(ValueError, match="no pixel in region 'foreground' of channel 0"):
        Nyul().fit(SiteImages(blank, torch.zeros(2), torch.zeros(2)), blank)


def test_percentiles_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="0 <= low < high <= 100, found 99 and 1"):
        Percentile(low=99, high=1)


def test_the_centre_is_the_middle_half_of_each_side() -> None:
    x = torch.zeros(1, 1, 16, 24)
    x[..., 4:12, 6:18] = 1
    assert central_region(x).min() == 1 and central_region(x).numel() == x.sum()
    x[0, 0, 8, 8] = -1
    assert region_mask(x, "centre").sum() == 8 * 12 - 1
    assert region_mask(x, "foreground").sum() == 16 * 24 - 1 and region_mask(x, "all").all()
