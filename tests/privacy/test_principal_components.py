"""Principal components where LAPACK's divide and conquer does not end are those of where it does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

from privacy.principal_components import fit_components

ROOT = Path(__file__).parents[2]
ROOMS = ("consilium", "evaluation", "federation", "harmonize", "personalize", "pipelines", "privacy")


def rows(n: int, d: int, copies: int) -> np.ndarray:
    made = np.random.default_rng(n + d).normal(size=(n, d)) * np.linspace(3, 0.1, d)
    return np.concatenate([made] * copies)


@pytest.mark.parametrize(("n", "d", "copies"), [(20, 6, 1), (20, 6, 2), (9, 30, 2), (40, 40, 1), (2, 5, 1)])
@pytest.mark.parametrize("solver", ["full", "randomized", "auto"])
def test_qr_iteration_takes_the_place_of_divide_and_conquer(n, d, copies, solver, monkeypatch):
    x, number = rows(n, d, copies), min(4, n - 1, d)
    usual = PCA(n_components=number, svd_solver="full").fit(x)

    def endless(self: PCA, x: np.ndarray) -> PCA:
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(PCA, "fit", endless)
    found = fit_components(x, number, solver=solver)
    assert np.allclose(found.mean_, usual.mean_) and np.allclose(found.singular_values_, usual.singular_values_)
    assert np.allclose(found.explained_variance_, usual.explained_variance_)
    signs = np.sign((found.components_ * usual.components_).sum(axis=1, keepdims=True))
    assert np.allclose(found.components_ * signs, usual.components_)
    assert np.allclose(found.transform(x) * signs.T, usual.transform(x))


def test_nothing_else_fits_principal_components():
    """Whatever does would fail where this does not."""
    users = [path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py") if "import PCA" in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in users] == ["privacy/principal_components.py"]
