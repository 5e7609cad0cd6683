"""Resample a network's output for a prepared study to the study's own grid.

Probabilities are interpolated linearly and the most probable class is taken on the study's grid. Nearest-neighbour
labels would show the network's square pixels, 1.5 mm on an image of 0.5 mm, and at the border between classes the
nearest pixel would win whatever its neighbours are; with linear probabilities the border lies where they are equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import Grid, resample_volume
from pipelines.data.images import Slices, Volumes
from pipelines.data.prepare import prepared_grid
from pipelines.data.study import Array, Volume


def to_source_grid(
    probabilities: Array, position: NDArray[np.float32], source: Grid, images: Slices | Volumes, gland: Volume | None
) -> Volume:
    """A label map on the source's grid. Voxels outside the network's input are background.

    probabilities: (n, C, size, size) of slices, or (1, C, depth, size, size) of a volume; class 0 is the background.
    position: (n,) index of each slice, from inferior to superior, as in `Examples`. source: the study's own grid.
    images, gland: how the study was prepared.

    Returns:
        (I, J, K) uint8, the most probable class of each voxel, the lowest of ties.

    Raises:
        ValueError: the shapes do not match.
    """
    grid = prepared_grid(source, images, gland)
    best = np.zeros(source.shape, np.uint8)
    rest = np.ones(source.shape, np.float32)
    highest = np.full(source.shape, -1.0, np.float32)
    for number in range(1, probabilities.shape[1]):  # one class at a time: memory does not follow their number
        (plane,) = _stack_planes(probabilities[:, number : number + 1], position, grid.shape)
        resampled = resample_volume(Volume(plane, grid.affine), *source, 1)
        share = resampled.astype(np.float32, copy=False)
        rest -= share
        best[share > highest] = number
        np.maximum(highest, share, out=highest)
    best[rest >= highest] = 0
    return Volume(best, source.affine)


def map_on_source_grid(
    maps: Array, position: NDArray[np.float32], source: Grid, images: Slices, gland: Volume | None
) -> Volume:
    """A map of numbers on the source's grid, linear between the middles of pixels; 0 outside the network's input.

    maps: (n, size, size) of slices. Otherwise as `to_source_grid`.

    Returns:
        (I, J, K) float32.

    Raises:
        ValueError: the shapes do not match.
    """
    grid = prepared_grid(source, images, gland)
    (plane,) = _stack_planes(maps[:, None], position, grid.shape)
    resampled = resample_volume(Volume(plane, grid.affine), *source, 1)
    return Volume(resampled.astype(np.float32, copy=False), source.affine)


def _stack_planes(probabilities: Array, position: NDArray[np.float32], shape: tuple[int, int, int]) -> Array:
    """Probabilities by class on the prepared grid, (C, columns, rows, slices); 0 for missing slices."""
    columns, rows, slices = shape
    if probabilities.ndim == 5:
        if probabilities.shape[0] != 1 or probabilities.shape[2:] != (slices, rows, columns):
            raise ValueError(f"probabilities (1, C, {slices}, {rows}, {columns}) needed, found {probabilities.shape}")
        return np.ascontiguousarray(probabilities[0].transpose(0, 3, 2, 1))
    places = position.astype(np.intp)
    fits = probabilities.ndim == 4 and probabilities.shape[2:] == (rows, columns) and len(places) == len(probabilities)
    if not fits or len(set(places.tolist())) < len(places) or not ((places >= 0) & (places < slices)).all():
        raise ValueError(
            f"probabilities (n, C, {rows}, {columns}) and n different positions below {slices} are needed, found "
            f"{probabilities.shape} and positions {places.tolist()[:5]}"
        )
    planes = np.zeros((probabilities.shape[1], columns, rows, slices), np.float32)
    planes[:, :, :, places] = probabilities.transpose(1, 3, 2, 0)
    return planes
