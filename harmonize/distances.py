"""Distances between two sets of images, or of their features. All are symmetric, and 0 between a set and itself.

A distance to patients' images reveals something about those patients; no noise is added here.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def frechet(a: Tensor, b: Tensor) -> float:
    """Squared Frechet distance between Gaussians fitted to features a (n, d) and b (m, d): the "FID" of any features.

    |mean_a - mean_b|^2 + tr(S_a + S_b - 2 (S_a S_b)^(1/2)) (Dowson and Landau, J Multivariate Analysis 1982), with
    unbiased covariances S. n and m may be less than d. With A'A = S_a and B'B = S_b the last trace is the sum of the
    singular values of A B', which needs no root of a matrix that is singular or nearly so. Few samples make the
    distance larger: compare figures of equal n and m only.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    _check_features("frechet", a, b, least=2)
    roots = []
    for features in (a.double(), b.double()):
        centred = (features - features.mean(dim=0)) / math.sqrt(len(features) - 1)
        roots.append(torch.linalg.qr(centred, mode="r").R)
    shift = (a.double().mean(dim=0) - b.double().mean(dim=0)).square().sum()
    spread = sum(root.square().sum() for root in roots) - 2 * torch.linalg.svdvals(roots[0] @ roots[1].T).sum()
    return max(0.0, float(shift + spread))


def sliced_wasserstein(a: Tensor, b: Tensor, *, projections: int = 128, seed: int) -> float:
    """Mean 1-Wasserstein distance of images a (n, ...) and b (m, ...) along random directions of unit length.

    In the unit of the images (Rabin et al., SSVM 2011, doi:10.1007/978-3-642-24785-9_37). Equal seeds and sizes give
    equal directions; n and m may differ.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    from scipy.stats import wasserstein_distance

    if projections < 1:
        raise ValueError(f"sliced_wasserstein: projections is {projections}, allowed is 1 or more")
    flat_a, flat_b = a.flatten(1), b.flatten(1)
    _check_features("sliced_wasserstein", flat_a, flat_b, least=1)
    directions = torch.randn(flat_a.shape[1], projections, generator=torch.Generator().manual_seed(seed))
    directions = directions / directions.norm(dim=0)
    along_a, along_b = ((flat.cpu().float() @ directions).double().T.numpy() for flat in (flat_a, flat_b))
    return math.fsum(wasserstein_distance(u, v) for u, v in zip(along_a, along_b, strict=True)) / projections


def _check_features(what: str, a: Tensor, b: Tensor, *, least: int) -> None:
    """Raises ValueError if one of the two sets is not (n, d), n >= least, or not finite, or if they differ in d."""
    wrong = [
        f"{name} has shape {tuple(x.shape)}, needed is (n, d) with n >= {least} and d >= 1"
        for name, x in (("a", a), ("b", b))
        if x.ndim != 2 or len(x) < least or x.shape[1] == 0
    ]
    if not wrong and a.shape[1] != b.shape[1]:
        wrong.append(f"a has {a.shape[1]} numbers a row and b has {b.shape[1]}, needed are equal ones")
    wrong += [f"{name} is not finite somewhere" for name, x in (("a", a), ("b", b)) if not bool(x.isfinite().all())]
    if wrong:
        raise ValueError(f"{what}: " + "; ".join(wrong))
