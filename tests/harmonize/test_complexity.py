from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from harmonize.complexity import (
    BOUND,
    Outside,
    Score,
    centroid_distance,
    deviation_of,
    frechet_score,
    measure_outside,
    noise_of,
    paper_score,
    replaces_target,
    score_site,
    select_largest_site,
    select_target,
)
from harmonize.distances import frechet
from harmonize.embedding import compute_basis, project_images
from privacy.dp.access import Rows, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Declared, Gaussian, Part
from privacy.dp.modules import find_unfit_parts
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

seeds = st.integers(0, 10**6)
numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=5)


def noise(n: int, seed: int, *shape: int) -> Tensor:
    return torch.randn(n, *(shape or (1, 4, 4)), generator=torch.Generator().manual_seed(seed))


PUBLIC = compute_basis(noise(40, 99), 5)


@given(n=st.integers(2, 8), m=st.integers(1, 8), seed=seeds)
def test_the_distance_of_centroids_is_that_of_loops(n: int, m: int, seed: int) -> None:
    real, synthetic = noise(n, seed, 2).tolist(), noise(m, seed + 1, 2).tolist()
    centre = [sum(p[i] for p in real) / n for i in range(2)]
    other = [sum(p[i] for p in synthetic) / m for i in range(2)]
    radius = math.sqrt(sum(math.dist(p, centre) ** 2 for p in real) / n)
    found = centroid_distance(torch.tensor(real), torch.tensor(synthetic))
    assert found == pytest.approx(math.dist(centre, other) / radius, rel=1e-5)


@given(seed=seeds, angle=st.floats(0, 6.3), scale=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_the_distance_of_centroids_has_no_unit_origin_or_direction(
    seed: int, angle: float, scale: float, shift: float
) -> None:
    real, synthetic = noise(9, seed, 2).double(), noise(7, seed + 1, 2).double() + 3
    c, s = math.cos(angle), math.sin(angle)
    turn = scale * torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    moved = centroid_distance(real @ turn + shift, synthetic @ turn + shift)
    assert moved == pytest.approx(centroid_distance(real, synthetic), rel=1e-6)


def test_points_that_are_all_one_give_no_unit() -> None:
    with pytest.raises(ValueError, match="all the same"):
        centroid_distance(torch.ones(4, 2), torch.zeros(4, 2))


@pytest.mark.parametrize("scorer", [paper_score, lambda a, b, seed: frechet_score(a, b, PUBLIC, seed=seed)])
def test_images_like_the_real_ones_score_lower_and_scores_repeat_with_their_seed(scorer) -> None:
    real, alike, unlike = noise(40, 0), noise(55, 1), noise(55, 2) + 3.0
    assert scorer(real, alike, seed=5) < 0.5 * scorer(real, unlike, seed=5)
    assert scorer(real, alike, seed=5) == scorer(real, alike, seed=5)


def test_the_score_is_the_frechet_distance_of_equally_many_images_in_the_public_basis() -> None:
    real, synthetic = noise(12, 0), noise(12, 1) + 1
    assert frechet_score(real, synthetic, PUBLIC) == frechet(
        project_images(PUBLIC, real), project_images(PUBLIC, synthetic)
    )
    assert frechet_score(real, real, PUBLIC) == pytest.approx(0.0, abs=1e-5)
    five = real[torch.randperm(12, generator=torch.Generator().manual_seed(3))[:5]]
    assert frechet_score(real, synthetic[:5], PUBLIC, seed=3) == frechet_score(five, synthetic[:5], PUBLIC)


@pytest.mark.parametrize("variant", ["consilium", "paper"])
def test_a_site_is_scored_by_the_mean_over_seeds_with_its_deviation(variant: str) -> None:
    real, synthetic = noise(30, 0), [noise(30, k) for k in (1, 2, 3)]
    found = score_site(Score(variant=variant), real, synthetic, PUBLIC, seed=7)
    assert len(found.values) == 3 and found.mean == pytest.approx(np.mean(found.values))
    assert found.deviation == pytest.approx(np.std(found.values, ddof=1))
    one = score_site(Score(variant=variant), real, synthetic[:1], PUBLIC, seed=7)
    assert one.values == found.values[:1] and math.isnan(one.deviation)
    if variant == "consilium":
        assert found.values[1] == frechet_score(real, synthetic[1], PUBLIC)


@budget(max_examples=10)
@given(seed=seeds)
def test_the_same_number_of_images_is_compared_at_large_and_small_sites(seed: int) -> None:
    real, synthetic = noise(60, seed), noise(50, seed + 1)
    order = [torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:9] for n in (60, 50)]
    found = score_site(Score(images=9), real, [synthetic], PUBLIC, seed=seed)
    assert found.mean == frechet_score(real[order[0]], synthetic[order[1]], PUBLIC)


def test_too_few_images_are_named() -> None:
    with pytest.raises(ValueError, match="too few images to compare 20: real has 10, synthetic 1 has 9"):
        score_site(Score(images=20), noise(10, 0), [noise(20, 1), noise(9, 2)], PUBLIC, seed=0)
    with pytest.raises(ValueError, match="train at least one"):
        score_site(Score(), noise(10, 0), [], PUBLIC, seed=0)


