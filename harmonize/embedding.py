"""Images as a few numbers: principal components, and t-SNE of them for maps.

VAFL compares images in "PCA and t-SNE" features (Yan et al., IEEE JBHI 2021, section II.A and Algorithm 1, line 8) and
gives no dimensions; here 40 components and 2 map coordinates. PCA is scikit-learn's, t-SNE openTSNE's (Policar et al.,
J Stat Soft 2024, doi:10.18637/jss.v109.i03).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from privacy.principal_components import fit_components

SMALL = 512  # up to this many images, or numbers per image, the decomposition is exact: a fraction of a second
FEWEST = 4  # points of a t-SNE map: with perplexity (n - 1) / 3, fewer would have less than one neighbour


class Basis(NamedTuple):
    """Principal directions of a set of images, flattened to d numbers each.

    mean: (d,). components: (k, d), orthonormal rows, the largest variance first; the entry of largest absolute value of
    each is positive. deviation: (k,) standard deviation along each, 0 where the images do not vary. All float32.
    """

    mean: Tensor
    components: Tensor
    deviation: Tensor


def compute_basis(images: Tensor, components: int = 40) -> Basis:
    """Principal components of images (n, ...), n >= 2; deterministic.

    There are min(components, n - 1, d) of them: n images around their mean span no more. Above `SMALL` images and
    numbers per image the decomposition is scikit-learn's randomized one, with a fixed seed.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    flat = images.detach().flatten(1).cpu().double() if images.ndim > 1 else images.detach().cpu().double()
    wrong = []
    if components < 1:
        wrong.append(f"components is {components}, allowed is 1 or more")
    if flat.ndim != 2 or len(flat) < 2 or flat.shape[1] == 0:
        wrong.append(f"images have shape {tuple(images.shape)}, needed is (n, ...) with n >= 2")
    elif not bool(flat.isfinite().all()):
        wrong.append("images hold numbers that are not finite; leave such images out")
    if wrong:
        raise ValueError("no principal components: " + "; ".join(wrong))
    number = min(components, len(flat) - 1, flat.shape[1])
    solver = "full" if min(flat.shape) <= SMALL else "randomized"
    # not whitened: a caller that divides by a deviation must decide what to do where it is 0
    fitted = fit_components(flat.numpy(), number, solver=solver)
    directions = torch.from_numpy(fitted.components_)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)  # scikit-learn's own rule changed between versions
    deviation = torch.from_numpy(fitted.explained_variance_).clamp(min=0.0).sqrt()
    return Basis(torch.from_numpy(fitted.mean_).float(), directions.float(), deviation.float())


def project_images(basis: Basis, images: Tensor) -> Tensor:
    """Coordinates (n, k) of images (n, ...) in a basis, not divided by its deviations; n may be 0.

    Raises:
        ValueError: the images have another size than those of the basis.
    """
    flat = images.flatten(1)
    if flat.shape[1] != basis.mean.numel():
        raise ValueError(
            f"images of {flat.shape[1]} numbers do not fit a basis of {basis.mean.numel()}: "
            f"make the basis from images of the same channels, height and width"
        )
    return (flat - basis.mean.to(flat)) @ basis.components.to(flat).T


def perplexity_of(points: int, perplexity: float) -> float:
    """The perplexity of a map of n points: as given, or (n - 1) / 3 if that is less (openTSNE's rule)."""
    return min(perplexity, (points - 1) / 3)


def tsne(features: Tensor, *, perplexity: float = 30.0, seed: int) -> Tensor:
    """Map features (n, k) to (n, 2) float32 by t-SNE; one thread, the same seed gives the same map.

    The perplexity is reduced by `perplexity_of`. The map starts from the two largest principal components plus jitter
    from the seed. Its coordinates have no unit and depend on n. If all points are equal, they lie at the origin.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    wrong = []
    if not perplexity >= 1:
        wrong.append(f"perplexity is {perplexity}, allowed is 1 or more")
    if features.ndim != 2 or len(features) < FEWEST or features.shape[1] == 0:
        wrong.append(f"features have shape {tuple(features.shape)}, needed is (n, k) with n >= {FEWEST} and k >= 1")
    elif not bool(features.isfinite().all()):
        wrong.append("features hold numbers that are not finite")
    if wrong:
        raise ValueError("no t-SNE map: " + "; ".join(wrong))
    if bool((features == features[0]).all()):
        return torch.zeros(len(features), 2)  # openTSNE divides by their spread
    from openTSNE import TSNE  # takes a second

    wide = functional.pad(features.detach().cpu().double(), (0, max(0, 2 - features.shape[1])))
    fit = TSNE(
        perplexity=perplexity_of(len(wide), perplexity), n_jobs=1, random_state=seed % 2**31, initialization="pca"
    )
    return torch.from_numpy(fit.fit(wide.numpy()).view().copy()).float()
