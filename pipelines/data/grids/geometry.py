"""Positions of voxels in the patient: make grids from slices, reorient and resample grids. This module reads no files.

World coordinates are millimetres to the patient's Right, Anterior, Superior (RAS, as in NIfTI-1). DICOM's patient
coordinates point to the Left, Posterior, Superior; PS3.3 C.7.6.2.1.1 says how a pixel is placed in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.data.study import Affine, Unusable, Volume

Floats = NDArray[np.float64]

LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
COSINE_TOLERANCE = 1e-3  # of a direction cosine, and of the dot product of two that should be orthogonal
GAP_TOLERANCE = 0.10  # of the median distance between neighbouring slices
SAME_POSITION_MM = 0.01
READING_AXES = ("L", "P", "S")  # columns from the patient's right to left, rows from anterior to posterior, slices up


class Grid(NamedTuple):
    """A voxel grid. affine: (4, 4) RAS, of (column, row, slice). shape: (columns, rows, slices)."""

    affine: Affine
    shape: tuple[int, int, int]


def grid_of(volume: Volume) -> Grid:
    """The grid of a volume."""
    columns, rows, slices = volume.values.shape
    return Grid(volume.affine, (columns, rows, slices))


def unit_normal(orientation: Floats) -> Floats:
    """The direction (3,), LPS, in which a right-handed stack of images grows.

    orientation: (6,) direction cosines of a row and of a column, as in ImageOrientationPatient.

    Raises:
        Unusable: `non_orthogonal` if they are not orthogonal unit vectors, to 1e-3.
    """
    row, column = orientation[:3], orientation[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    if not np.allclose(lengths, 1, atol=COSINE_TOLERANCE) or abs(row @ column) > COSINE_TOLERANCE:
        raise Unusable(
            "non_orthogonal",
            f"ImageOrientationPatient {np.round(orientation, 4).tolist()} has vectors of length {lengths[0]:.4f} and "
            f"{lengths[1]:.4f} with dot product {row @ column:.4f}; they must be orthogonal unit vectors to within "
            f"{COSINE_TOLERANCE:g}. Export the series again.",
        )
    return np.cross(row, column)


def stack_slices(
    orientation: Floats, positions: Floats, spacing: tuple[float, float]
) -> tuple[NDArray[np.intp], Affine]:
    """Sort slices along their normal and compute their affine.

    orientation: (6,) as in ImageOrientationPatient. positions: (K, 3) mm, LPS, ImagePositionPatient of each slice in
    any order. spacing: mm between rows, and between columns, as in PixelSpacing.

    Returns:
        (K,) the order along the normal, and the (4, 4) RAS affine of (column, row, slice) indices in that order.

    Raises:
        Unusable: `non_orthogonal`, `single_slice`, `duplicate_slice`, `several_volumes` (most positions
            occur several times), `gap` (distances differ by more than 10 % of their median) or `not_collinear`.
    """
    normal = unit_normal(orientation)
    along = positions @ normal
    order = np.argsort(along, kind="stable")
    _check_repeats(along[order])
    step = _compute_step(positions[order], normal)
    return order, slices_affine(orientation, spacing, step, positions[order[0]])


def slices_affine(orientation: Floats, spacing: Sequence[float] | Floats, step: Floats, first: Floats) -> Affine:
    """The (4, 4) RAS affine of (column, row, slice) indices.

    orientation, spacing: as of `stack`. step, first: (3,) mm, LPS, from one slice to the next, and of the first one.
    """
    affine = np.eye(4)
    affine[:3, 0] = orientation[:3] * spacing[1]
    affine[:3, 1] = orientation[3:] * spacing[0]
    affine[:3, 2] = step
    affine[:3, 3] = first
    return LPS_TO_RAS @ affine


def _check_repeats(along: Floats) -> None:
    """Refuse a single position, and positions that occur several times. along: (K,) mm, ascending."""
    starts = np.flatnonzero(np.diff(along, prepend=-np.inf) > SAME_POSITION_MM)
    counts = np.diff(starts, append=len(along))
    if len(starts) == 1:
        raise Unusable(
            "single_slice",
            f"the series has one slice position ({len(along)} image(s)); a volume needs at least 2. "
            "Send the whole series.",
        )
    if counts.max() == 1:
        return
    if counts.min() == counts.max():
        raise Unusable(
            "several_volumes",
            f"each of {len(starts)} slice positions has {counts[0]} images (b-values, echoes or time points); one per "
            "position is allowed. Narrow `select` down to one of them.",
        )
    usual = int(np.median(counts))
    if usual > 1:
        raise Unusable(
            "several_volumes",
            f"most of {len(starts)} slice positions have {usual} images, but they have {counts.min()} to "
            f"{counts.max()}: it is a series of several volumes (b-values, echoes or time points) that is not whole. "
            "Send the whole series, and narrow `select` down to one volume.",
        )
    doubled = along[starts[counts > 1]]
    raise Unusable(
        "duplicate_slice",
        f"{len(along)} images share {len(starts)} slice positions; repeated at {np.round(doubled, 2).tolist()[:5]} mm "
        "along the normal. One image per position is allowed. Remove the copies, or narrow `select` if they are "
        "other images.",
    )


def _compute_step(positions: Floats, normal: Floats) -> Floats:
    """The step (3,) from one slice to the next, mm, if they lie evenly on a straight line."""
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    worst = gaps[np.argmax(np.abs(gaps - usual))]
    if abs(worst - usual) > GAP_TOLERANCE * usual:
        raise Unusable(
            "gap",
            f"neighbouring slices are {usual:.3f} mm apart (median), but two are {worst:.3f} mm apart; the tolerance "
            f"is {GAP_TOLERANCE:.0%} of the median. Send the missing slices, or export at an even spacing.",
        )
    step: Floats = (positions[-1] - positions[0]) / (len(positions) - 1)
    line = positions[0] + np.arange(len(positions))[:, None] * step
    off = float(np.linalg.norm(positions - line, axis=1).max())
    if off > GAP_TOLERANCE * usual:
        raise Unusable(
            "not_collinear",
            f"a slice lies {off:.2f} mm off the straight line through the first and the last slice; "
            f"{GAP_TOLERANCE * usual:.2f} mm is allowed. Export one acquisition per series.",
        )
    return step


def is_invertible(affine: Affine) -> bool:
    """Whether a (4, 4) affine is finite and its axes span space (volume at least 1e-6 of a box of their lengths)."""
    axes = affine[:3, :3]
    if not np.isfinite(affine).all():
        return False
    box = float(np.prod(np.linalg.norm(axes, axis=0)))
    return box > 0 and abs(float(np.linalg.det(axes))) > 1e-6 * box


def spacing_of(affine: Affine) -> Floats:
    """Length (3,) of a voxel along each index axis, mm."""
    lengths: Floats = np.linalg.norm(affine[:3, :3], axis=0)
    return lengths


def is_same_grid(grid: tuple[Affine, tuple[int, ...]], other_grid: tuple[Affine, tuple[int, ...]]) -> bool:
    """Whether two (affine, shape) are one grid: equal shapes, and corners at most 0.01 voxel apart."""
    return grid[1] == other_grid[1] and corner_distance(grid[0], other_grid[0], grid[1]) <= 0.01 * float(
        spacing_of(grid[0]).min()
    )


def corner_distance(affine: Affine, other_affine: Affine, shape: tuple[int, ...]) -> float:
    """The largest distance, mm, of a corner voxel's positions under two affines, for a grid of `shape`."""
    corners = np.array([(*corner, 1.0) for corner in product(*((0, size - 1) for size in shape[:3]))])
    return float(np.linalg.norm(corners @ (affine - other_affine)[:3].T, axis=1).max())


