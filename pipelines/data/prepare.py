"""Prepare a study as slices, or a volume, comparable among hospitals: with the same axes, spacing and size.

This module reads no files.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import (
    Floats,
    Grid,
    classes_on_grid,
    mask_on_grid,
    reading_order,
    resample_volume,
    slice_grid,
    spacing_of,
)
from pipelines.data.images import Slices, Volumes
from pipelines.data.intake import Examples, empty_masks
from pipelines.data.study import Unusable, Volume

LEAST_LESION = 0.5  # share of a lesion's voxels that must lie inside the prepared grid
THICKEST_PIXEL = 1.5  # times the slice distance: with larger pixels the stack was not acquired in axial slices


def prepare_slices(
    image: Volume, *, lesion: Volume | None, gland: Volume | None, images: Slices, classes: Volume | None = None
) -> Examples:
    """Resample a study's slices, and masks on any grid, to square pixels.

    Interpolation is in-plane only (linear; masks nearest): slices stay as acquired. They are ordered from inferior to
    superior; rows run anterior to posterior, columns right to left. classes: a map of classes (I, J, K) uint8.

    Raises:
        Unusable: `not_axial`, `no_gland` (the gland mask is empty), or `mask_outside` (the middle of a mask lies
            outside the image: they belong to different studies, or were converted differently).
    """
    stack = _reorder_axial(image)
    grid = _crop_grid(stack, _crop_centre(stack, lesion, gland, images.centre, classes), images)
    lesions, glands = (_resample_mask(mask, grid) for mask in (lesion, gland))
    kept_slices = np.flatnonzero(glands.any(axis=(1, 2))) if images.slices == "gland" else np.arange(grid.shape[2])
    if not kept_slices.size:
        raise Unusable("no_gland", "no slice shows the gland: its mask is too thin. Draw it on the image.")
    _check_lesion(lesion, grid)
    values = resample_volume(stack, *grid, 1).astype(np.float32, copy=False).transpose(2, 1, 0)
    steps = np.arange(images.context) - images.context // 2
    seen = np.clip(kept_slices[:, None] + steps, 0, grid.shape[2] - 1)
    class_maps = empty_masks(len(seen)) if classes is None else _resample_classes(classes, grid)[kept_slices]
    places = kept_slices.astype(np.float32)
    return Examples(values[seen], lesions[kept_slices], glands[kept_slices], places, class_maps)


def prepare_volume(
    image: Volume, *, lesion: Volume | None, gland: Volume | None, images: Volumes, classes: Volume | None = None
) -> Examples:
    """Resample a study, and masks on any grid, to one grid of `depth` slices about the middle of the gland.

    Axes, classes and errors as in `prepare_slices`.
    """
    stack = _reorder_axial(image)
    grid = _crop_grid(stack, _crop_centre(stack, lesion, gland, images.centre, classes), images)
    _check_lesion(lesion, grid)
    lesions, glands = (_resample_mask(mask, grid)[None] for mask in (lesion, gland))
    values = resample_volume(stack, *grid, 1).astype(np.float32, copy=False).transpose(2, 1, 0)
    class_maps = empty_masks(1) if classes is None else _resample_classes(classes, grid)[None]
    return Examples(values[None, None], lesions, glands, np.zeros(1, np.float32), class_maps)


def prepared_grid(source: Grid, images: Slices | Volumes, gland: Volume | None) -> Grid:
    """The grid to which `prepare_slices` (all slices) or `prepare_volume` resamples a study.

    source: the study's grid. gland: the mask at the crop's centre; None = the image's centre.
    """
    stack = reading_order(Volume(np.broadcast_to(np.uint8(0), source.shape), source.affine))
    return _crop_grid(stack, _crop_centre(stack, None, gland, images.centre), images)


def _crop_grid(stack: Volume, centre: Floats, images: Slices | Volumes) -> Grid:
    """centre: (3,) voxel index of the stack, which is in reading order."""
    flat = slice_grid(stack.affine, (float(centre[0]), float(centre[1])), images.spacing_mm, images.size)
    if isinstance(images, Slices):
        return Grid(flat, (images.size, images.size, stack.values.shape[2]))
    change = np.diag([1.0, 1.0, images.depth_mm / float(spacing_of(stack.affine)[2]), 1.0])
    change[2, 3] = centre[2] - change[2, 2] * (images.depth - 1) / 2
    return Grid(flat @ change, (images.size, images.size, images.depth))


def _reorder_axial(image: Volume) -> Volume:
    """The volume in reading order. Raises: Unusable: `not_axial`."""
    stack = reading_order(image)
    spacing = spacing_of(stack.affine)
    if spacing[:2].max() > THICKEST_PIXEL * spacing[2]:
        raise Unusable(
            "not_axial",
            f"axial pixels would be {spacing[0]:.2f} x {spacing[1]:.2f} mm, with {spacing[2]:.2f} mm between slices; "
            "this is not an axial series. Send the axial one.",
        )
    return stack


def _crop_centre(
    stack: Volume,
    lesion: Volume | None,
    gland: Volume | None,
    about: Literal["gland", "image"],
    classes: Volume | None = None,
) -> Floats:
    """The voxel index (3,) of the crop's centre; masks must lie inside the image."""
    if gland is not None and not _foreground(gland).any():
        raise Unusable("no_gland", "the gland mask is empty. Draw it, or remove the mask's settings.")
    middle: Floats = (np.asarray(stack.values.shape) - 1) / 2
    centre = middle if gland is None else _mask_centre(gland, stack, "gland")
    for mask, name in ((lesion, "lesion"), (classes, "label")):
        if mask is not None and _foreground(mask).any():
            _mask_centre(mask, stack, name)
    return centre if about == "gland" else middle


