from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmonize.embedding import compute_basis, perplexity_of, project_images, tsne


def noise(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@given(n=st.integers(2, 12), d=st.integers(1, 12), components=st.integers(1, 15), seed=st.integers(0, 10**6))
def test_components_are_eigenvectors_of_the_covariance(n: int, d: int, components: int, seed: int) -> None:
    images = noise(n, d, seed)
    found = compute_basis(images, components)
    k = min(components, n - 1, d)
    away = (images - images.mean(dim=0)).double()
    covariance = away.T @ away / (n - 1)
    directions, variances = found.components.double(), found.deviation.double().square()
    largest = torch.linalg.eigvalsh(covariance).flip(0)[:k]
    assert found.mean.shape == (d,) and found.components.shape == (k, d) and found.deviation.shape == (k,)
    torch.testing.assert_close(directions @ directions.T, torch.eye(k, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(covariance @ directions.T, directions.T * variances, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(variances, largest, atol=1e-4, rtol=1e-4)
    places = found.components.abs().argmax(dim=1, keepdim=True)
    assert (found.components.gather(1, places) > 0).all()


@given(seed=st.integers(0, 10**6))
def test_all_components_keep_all_distances(seed: int) -> None:
    images = noise(8, 6, seed)
    shown = project_images(compute_basis(images.reshape(8, 1, 2, 3), 6), images.reshape(8, 1, 2, 3))
    torch.testing.assert_close(torch.cdist(shown, shown), torch.cdist(images, images), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(shown.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)


def test_of_many_large_images_the_components_found_are_the_planted_ones() -> None:
    planted = torch.linalg.qr(noise(1100, 3, 0))[0].T
    images = noise(1100, 3, 1) * torch.tensor([9.0, 6.0, 3.0]) @ planted + 0.01 * noise(1100, 1100, 2)
    first, again = compute_basis(images, 3), compute_basis(images, 3)
    assert torch.linalg.svdvals(first.components @ planted.T).min() > 0.999
    assert torch.equal(first.components, again.components)


def test_images_that_do_not_vary_have_a_basis_without_spread() -> None:
    found = compute_basis(torch.ones(5, 3, 2, 2), 4)
    assert torch.equal(found.mean, torch.ones(12)) and torch.equal(found.deviation, torch.zeros(4))
    assert torch.equal(project_images(found, torch.ones(2, 3, 2, 2)), torch.zeros(2, 4))


def test_projecting_no_image_gives_no_row_and_another_size_is_refused() -> None:
    found = compute_basis(noise(5, 4, 0), 2)
    assert project_images(found, torch.zeros(0, 4)).shape == (0, 2)
    with pytest.raises(ValueError, match="images of 9 numbers do not fit a basis of 4"):
        project_images(found, torch.zeros(3, 9))


def test_everything_wrong_with_a_basis_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"components is 0.*shape \(1, 3\)"):
        compute_basis(torch.zeros(1, 3), 0)
    with pytest.raises(ValueError, match="not finite"):
        compute_basis(torch.tensor([[0.0], [float("nan")]]))


def test_a_map_keeps_groups_apart_and_repeats_with_its_seed() -> None:
    features = noise(60, 5, 0) + 20 * (torch.arange(60) % 2)[:, None]
    first = tsne(features, seed=3)
    assert first.shape == (60, 2) and first.dtype == torch.float32
    assert torch.equal(first, tsne(features, seed=3))
    apart = torch.cdist(first, first).fill_diagonal_(torch.inf)
    assert ((apart.argmin(dim=1) - torch.arange(60)) % 2 == 0).all()


@pytest.mark.parametrize(("n", "k"), [(4, 3), (5, 1), (10, 2)])
def test_small_sets_and_repeated_points_have_a_finite_map(n: int, k: int) -> None:
    features = noise(n, k, 0)
    assert tsne(features, seed=0).isfinite().all()
    assert tsne(torch.cat([features, features]), seed=0).isfinite().all()
    assert torch.equal(tsne(torch.zeros(n, k), seed=0), torch.zeros(n, 2))


def test_the_perplexity_is_reduced_only_where_there_are_too_few_points() -> None:
    assert perplexity_of(91, 30.0) == 30.0 and perplexity_of(31, 30.0) == 10.0 and perplexity_of(1000, 30.0) == 30.0


def test_everything_wrong_with_a_map_is_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"perplexity is 0.5.*shape \(3, 2\)"):
        tsne(torch.zeros(3, 2), perplexity=0.5, seed=0)
    with pytest.raises(ValueError, match="not finite"):
        tsne(torch.full((9, 2), float("inf")), seed=0)


def test_a_map_takes_a_seed_of_any_size() -> None:
    """A hospital's seeds have 62 bits; scikit-learn takes 32."""
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tsne(points, seed=2**62 + 5), tsne(points, seed=5))
