"""Synthetic images that balance a hospital's two classes: how many, how far from real ones, and whether they copy.

The breast-cancer case study of Luo et al. (RSNA 2025; the slides' "generative data augmentation", mitigating imbalance)
gives no rule. Of its eight clients one was left as it was, with 1,350 images of one class and 1,753 of the other (.77);
the next nearer to balance had .27. A class counts as enough here from a share `at` of the larger one, .75 by default.

How far: the squared Frechet distance between synthetic images and held-back real ones of the same class, of features
that are the same for all hospitals: those of a public prior (`public_features`, "FD"), or Inception's (the FID). It
grows as samples get fewer, so training images of that class, equally many, are measured as well: no generator is
expected to be nearer than they.

Whether they copy: an image that lies less than half as far from some training image as from every held-back one is
called a near copy. A generator that does not know which patients were held back has few: a blurred image is near to
both. (Three samples, as in Meehan et al., A non-parametric test to detect data-copying in generative models, AISTATS
2020; the ratio of half is ours.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from harmonize.distances import frechet

Features: TypeAlias = Callable[[Tensor], Tensor]
"""features(images (n, C, H, W) in [-1, 1]) -> (n, d), the same function at all hospitals."""
FEWEST = 16
"""With fewer images of a kind no distance is computed; with fewer held-back images no share of copies is."""
NEAR = 0.5
"""Share of the distance to held-back images: an image that is nearer than that to a training image is a near copy."""
CHUNK = 256


class Lack(NamedTuple):
    """label: the smaller class; number: how many more of it make both equal."""

    label: int
    number: int


class Distance(NamedTuple):
    """Squared Frechet distances to held-back images, of `images` a side. made: synthetic; real: training images."""

    made: float
    real: float
    images: int


def find_lack(class_counts: Sequence[int], at: float) -> Lack | None:
    """What balances two classes of so many; None if the smaller is at least `at` times the larger.

    Raises:
        ValueError: there are not two classes.
    """
    if len(class_counts) != 2:
        raise ValueError(f"two classes can be balanced here, found {len(class_counts)}")
    fewer, more = sorted(class_counts)
    return None if fewer >= at * more else Lack(class_counts.index(fewer), more - fewer)


def compute_distance(
    features: Features, made: Tensor, held_back: Tensor, train: Tensor, *, seed: int
) -> Distance | None:
    """Distances of images (n, C, H, W) in [-1, 1] of one class; None if there are fewer than `FEWEST` of a kind."""
    images = min(len(made), len(held_back), len(train))
    if images < FEWEST:
        return None
    random = torch.Generator().manual_seed(seed)
    made_features, held_back_features, train_features = (
        features(part[torch.randperm(len(part), generator=random)[:images]]) for part in (made, held_back, train)
    )
    return Distance(frechet(made_features, held_back_features), frechet(train_features, held_back_features), images)


def near_copies(made: Tensor, train: Tensor, held_back: Tensor) -> float:
    """The share of `made` that are near copies of training images; NaN with fewer than `FEWEST` held-back images.

    Images are (n, C, H, W) in [-1, 1]; distances are Euclidean, over pixels, to the nearest of an image's mirror images
    and quarter turns.
    """
    if len(held_back) < FEWEST or not len(made):
        return math.nan
    near = nearest_distances(made, add_mirrored(train)) < NEAR * nearest_distances(made, add_mirrored(held_back))
    return float(near.double().mean())


def add_mirrored(images: Tensor) -> Tensor:
    """Images (n, C, H, W) with their mirror images, and, if they are square, quarter turns: (4 n or 8 n, C, H, W)."""
    square = images.shape[-1] == images.shape[-2]
    both = [images, images.transpose(2, 3)] if square else [images]
    return torch.cat([part.flip(axes) for part in both for axes in ((), (2,), (3,), (2, 3))])


def nearest_distances(images: Tensor, among: Tensor) -> Tensor:
    """(n,): the distance of each image to the nearest image in `among`."""
    flat = among.flatten(1)
    return torch.cat([torch.cdist(part.flatten(1), flat).amin(dim=1) for part in torch.split(images, CHUNK)])
