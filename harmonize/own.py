"""A site's training images for a translation, and which of their pixels are measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

BACKGROUND = -1.0  # the low end of network space, the value of pixels that a scanner masked out
Region: TypeAlias = Literal["foreground", "centre", "all"]


class SiteImages(NamedTuple):
    """A site's training images. images: (n, C, H, W) float32 in [-1, 1]; labels: (n,) int64 in {0, 1};
    patient: (n,) int64, equal for one patient's rows.
    """

    images: Tensor
    labels: Tensor
    patient: Tensor


def central_region(images: Tensor) -> Tensor:
    """The middle half of each side: (..., H/2, W/2), a view."""
    h, w = images.shape[-2:]
    return images[..., h // 4 : h - h // 4, w // 4 : w - w // 4]


def region_mask(images: Tensor, region: Region) -> Tensor:
    """Which pixels are measured, (n, C, H, W) bool: all of them, all above the background, or those of the central
    region.
    """
    if region == "all":
        return torch.ones_like(images, dtype=torch.bool)
    above = images > BACKGROUND
    if region == "foreground":
        return above
    middle = torch.zeros_like(above)
    central_region(middle).copy_(central_region(above))
    return middle


def rows_of(patient: Tensor) -> Iterator[Tensor]:
    """For each patient, in ascending order, the indices (k,) of that patient's rows, on the CPU."""
    order = torch.argsort(patient.cpu(), stable=True)
    _, sizes = torch.unique_consecutive(patient.cpu()[order], return_counts=True)
    yield from torch.split(order, sizes.tolist())


def patient_means(images: Tensor, patient: Tensor) -> Tensor:
    """Mean of the central region over all images of each patient, (patients, C) on the CPU, in ascending order."""
    middle = central_region(images).mean(dim=(2, 3)).double().cpu()
    means = [middle[rows].mean(dim=0, keepdim=True) for rows in rows_of(patient)]
    return torch.cat([middle[:0], *means]).float()


def shift_means(images: Tensor, goal: Tensor, patient: Tensor) -> Tensor:
    """Add one number per patient and channel, so that the patient's central mean becomes `goal` after clipping to [-1,
    1].

    images: (n, C, H, W). goal: (patients, C), in ascending order of patients. Bisection compensates for clipping, so
    patients keep their order; background pixels stay.
    """
    out, limits = images.clone(), goal.clamp(-1.0, 1.0).double()
    for rows, aim in zip(rows_of(patient), limits, strict=True):
        stack = images[rows.to(images.device)].cpu().double()
        background, middle = stack <= -1.0, central_region(stack)
        still = central_region(background)
        low, high = torch.full_like(aim, -2.0), torch.full_like(aim, 2.0)
        for _ in range(50):
            by = ((low + high) / 2).view(1, -1, 1, 1)
            short = torch.where(still, middle, (middle + by).clamp(-1, 1)).mean(dim=(0, 2, 3)) < aim
            low, high = torch.where(short, by.flatten(), low), torch.where(short, high, by.flatten())
        moved = torch.where(background, stack, (stack + high.view(1, -1, 1, 1)).clamp(-1, 1))
        out[rows.to(images.device)] = moved.to(images)
    return out


def check_images(site_images: SiteImages, shared: Tensor) -> None:
    """Raise ValueError with everything that is wrong with images that a translation is to be trained on."""
    problems = []
    for name, x in (("own images", site_images.images), ("shared images", shared)):
        if x.dim() != 4 or not len(x):
            problems.append(f"{name} must be (n, C, H, W) with n >= 1, found shape {tuple(x.shape)}")
        elif x.shape[2] % 4 or x.shape[3] % 4 or min(x.shape[2:]) < 16:
            problems.append(f"{name} must have sides that are multiples of 4 and at least 16, found {tuple(x.shape)}")
        if x.numel() and not bool(((x >= -1.0) & (x <= 1.0)).all()):
            problems.append(f"{name} must lie in [-1, 1], found values outside: bring them there with a Scale")
    if site_images.images.shape[1:] != shared.shape[1:]:
        problems.append(
            f"own images are {tuple(site_images.images.shape[1:])}, shared images {tuple(shared.shape[1:])}"
        )
    for name, x in (("labels", site_images.labels), ("patient", site_images.patient)):
        if x.shape != site_images.images.shape[:1]:
            problems.append(f"{name} must be ({len(site_images.images)},), found shape {tuple(x.shape)}")
    if bool(((site_images.labels != 0) & (site_images.labels != 1)).any()):
        problems.append(f"labels must be 0 or 1, found {sorted(set(site_images.labels.tolist()))[:5]}")
    if problems:
        raise ValueError("translation: " + "; ".join(problems))
