"""The two requirements of VAFL's Algorithm 1: close to a reference image in features, far from all of them in pixels.

Yan et al., IEEE JBHI 2021, section II.B. Everything is computed in float64 on the CPU.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor


class Reference(NamedTuple):
    """References of one class. pixels: (n, d). patient: (n,). between: (n, n) distances in pixels.

    rest: (r, d) of the other classes, to each of which a candidate must be farther than limits (r,).
    """

    pixels: Tensor
    patient: Tensor
    between: Tensor
    rest: Tensor
    limits: Tensor


def make_reference(images: Tensor, patient: Tensor, rest: tuple[Tensor, Tensor] | None = None) -> Reference:
    """References in an order that depends only on their content, so that a t-SNE map does not depend on the input
    order.

    images: (n, ...). patient: (n,). rest: images (r, ...) of the other classes and their `neighbour_distances` (r,).
    """
    rows = images.detach().cpu().float().flatten(1)
    keys = [
        (blake2b(row.numpy().tobytes(), digest_size=16).digest(), int(who))
        for row, who in zip(rows, patient, strict=True)
    ]
    order = torch.tensor(sorted(range(len(rows)), key=keys.__getitem__))
    pixels = rows[order].double()
    other_classes = (pixels[:0], pixels[:0, 0]) if rest is None else (_flatten_images(rest[0]), rest[1])
    return Reference(pixels, patient[order], torch.cdist(pixels, pixels), *other_classes)


def neighbour_distances(images: Tensor, patient: Tensor, *, other_images: bool) -> Tensor:
    """(n,) distance of each image (n, ...) to the nearest other one; with `others`, to the nearest one of another
    patient.
    """
    pixels = _flatten_images(images)
    return torch.where(_not_neighbours(patient, other_images), torch.inf, torch.cdist(pixels, pixels)).amin(dim=1)


def meets_requirements(
    candidates: Tensor,
    features: Tensor,
    reference: Reference,
    reference_features: Tensor,
    *,
    closeness: float,
    neighbours: int,
    others: bool,
) -> tuple[Tensor, Tensor]:
    """Both requirements, lines 9 to 19 of Algorithm 1, for candidates (m, d) with features (m, k).

    Args:
        reference_features: (n, k), in the order of `reference`. closeness: share of the largest distance between them.
        neighbours: how many; if fewer images are eligible, all of them. others: only images of other patients are
        neighbours.

    Returns:
        For each candidate (m,) whether it is close to its nearest reference in features, and whether it is far from all
        references in pixels.
    """
    f, fr = features.double(), reference_features.double()
    between = torch.cdist(fr, fr)
    gap, nearest = _find_nearest(candidates, reference.pixels)
    close = (f - fr[nearest]).norm(dim=1) < closeness * between.max()
    barred = _not_neighbours(reference.patient, others)
    ranked = torch.where(barred, torch.inf, between).sort(dim=1, stable=True).indices[:, :neighbours]
    pixels = torch.where(barred, 0.0, reference.between).gather(1, ranked)
    distinct = gap > pixels.amax(dim=1)[nearest]
    if len(reference.rest):
        gap, nearest = _find_nearest(candidates, reference.rest)
        distinct &= gap > reference.limits[nearest]
    return close, distinct


def _not_neighbours(patient: Tensor, other_patients: bool) -> Tensor:
    """(n, n): which pairs are not neighbours."""
    return patient[:, None] == patient if other_patients else torch.eye(len(patient), dtype=torch.bool)


def _find_nearest(candidates: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (m,) of each candidate to its nearest row of pixels (n, d), and that row's index. Exactly 0 for a
    copy.
    """
    nearest = torch.cdist(candidates, pixels).argmin(dim=1)
    return (candidates - pixels[nearest]).norm(dim=1), nearest


def _flatten_images(images: Tensor) -> Tensor:
    """Images (n, ...) as rows (n, d) in float64 on the CPU."""
    return images.detach().cpu().float().flatten(1).double()
