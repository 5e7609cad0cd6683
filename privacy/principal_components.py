"""scikit-learn's principal components, also where LAPACK's divide and conquer does not end."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.decomposition import PCA

Floats: TypeAlias = NDArray[np.float64]


def fit_components(x: Floats, number: int, *, solver: str = "auto", seed: int = 0) -> PCA:
    """The first `number` principal components of rows x (n, d), as scikit-learn fits them.

    Divide and conquer does not always end where many rows are equal: seen with OpenBLAS 0.3.30 on two threads, of 414
    images, half of which were translations that had changed nothing. LAPACK's slower QR iteration is then taken; it
    differs by rounding. Signs of components are not fixed.
    """
    from sklearn.decomposition import PCA  # takes a second

    fitter = PCA(n_components=number, svd_solver=solver, random_state=seed)
    try:
        with np.errstate(invalid="ignore"):  # the explained share of a variance of 0, which nobody uses here
            return fitter.fit(x)
    except np.linalg.LinAlgError:
        return _fit_by_iteration(fitter, x, number)


def _fit_by_iteration(fitter: PCA, x: Floats, number: int) -> PCA:
    """The same components by LAPACK's QR iteration."""
    from scipy.linalg import svd

    fitter.mean_ = x.mean(axis=0)
    _, spread, directions = svd(x - fitter.mean_, full_matrices=False, lapack_driver="gesvd")
    fitter.components_, fitter.singular_values_ = directions[:number], spread[:number]
    fitter.explained_variance_ = fitter.singular_values_**2 / (len(x) - 1)
    fitter.n_components_, fitter.n_features_in_, fitter.n_samples_ = number, x.shape[1], len(x)
    return fitter