@given(seed=seeds)
def test_the_share_outside_is_what_is_left_after_the_basis(seed: int) -> None:
    images = 2 * noise(6, seed)
    away = images.flatten(1).double() - PUBLIC.mean
    rest = away - away @ PUBLIC.components.T.double() @ PUBLIC.components.double()
    expected = rest.square().sum(dim=1) / away.square().sum(dim=1)
    found = Outside(PUBLIC)(images)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    assert (found >= 0).all() and (found <= BOUND).all()
    inside = PUBLIC.mean + away.float() @ PUBLIC.components.T @ PUBLIC.components
    torch.testing.assert_close(Outside(PUBLIC)(inside), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(Outside(PUBLIC)(PUBLIC.mean + rest.float()), torch.ones(6), atol=1e-5, rtol=0)


def test_an_image_that_is_the_public_mean_is_explained() -> None:
    assert Outside(PUBLIC)(PUBLIC.mean.reshape(1, 1, 4, 4)).tolist() == [0.0]


def rows(patients: int = 9) -> Rows:
    patient = torch.repeat_interleave(torch.arange(patients), torch.arange(patients) % 3 + 1)
    return Rows(noise(len(patient), 3), torch.zeros(len(patient), dtype=torch.int64), patient)


def test_private_access_measures_the_mean_over_patients_of_their_mean_shares() -> None:
    module, own = Outside(PUBLIC), rows()
    assert find_unfit_parts(module) == []
    private = open_private({"train": own}, Protection(validation_noise=0.0, loss_bound=BOUND))
    shares = module(own.x).detach()
    expected = np.mean([float(shares[own.patient == k].double().mean()) for k in range(9)])
    assert private.measure(module, measure_outside, "train") == pytest.approx(expected, rel=1e-6)
    plain = open_access({"train": own}, batch=4, seed=0)
    assert plain.measure(module, measure_outside, "train") == pytest.approx(float(shares.mean()), rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_noised_share_costs_what_the_settings_say_and_is_as_noisy_as_told(epsilon: float) -> None:
    settings = Score(release="dp", epsilon=epsilon, delta=1e-5)
    protection = Protection(validation_noise=noise_of(settings), loss_bound=BOUND)
    module, own, source = Outside(PUBLIC), rows(20), random.Random(0).randbytes
    access = open_private({"train": own}, protection, counts=Declared("n"), source=source)
    access.measure(module, measure_outside, "train")
    assert Part("", "train", Gaussian(noise_of(settings))) in access.booked
    assert compute_cost(access.events, 1e-5).epsilon == pytest.approx(epsilon, rel=1e-3)
    found = [access.measure(module, measure_outside, "train") for _ in range(200)]
    assert np.std(found) == pytest.approx(deviation_of(settings, 20), rel=0.2)


def test_a_patients_share_depends_on_nobody_else() -> None:
    module, own = Outside(PUBLIC), rows()
    torch.testing.assert_close(module(own.x)[:3], module(own.x[:3]), atol=1e-6, rtol=0)


@given(scores=st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 3).map(float), min_size=1, max_size=6))
def test_the_chosen_site_has_the_lowest_score_and_the_first_name(scores: dict[str, float]) -> None:
    site = select_target(scores)
    assert all((scores[site], site) <= (value, name) for name, value in scores.items())
    assert select_largest_site({name: int(value) for name, value in scores.items()}) == min(
        scores, key=lambda s: (-scores[s], s)
    )


def test_sites_without_a_score_are_all_named() -> None:
    with pytest.raises(ValueError, match="A has nan; C has inf"):
        select_target({"A": math.nan, "B": 1.0, "C": math.inf})
    with pytest.raises(ValueError, match="no site has a score"):
        select_target({})


@given(current=numbers, joining=numbers, margin=st.floats(0, 5), more=st.floats(0, 5))
def test_who_replaces_the_target_has_a_lower_mean_and_still_would_at_a_smaller_margin(
    current: list[float], joining: list[float], margin: float, more: float
) -> None:
    if replaces_target(current, joining, margin + more):
        assert np.mean(joining) < np.mean(current)
        assert replaces_target(current, joining, margin)
        assert not replaces_target(joining, current, margin)
    assert not replaces_target(current, current, margin)


def test_notably_lower_is_by_more_than_so_many_pooled_deviations() -> None:
    current, joining = [9.0, 10.0, 11.0], [6.0, 8.0]  # variances 1 (two degrees of freedom) and 2 (one): pooled 4 / 3
    limit = 3 / math.sqrt(4 / 3)
    assert replaces_target(current, joining, limit - 1e-6) and not replaces_target(current, joining, limit + 1e-6)
    assert replaces_target([10.0], [9.0], 2.0, deviation=0.4) and not replaces_target([10.0], [9.0], 2.0, deviation=0.6)


def test_scores_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match=r"score\.seeds of 2 or more"):
        replaces_target([1.0], [0.5], 2.0)
    with pytest.raises(ValueError, match="must be finite and at least one"):
        replaces_target([1.0, math.nan], [0.5, 0.4], 2.0)


def test_settings_name_everything_that_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"seeds must be in \[1, 100\], found 0; target: is A, but with"):
        Score(release="exact", seeds=0, target="A")
    with pytest.raises(ValueError, match="variant: paper has no release dp"):
        Score(release="dp", variant="paper")
    with pytest.raises(ValidationError, match="targett"):
        TypeAdapter(Score).validate_python({"targett": "A"})
