"""Find the grid of a segmentation's frames, some of which may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import (
    COSINE_TOLERANCE,
    GAP_TOLERANCE,
    SAME_POSITION_MM,
    Floats,
    slices_affine,
    unit_normal,
)
from pipelines.data.headers import Frame
from pipelines.data.study import Affine, Unusable

LENGTHS = {"ImageOrientationPatient": 6, "ImagePositionPatient": 3, "PixelSpacing": 2}
DISTANCES = ("SpacingBetweenSlices", "SliceThickness")
PLACE = (*LENGTHS, *DISTANCES)


class FrameGrid(NamedTuple):
    """affine: (4, 4) RAS, of (column, row, slice). places: (N,) slice of each frame. slices: from first to last."""

    affine: Affine
    places: tuple[int, ...]
    slices: int


def frame_grid(frames: Sequence[Frame]) -> FrameGrid:
    """Sort frames into slices; several frames may share a position, and positions may have no frame.

    The slice distance is SpacingBetweenSlices if all frames lie on multiples of it, or else SliceThickness, or else the
    distance of the two closest positions.

    Raises:
        Unusable: `missing_tag`, `bad_tag`, `non_orthogonal`, `mixed_orientation`, `mixed_spacing`, `gap` or
            `not_collinear`.
    """
    _check_tags(frames)
    orientation, spacing = (
        _common_values(frames, "ImageOrientationPatient", 1),
        _common_values(frames, "PixelSpacing", 0),
    )
    normal = unit_normal(orientation)
    positions = np.array([frame.values["ImagePositionPatient"] for frame in frames], float)
    along = positions @ normal
    first = int(along.argmin())
    distance, places = _assign_slices(along - along[first], _header_distances(frames[0]))
    last = int(places.max())
    step: Floats = normal * distance
    if last:
        step = (positions[int(places.argmax())] - positions[first]) / last
    off = float(np.linalg.norm(positions - positions[first] - places[:, None] * step, axis=1).max())
    if off > GAP_TOLERANCE * distance:
        raise Unusable(
            "not_collinear",
            f"a frame lies {off:.2f} mm off the straight line through the first and the last one; "
            f"{GAP_TOLERANCE * distance:.2f} mm is allowed. Export one grid per file.",
        )
    affine = slices_affine(orientation, spacing, step, positions[first])
    return FrameGrid(affine, tuple(int(place) for place in places), last + 1)


def _check_tags(frames: Sequence[Frame]) -> None:
    """Refuse frames without valid position, orientation and pixel spacing. Raises: Unusable."""
    if missing := {key for key in LENGTHS if any(key not in frame.values for frame in frames)}:
        raise Unusable(
            "missing_tag",
            f"without a value: {', '.join(sorted(missing))}; nothing says where frames lie. Export it again.",
        )
    for frame in frames:
        if wrong := place_problem(frame):
            raise Unusable("bad_tag", wrong)


def place_problem(frame: Frame) -> str | None:
    """The problem with a frame's position, orientation or pixel spacing; None if there is none."""
    for key, length in LENGTHS.items():
        numbers = [float(number) for number in np.atleast_1d(frame.values[key])]
        if len(numbers) != length or not np.isfinite(numbers).all() or (length == 2 and min(numbers) <= 0):
            return f"{key} is {numbers}; {length} finite numbers are needed, spacing > 0."
    return None


def _common_values(frames: Sequence[Frame], key: str, orientation: int) -> Floats:
    """The values of a keyword that all frames have in common. Raises: Unusable: they differ."""
    values = np.array([frame.values[key] for frame in frames], float)
    if float(np.abs(values - values[0]).max()) > COSINE_TOLERANCE:
        reason = "mixed_orientation" if orientation else "mixed_spacing"
        raise Unusable(reason, f"{key} differs within the file; one is allowed. Export one grid per file.")
    first: Floats = values[0]
    return first


def _header_distances(frame: Frame) -> tuple[float, ...]:
    """SpacingBetweenSlices and SliceThickness, mm, 0 = missing."""
    numbers = [abs(float(frame.values.get(key) or 0)) for key in DISTANCES]
    return tuple(number if np.isfinite(number) and number > SAME_POSITION_MM else 0.0 for number in numbers)


def _assign_slices(along: Floats, header_distances: Sequence[float]) -> tuple[float, NDArray[np.intp]]:
    """The distance between slices, and the slice of each frame. along: (N,) mm from the first one."""
    ordered = np.sort(along)
    gaps = np.diff(ordered)
    gaps = gaps[gaps > SAME_POSITION_MM]
    if not gaps.size:
        if not any(header_distances):
            raise Unusable("missing_tag", "one slice, and neither SpacingBetweenSlices nor SliceThickness. Add one.")
        return next(filter(None, header_distances)), np.zeros(len(along), np.intp)
    for distance in (*filter(None, header_distances), float(gaps.min())):
        steps = np.rint(gaps / distance)
        even = (np.abs(gaps - steps * distance) <= GAP_TOLERANCE * distance).all() and steps.min() >= 1
        if even:
            places = np.concatenate([[0], np.cumsum(steps)]).astype(np.intp)
            starts = np.concatenate([[0.0], np.cumsum(gaps)])
            nearest = np.abs(along[:, None] - starts[None]).argmin(axis=1)
            return float(starts[-1] / places[-1]), places[nearest]
    raise Unusable(
        "gap",
        f"frames are {gaps.min():.3f} to {gaps.max():.3f} mm apart, which are no multiples of one distance (to within "
        f"{GAP_TOLERANCE:.0%} of it). Export at an even spacing.",
    )
