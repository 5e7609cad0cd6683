"""One study becomes slices that can be compared among hospitals: same axes, same spacing, same size. No files here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.cohort.geometry import Floats, reading_order, resample, slice_grid, spacing_of
from pipelines.cohort.labels import GlandMask
from pipelines.cohort.study import Affine, Array, Volume
from pipelines.cohort.unusable import Unusable

THICKEST_PIXEL = 1.5  # of the distance between slices: beyond it, the stack was not acquired in axial slices


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What a prepared slice is.

    spacing_mm: edge of its square pixels. size: pixels along each side; the slice is cut or filled with 0 about the
    gland's centroid, or about the image's centre where no gland mask is given. slices: all, or those that show the
    gland. gland: where gland masks lie.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    spacing_mm: float = 1.5
    size: int = 48
    slices: Literal["all", "gland"] = "all"
    gland: GlandMask | None = None

    def __post_init__(self) -> None:
        problems = []
        if not 0.1 <= self.spacing_mm <= 10:
            problems.append(f"spacing_mm must be in [0.1, 10] mm, found {self.spacing_mm}")
        if not 8 <= self.size <= 1024:
            problems.append(f"size must be in [8, 1024] pixels, found {self.size}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True)
class Prepared:
    """Slices of one study, inferior to superior; rows run anterior to posterior, columns right to left.

    images: (K, size, size) float32. lesion, gland: (K, size, size) uint8, 0 or 1. position: (K,) slice index, 0 = the
    most inferior one of the study.
    """

    images: Array
    lesion: NDArray[np.uint8]
    gland: NDArray[np.uint8]
    position: NDArray[np.float32]


def prepare(image: Volume, *, lesion: Volume | None, gland: Volume | None, preparation: Preparation) -> Prepared:
    """Bring a study's slices, and masks that lie on any grid, onto square pixels.

    Only in-plane positions are interpolated (linear; masks nearest): slices stay as acquired.

    Raises:
        Unusable: `not_axial`, `no_gland` (the gland mask is empty), or `mask_outside` (the middle of a mask lies
            outside the image: they belong to different studies, or were converted differently).
    """
    stack = reading_order(image)
    spacing = spacing_of(stack.affine)
    if spacing[:2].max() > THICKEST_PIXEL * spacing[2]:
        raise Unusable(
            "not_axial",
            f"axial pixels would be {spacing[0]:.2f} x {spacing[1]:.2f} mm, with {spacing[2]:.2f} mm between slices; "
            "this is not an axial series. Send the axial one.",
        )
    if gland is not None and not _inside(gland).any():
        raise Unusable("no_gland", "the gland mask is empty. Draw it, or remove the mask's settings.")
    centre = (np.asarray(stack.values.shape) - 1) / 2 if gland is None else _centre(gland, stack, "gland")
    if lesion is not None and _inside(lesion).any():
        _centre(lesion, stack, "lesion")
    grid = slice_grid(stack.affine, (float(centre[0]), float(centre[1])), preparation.spacing_mm, preparation.size)
    shape = (preparation.size, preparation.size, stack.values.shape[2])
    lesions, glands = (_on_grid(mask, grid, shape) for mask in (lesion, gland))
    kept = np.flatnonzero(glands.any(axis=(1, 2))) if preparation.slices == "gland" else np.arange(shape[2])
    images = resample(stack, grid, shape, 1).astype(np.float32, copy=False).transpose(2, 1, 0)
    return Prepared(images[kept], lesions[kept], glands[kept], kept.astype(np.float32))


def _inside(mask: Volume) -> NDArray[np.bool_]:
    return np.asarray(mask.values, np.float32) > 0


def _centre(mask: Volume, image: Volume, name: str) -> Floats:
    """The centroid (3,) of a mask, as an index into `image`."""
    world = mask.affine @ np.array([*(axis.mean() for axis in np.nonzero(_inside(mask))), 1.0])
    index: Floats = (np.linalg.inv(image.affine) @ world)[:3]
    last = np.asarray(image.values.shape) - 0.5
    if (index < -0.5).any() or (index > last).any():
        raise Unusable(
            "mask_outside",
            f"the middle of the {name} mask is at voxel {np.round(index, 1).tolist()} of an image of shape "
            f"{image.values.shape}. Check that mask and image are of one study.",
        )
    return index


def _on_grid(mask: Volume | None, grid: Affine, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """A mask as (K, rows, columns) of 0 and 1; zeros where there is none."""
    if mask is None:
        return np.zeros(shape[::-1], np.uint8)
    flags = Volume(_inside(mask).astype(np.uint8), mask.affine)
    return resample(flags, grid, shape, 0).astype(np.uint8, copy=False).transpose(2, 1, 0)