def _foreground(mask: Volume) -> NDArray[np.bool_]:
    """Where a mask is above 0."""
    return np.asarray(mask.values, np.float32) > 0


def _mask_centre(mask: Volume, image: Volume, name: str) -> Floats:
    """The centroid (3,) of a mask, as an index into `image`."""
    world = mask.affine @ np.array([*(axis.mean() for axis in np.nonzero(_foreground(mask))), 1.0])
    index: Floats = (np.linalg.inv(image.affine) @ world)[:3]
    last = np.asarray(image.values.shape) - 0.5
    if (index < -0.5).any() or (index > last).any():
        raise Unusable(
            "mask_outside",
            f"the middle of the {name} mask is at voxel {np.round(index, 1).tolist()} of an image of shape "
            f"{image.values.shape}. Check that mask and image are of one study.",
        )
    return index


def _check_lesion(lesion: Volume | None, grid: Grid) -> None:
    """Refuse a study whose lesion is cropped away: its label would not match the cropped image."""
    if lesion is None or not _foreground(lesion).any():
        return
    index = np.linalg.inv(grid.affine) @ lesion.affine
    places = np.argwhere(_foreground(lesion)) @ index[:3, :3].T + index[:3, 3]
    within = ((places >= -0.5) & (places <= np.asarray(grid.shape) - 0.5)).all(axis=1)
    if within.mean() < LEAST_LESION:
        size = " x ".join(map(str, grid.shape))
        raise Unusable(
            "lesion_cut",
            f"{within.mean():.0%} of the lesion's voxels lie inside what is cut out ({size}); "
            f"{LEAST_LESION:.0%} must. Enlarge `images` (size, spacing_mm, depth), or centre them on a gland mask.",
        )


def _resample_mask(mask: Volume | None, grid: Grid) -> NDArray[np.uint8]:
    """A mask as (K, rows, columns) of 0 and 1; zeros where there is none."""
    return np.zeros(grid.shape[::-1], np.uint8) if mask is None else mask_on_grid(mask, grid).transpose(2, 1, 0)


def _resample_classes(class_map: Volume, grid: Grid) -> NDArray[np.uint8]:
    """A map of classes as (K, rows, columns)."""
    return classes_on_grid(class_map, grid).transpose(2, 1, 0)
