"""A hospital's own principal components: fitted to its training patients alone, the same wherever they are fitted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from pipelines.data.cohort import Cohort, read_cohort
from pipelines.data.images import Features
from pipelines.data.sources import TableSource
from pipelines.data.tables.features import Moments
from pipelines.data.tables.principal_components import axes_from_json, axes_to_json, fit_axes, project_features
from pipelines.hospital.page.table import read_features

IMAGES = Features(numbers=("a", "b", "c"), categories={"d": ("x", "y")}, components=2)
USUAL = {"train": 0.6, "validation": 0.2, "test": 0.2}


def table(path: Path, shift: float = 0.0, lines: int = 60) -> TableSource:
    chance = np.random.default_rng(4)
    rows = chance.normal(size=(lines, 3)) @ np.array([[3.0, 1.0, 0.5], [0.0, 1.0, 0.3], [0.0, 0.0, 0.2]])
    text = "".join(
        f"{n},{a + shift * (n % 5)},{b},{c},{'xy'[n % 3 == 0]},{n % 2}\n" for n, (a, b, c) in enumerate(rows)
    )
    path.write_text("id,a,b,c,d,ill\n" + text)
    return TableSource(file=str(path), patient="id", label="ill")


def read(path: Path, images: Features = IMAGES, *, scale: Moments | None = None, **said: Any) -> Cohort:
    how = {"fractions": USUAL, "seed": 0, "key": b"k" * 32, **said}
    return read_cohort(table(path / "t.csv"), None, images, scale=scale, **how).cohort


@pytest.mark.parametrize("seed", range(5))
def test_axes_are_eigenvectors_of_the_covariance_with_the_largest_loading_positive(seed: int) -> None:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(seed)) * torch.tensor([5.0, 3, 2, 1, 0.5])
    found = fit_axes(x, 3)
    values, vectors = torch.linalg.eigh(torch.cov(x.double().T))
    for place in range(3):
        expected = vectors[:, -1 - place]
        expected = expected * expected[expected.abs().argmax()].sign()
        assert torch.allclose(found.axes[place], expected, atol=1e-9)
    assert torch.allclose(project_features(x, found).double().var(dim=0), values.flip(0)[:3], rtol=1e-4)
    assert torch.equal(fit_axes(x.clone(), 3).axes, found.axes)
    again = axes_from_json(axes_to_json(found))
    assert again is not None and torch.equal(again.axes, found.axes) and torch.equal(again.mean, found.mean)
    assert axes_from_json(None) is None


def test_all_components_keep_every_distance() -> None:
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    y = project_features(x, fit_axes(x, 4))
    assert torch.allclose(torch.pdist(x), torch.pdist(y), atol=1e-5)


@pytest.mark.parametrize(
    ("x", "spanned"), [(torch.ones(1, 3), 0), (torch.randn(3, 3), 2), (torch.randn(9, 1).expand(9, 3), 1)]
)
def test_more_components_than_directions_are_refused(x: torch.Tensor, spanned: int) -> None:
    with pytest.raises(
        ValueError, match=rf"images.components: 3, and the {len(x)} training examples vary in {spanned}"
    ):
        fit_axes(x, 3)


@pytest.mark.parametrize("normalize", ["site", "none"])
def test_a_cohort_is_projected_after_it_was_normalized_and_only_training_patients_are_looked_at(
    tmp_path: Path, normalize: Any
) -> None:
    images = replace(IMAGES, normalize=normalize)
    plain, made = read(tmp_path, replace(images, components=None)), read(tmp_path, images)
    axes = fit_axes(plain.images[plain.split == 0], 2)
    assert images.inputs == (2,) and tuple(made.images.shape) == (60, 2)
    assert torch.equal(made.images, project_features(plain.images, axes))
    assert made.recipe["axes"] == axes_to_json(axes) and made.recipe["scale"] == plain.recipe["scale"]
    assert (made.labels.tolist(), made.split.tolist()) == (plain.labels.tolist(), plain.split.tolist())
    assert "components" not in plain.recipe["images"] and "axes" not in plain.recipe  # type: ignore[operator]


def test_a_cohort_with_axes_is_no_cohort_of_independent_patients(tmp_path: Path) -> None:
    images = replace(IMAGES, normalize="none")
    assert read(tmp_path, images, independent=True).recipe["independent"] is False
    assert read(tmp_path, replace(images, components=None), independent=True).recipe["independent"] is True


def test_pooled_moments_are_of_the_columns_and_the_axes_of_the_site(tmp_path: Path) -> None:
    images = replace(IMAGES, normalize="pooled")
    raw = read(tmp_path, images)  # what the request for moments reads
    assert raw.images.shape[1] == 4 and "axes" not in raw.recipe
    known = Moments(2.0, torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    assert read(tmp_path, images, scale=known).images.shape[1] == 2


def test_the_sites_own_page_names_components_and_not_columns(tmp_path: Path) -> None:
    made = read(tmp_path)
    found = read_features(made)
    assert list(found) == ["component 1", "component 2"]
    assert np.array_equal(found["component 2"], made.images[:, 1].numpy())


@pytest.mark.parametrize("components", [0, 5, -1])
def test_components_are_as_many_as_there_are_columns_at_most(components: int) -> None:
    with pytest.raises((ValidationError, ValueError), match=rf"components must be in \[1, 4\].*found {components}"):
        replace(IMAGES, components=components)
