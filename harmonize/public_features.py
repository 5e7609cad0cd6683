"""Features of a picture of a public prior, and so of a patient's image: levels, shapes and roughness.

They are fixed before a patient is seen: principal components of pictures that the prior draws, and a map of local
contrast, which tells noise and sharpness that the components leave out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from harmonize.drawing import Inputs
from harmonize.embedding import Basis, compute_basis, project_images
from harmonize.prior import Prior, draw_pictures

LARGEST = 48  # pixels along a side when pictures are compared
CELLS = 6  # along a side, of the roughness map of a picture


class View(NamedTuple):
    """How pictures are compared. It is public: it is computed from a prior's pictures only.

    spread: root of the summed variance along the basis. mean, deviation: (cells,) of `_roughness_map`. weight: of one
    cell.
    """

    basis: Basis
    spread: float
    mean: Tensor
    deviation: Tensor
    weight: float


def make_view(prior: Prior, inputs: Inputs, public: int, components: int, roughness: float, *, seed: int) -> View:
    """The view of a prior. public: pictures drawn; components: principal components of these; roughness: weight of
    local contrast relative to them.
    """
    images = draw_pictures(prior, torch.arange(public) % 2, inputs, seed)
    along, rough = compute_basis(_shrink_images(images), components), _roughness_map(images)
    spread = max(float(along.deviation.norm()), 1e-6)
    weight = roughness / math.sqrt(rough.shape[1])
    return View(along, spread, rough.mean(dim=0), rough.std(dim=0).clamp(min=1e-6), weight)


def compute_features(view: View, images: Tensor) -> Tensor:
    """(n, k): principal components, and a map of roughness. Public pictures have a norm of about 1 in either part, so
    that neither dominates.
    """
    rough = ((_roughness_map(images) - view.mean.to(images)) / view.deviation.to(images)).clamp(-3, 3)
    return torch.cat([project_images(view.basis, _shrink_images(images)) / view.spread, rough * view.weight], dim=1)


def _shrink_images(images: Tensor) -> Tensor:
    """Images of at most `LARGEST` pixels along a side, by averaging."""
    height, width = images.shape[-2:]
    if max(height, width) <= LARGEST:
        return images
    return functional.adaptive_avg_pool2d(images, (min(height, LARGEST), min(width, LARGEST)))


def _roughness_map(images: Tensor) -> Tensor:
    """Logarithm of the mean difference from the neighbours' mean in each cell: (n, cells)."""
    around = functional.avg_pool2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    contrast = (images - around).abs().mean(dim=1, keepdim=True)
    return (functional.adaptive_avg_pool2d(contrast, CELLS) + 1e-3).log().flatten(1)