def reading_order(volume: Volume) -> Volume:
    """Permute and flip a volume's axes, without interpolation, to a radiologist's reading order of an axial stack.

    Returns:
        (columns, rows, slices): columns run closest to right -> left, rows anterior -> posterior, slices inferior ->
        superior. Every voxel keeps its world coordinates.
    """
    from nibabel.orientations import (  # slow to import, as is SciPy below
        apply_orientation,
        axcodes2ornt,
        inv_ornt_aff,
        io_orientation,
        ornt_transform,
    )

    change = ornt_transform(io_orientation(volume.affine), axcodes2ornt(READING_AXES))
    values: NDArray[np.generic] = apply_orientation(volume.values, change)
    affine: Affine = volume.affine @ inv_ornt_aff(change, volume.values.shape)
    return Volume(values, affine)


def find_bounding_box(mask: NDArray[np.bool_]) -> tuple[slice, ...]:
    """The smallest box that holds all that is inside of a mask, which is not empty."""
    from scipy.ndimage import find_objects  # a check of settings needs none of it

    (box,) = find_objects(mask.view(np.uint8))
    return tuple(box)


def slice_grid(affine: Affine, centre: tuple[float, float], spacing_mm: float, size: int) -> Affine:
    """A grid on the same slices, with size x size square pixels about an in-plane point.

    affine: of a volume in reading order. centre: (column, row) index of that point in it. The slices keep their
    positions: interpolation is in-plane only.
    """
    ratio = spacing_mm / spacing_of(affine)[:2]
    change = np.diag([ratio[0], ratio[1], 1.0, 1.0])
    change[:2, 3] = np.asarray(centre) - ratio * (size - 1) / 2
    grid: Affine = affine @ change
    return grid


