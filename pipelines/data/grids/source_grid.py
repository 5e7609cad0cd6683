"""What a network says of a prepared study, back on the study's own grid.

Probabilities go back by linear interpolation and the most probable class is taken there. Labels would go back as the
squares of the network's pixels, 1.5 mm on an image of 0.5 mm, and where classes meet the nearest pixel's would win
whatever its neighbours say; between linear probabilities the border runs where they are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import Floats, reading_order, resample, slice_grid, spacing_of
from pipelines.data.images import Slices, Volumes
from pipelines.data.study import Affine, Array, Volume


class Grid(NamedTuple):
    """affine: (4, 4) RAS, of (column, row, slice). shape: (columns, rows, slices)."""

    affine: Affine
    shape: tuple[int, int, int]


def prepared_grid(source: Grid, images: Slices | Volumes, gland: Volume | None) -> Grid:
    """On which grid `prepare_slices` (all slices) or `prepare_volume` brings a study.

    source: of the study. gland: the mask about which examples are cut, if they are; None = the image's centre.
    """
    stack = reading_order(Volume(np.broadcast_to(np.uint8(0), source.shape), source.affine))
    columns, rows, slices = stack.values.shape
    centre: Floats = (np.array([columns, rows, slices]) - 1) / 2
    if gland is not None and images.centre == "gland":
        inside = np.nonzero(np.asarray(gland.values, np.float32) > 0)
        world = gland.affine @ np.array([*(axis.mean() for axis in inside), 1.0])
        centre = (np.linalg.inv(stack.affine) @ world)[:3]
    flat = slice_grid(stack.affine, (float(centre[0]), float(centre[1])), images.spacing_mm, images.size)
    if isinstance(images, Slices):
        return Grid(flat, (images.size, images.size, slices))
    change = np.diag([1.0, 1.0, images.depth_mm / float(spacing_of(stack.affine)[2]), 1.0])
    change[2, 3] = centre[2] - change[2, 2] * (images.depth - 1) / 2
    return Grid(flat @ change, (images.size, images.size, images.depth))


def to_source_grid(
    probabilities: Array, position: NDArray[np.float32], source: Grid, images: Slices | Volumes, gland: Volume | None
) -> Volume:
    """A label map on the source's grid. What the network did not see is background.

    probabilities: (n, C, size, size) of slices, or (1, C, depth, size, size) of a volume; class 0 is the background.
    position: (n,) index of each slice, from inferior to superior, as in `Examples`. source: the study's own grid.
    images, gland: how the study was prepared.

    Returns:
        (I, J, K) uint8, the most probable class of each voxel, the lowest where several are.

    Raises:
        ValueError: shapes that do not belong together.
    """
    grid = prepared_grid(source, images, gland)
    planes = _stacked(probabilities, position, grid.shape)
    best = np.zeros(source.shape, np.uint8)
    rest = np.ones(source.shape, np.float32)
    highest = np.full(source.shape, -1.0, np.float32)
    for number in range(1, len(planes)):
        found = resample(Volume(planes[number], grid.affine), source.affine, source.shape, 1)
        share = found.astype(np.float32, copy=False)
        rest -= share
        better = share > highest
        best[better], highest[better] = number, share[better]
    best[rest >= highest] = 0
    return Volume(best, source.affine)


def _stacked(probabilities: Array, position: NDArray[np.float32], shape: tuple[int, int, int]) -> Array:
    """Probabilities by class on the prepared grid, (C, columns, rows, slices); 0 for slices that are not there."""
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