def resample_volume(
    volume: Volume, target_affine: Affine, shape: tuple[int, int, int], order: int
) -> NDArray[np.generic]:
    """Resample a volume to another grid, by world coordinates; 0 outside the volume.

    target_affine: (4, 4) RAS affine of the other grid. shape: of that grid. order: 0 = nearest (masks; keeps the
    dtype), 1 = trilinear (images; float32). Images are first smoothed along the axes where the other grid is coarser,
    to avoid aliasing.

    Raises:
        ValueError: `order` is neither 0 nor 1.
    """
    if order not in (0, 1):
        raise ValueError(f"order must be 0 (nearest) or 1 (linear), found {order}")
    from scipy import ndimage

    index = np.linalg.inv(volume.affine) @ target_affine
    values = volume.values if order == 0 else _smooth_values(volume.values.astype(np.float32, copy=False), index)
    # grid-constant: a point that is 1e-15 outside by rounding still counts as inside
    resampled: NDArray[np.generic] = ndimage.affine_transform(
        values,
        index[:3, :3],
        offset=index[:3, 3],
        output_shape=shape,
        order=order,
        mode="grid-constant",
        prefilter=False,
    )
    return resampled


def mask_on_grid(mask: Volume, grid: Grid) -> NDArray[np.uint8]:
    """A mask (values above 0) resampled to another grid (columns, rows, slices): 0 or 1."""
    flags = Volume((np.asarray(mask.values, np.float32) > 0).astype(np.uint8), mask.affine)
    return classes_on_grid(flags, grid)


def classes_on_grid(class_map: Volume, grid: Grid) -> NDArray[np.uint8]:
    """A map of classes (I, J, K) uint8 resampled to another grid (columns, rows, slices): the nearest voxel's class, 0
    outside.
    """
    return resample_volume(class_map, *grid, 0).astype(np.uint8, copy=False)


def _smooth_values(values: NDArray[np.float32], index: Affine) -> NDArray[np.float32]:
    """Smooth by a Gaussian of (f - 1) / 2 voxels if a voxel of the other grid is f > 1 voxels long; edge values are
    repeated.

    The rule is that of scikit-image and MONAI. An f below 1.25 changes nothing: the kernel then has one voxel.
    """
    factors = np.linalg.norm(index[:3, :3], axis=1)
    sigma = np.maximum(factors - 1, 0) / 2
    if (sigma < 0.125).all():  # scipy cuts the kernel off at 4 sigma, rounded to whole voxels
        return values
    from scipy import ndimage

    smooth: NDArray[np.float32] = ndimage.gaussian_filter(values, sigma, mode="nearest")
    return smooth
